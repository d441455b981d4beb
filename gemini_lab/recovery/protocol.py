"""What the root agent hears, what it has others do, and what it leaves to the next root.

All plain data: `RootAgent.handle` takes a happening and returns instructions.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from gemini_lab.log.events import AnyEvent
from gemini_lab.settings import Settings

Phase = Literal[
    "idle", "fencing", "inventory", "waiting", "rendezvous", "starting", "running", "finishing",
    "done", "failed",
]  # fmt: skip
ACTIVE: Final = frozenset({"fencing", "inventory", "waiting", "rendezvous", "starting", "running"})
RESTARTING: Final = frozenset({"fencing", "inventory", "waiting", "rendezvous", "starting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An agent is connected. `workers` maps its ranks to running or finished."""

    at_s: float
    node: str
    epoch: int = 0
    workers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """An agent is gone, and how that was noticed: connection or lease."""

    at_s: float
    node: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromAgent:
    """An agent said something."""

    at_s: float
    node: str
    message: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """The lab has work."""

    at_s: float
    job: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """The lab wants the run to end."""

    at_s: float
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went by."""

    at_s: float


Happening = NodeJoined | NodeLost | FromAgent | JobSubmitted | JobCancelled | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Store the state; what follows it may only be done when that succeeded."""

    state: "RunState"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Tell an agent."""

    to: str
    message: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Say an event."""

    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes:
    """Ask the operator for machines until `wanted` agents live."""

    wanted: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Close the connection to an agent that does not answer; it may join anew."""

    node: str


Instruction = WriteState | Send | Emit | RequestNodes | HangUp


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a new root needs to go on; plain JSON values in the store.

    Attributes:
        epoch: Rises with every restart; agents end workers of an older one.
        job: The job under way, as the lab wrote it.
        members: The node on each position.
        settings: What the workers' `protect` said; `None` before that.
        fingerprint: Of model, optimizer and world size, by which another model is recognised.
        rejected: Versions not to be tried again.
        bad_copies: (shard, version, node) that failed their checksums.
        restore_failures: How often each version (as text) failed to load.
        attempts: Workers that failed since the last new iteration.
        recoveries: Failures so far, this one included.
        recovery: What the recovery under way answers: cause, lost nodes, when it was detected.
        iteration: Newest finished iteration of all ranks.
    """

    phase: Phase = "idle"
    epoch: int = 0
    job: dict[str, Any] | None = None
    members: tuple[str | None, ...] = ()
    settings: dict[str, Any] | None = None
    fingerprint: str | None = None
    rejected: tuple[int, ...] = ()
    bad_copies: tuple[tuple[int, int, str], ...] = ()
    restore_failures: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    recoveries: int = 0
    recovery: dict[str, Any] | None = None
    iteration: int = 0

    @property
    def the_job(self) -> dict[str, Any]:
        """The job, where there is one for certain."""
        assert self.job is not None
        return self.job

    @property
    def ranks(self) -> range:
        """All ranks of the job."""
        return range(self.the_job["nodes"] * self.the_job["workers_per_node"])

    def read_settings(self) -> Settings:
        """The workers' settings; before `protect` told them, what the launcher was told."""
        return Settings.parse(self.settings or self.the_job["settings"])

    def to_json(self) -> dict[str, Any]:
        """The state as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "RunState":
        """The state that `to_json` gave."""
        return cls(**{
            **record,
            "members": tuple(record["members"]),
            "rejected": tuple(record["rejected"]),
            "bad_copies": tuple(tuple(copy) for copy in record["bad_copies"]),
        })  # fmt: skip


def in_order(nodes: Iterable[str]) -> list[str]:
    """Names in counting order: node-2 before node-10."""
    return sorted(nodes, key=lambda name: (len(name), name))
