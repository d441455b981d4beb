"""Happenings, which the root agent decides on, and instructions, which its shell carries out.

All are plain data: `RootAgent.handle` takes a happening and returns instructions.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gemini_lab.log import events
from gemini_lab.log.events import AnyEvent
from gemini_lab.recovery.messages import (
    FromAgentMessage,
    JobOrder,
    RootOrder,
)
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.recovery.root_state import RootState


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined:
    """An agent has connected; `epoch` is the newest that it knows, `workers` its ranks."""

    at_s: float
    node: str
    epoch: int = 0
    workers: Collection[int] = ()
    is_ready: bool = True  # whether workers start there without waiting for imports
    memory_bytes: int = 0  # what could be taken for copies there; 0 where it is not known
    # The address of its machine, which it may share with others; empty if not known.
    machine: str = ""
    # What its workers of the last start said of machines that compute wrong.
    wrong_sums: events.WrongSums | None = None
    left: tuple[VersionId, ...] = ()  # what rewinds left behind, as its workers said


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLost:
    """An agent was lost, and how that was noticed."""

    at_s: float
    node: str
    # `"dead"`: its lease ran out, and its machine says that nothing listens there, so its memory is
    # gone; `"refused"`, `"connection"`, `"lease"` or `"no answer"`: it fell silent, and may come
    # back.
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromAgent:
    """A message of an agent."""

    at_s: float
    node: str
    message: FromAgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A job that the lab has submitted."""

    at_s: float
    order: JobOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A user asks something of the run."""

    at_s: float
    number: int  # rises with each request: a new root agent reads the old ones again
    request: AnyRequest  # the wish


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMachineComes:
    """The provider has no machine available."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A moment at which timeouts are checked."""

    at_s: float


HeardEvent = (
    events.Protected
    | events.CodeSeen
    | events.ShardRestored
    | events.IterationBegun
    | events.Iteration
    | events.Rewound
    | events.RewindFailed
    | events.WrongSums
    | events.VersionComplete
)
"""Workers' events that the root agent decides on; only these are sent to it."""

Happening = AgentJoined | AgentLost | FromAgent | JobSubmitted | Requested | NoMachineComes | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """A state to store; later instructions may be carried out only if that succeeded."""

    state: RootState


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """An order to send to an agent."""

    to: str
    order: RootOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """An event to emit."""

    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes:
    """A request for machines until `wanted` agents live; it replaces the one before."""

    wanted: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """An agent to disconnect, because it does not answer; it may join again."""

    node: str


Instruction = WriteState | Send | Emit | RequestNodes | HangUp
