"""Happenings, which the root agent decides on, and instructions, which its shell carries out.

All are plain data: `RootAgent.handle` takes a happening and returns instructions.
"""

from dataclasses import dataclass, field

from gemini_lab.log import events
from gemini_lab.log.events import AnyEvent
from gemini_lab.recovery.messages import (
    FromAgentMessage,
    JobOrder,
    RootOrder,
    WorkerStatus,
)
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.recovery.root_state import RootState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An agent is connected; `epoch` is the newest that it knows, `workers` its ranks.

    Attributes:
        is_ready: Whether workers start there without waiting for imports.
        memory_bytes: What could be taken for copies there; 0 where it is not known.
        machine: The address of its machine, which it may share with others; empty if not known.
        wrong_sums: What its workers of the last start said of machines that compute wrong.
        left: What rewinds left behind, as its workers said.
    """

    at_s: float
    node: str
    epoch: int = 0
    workers: dict[int, WorkerStatus] = field(default_factory=dict)
    is_ready: bool = True
    memory_bytes: int = 0
    machine: str = ""
    wrong_sums: events.WrongSums | None = None
    left: tuple[VersionId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """An agent is gone, and how that was noticed.

    Attributes:
        cause: `"dead"`: its lease ran out, and its machine says that nothing listens there, so its
            memory is gone; `"refused"`, `"connection"`, `"lease"` or `"no answer"`: it fell silent,
            and may come back.
    """

    at_s: float
    node: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromAgent:
    """An agent said something."""

    at_s: float
    node: str
    message: FromAgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """The lab has work."""

    at_s: float
    order: JobOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A user asks something of the run.

    Attributes:
        number: Rises with each request: a new root agent reads the old ones again.
        request: The wish.
    """

    at_s: float
    number: int
    request: AnyRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMachineComes:
    """Who was asked for machines has none now."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went by."""

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
"""Of what workers say, the events on which the root agent decides: only these are sent to it."""

Happening = NodeJoined | NodeLost | FromAgent | JobSubmitted | Requested | NoMachineComes | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Store the state; what follows it may only be done when that succeeded."""

    state: RootState


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Tell an agent."""

    to: str
    order: RootOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Say an event."""

    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes:
    """Ask the operator for machines until `wanted` agents live; what was asked before is over."""

    wanted: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Close the connection to an agent that does not answer; it may join anew."""

    node: str


Instruction = WriteState | Send | Emit | RequestNodes | HangUp
