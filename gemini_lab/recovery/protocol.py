"""What the root agent hears, what it has others do, and what it leaves to the next root.

All plain data: `RootAgent.handle` takes a happening and returns instructions.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from gemini_lab.log import events
from gemini_lab.log.events import (
    AnyEvent,
    RecoveryFinished,
    RecoveryStarted,
    RunFailed,
    RunFinished,
)
from gemini_lab.placement import Placement, Risk
from gemini_lab.recovery.messages import (
    ExecutedAs,
    FromAgentMessage,
    JobOrder,
    RootOrder,
    WorkerStatus,
)
from gemini_lab.recovery.plan import Copy, VersionId
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import Lineage

Phase = Literal[
    "idle",
    "fencing",
    "inventory",
    "waiting",
    "rendezvous",
    "starting",
    "running",
    "finishing",
    "done",
    "failed",
]
ACTIVE: Final = frozenset(
    {"fencing", "inventory", "waiting", "rendezvous", "starting", "running", "finishing"}
)
RESTARTING: Final = frozenset({"fencing", "inventory", "waiting", "rendezvous", "starting"})


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

    state: "RootState"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What the recovery under way answers.

    Attributes:
        cause: How the first failure was noticed.
        lost: The nodes that went, in the order in which that was noticed.
        at_s: When the first failure was noticed.
        since_s: Since when it is waited for what may come, on the clock of the root agent of now.
        reached: The newest version or finished iteration known before.
    """

    cause: str
    lost: tuple[str, ...]
    at_s: float
    since_s: float
    reached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """What a new root needs to go on; one JSON object in the store.

    Attributes:
        epoch: Rises with every restart; agents end workers of an older one.
        order: The job under way, as the lab submitted it.
        placed: Who sits where, and, once a worker's `protect` told the settings, who keeps what.
        settings: What the workers' `protect` said; `None` before that.
        fingerprint: Of model, optimizer and world size, by which another model is recognised.
        rejected: Versions in the persistent tier that do not load, and that a person let go.
        bad_copies: Those in memory that could not be used.
        left: What rewinds left behind; see `recovery.rewinds`.
        newest: The newest version that is known to have been whole.
        trained: The epoch in which workers were started last.
        rendezvous: Where these meet.
        silent: Nodes that were lost without a sign that their memory is gone.
        is_unsure: Whether versions may have become whole of which no root has heard: one was lost
            while workers ran.
        has_given_up: Whether a person let go of what the next plan waits for.
        let_go: The version from which to go on that a person has agreed to; -1 for none.
        given_up: Number of the last request to give up progress.
        attempts: Workers that failed since an iteration was finished, one done again included.
        errors: The script's own ones in this run, the newest last.
        offences: On which node each of them did, newest last.
        begun: The version with which workers were started last; 0 for none.
        barren: Where starts in a row failed that got no further; see `faults.has_got_further`.
        fruitless: Recoveries in a row, this one included, that were begun before the start that
            the last one made had got further.
        excluded: Nodes that are not used again because every attempt on them failed.
        wrong: Those that computed wrong sums: they are never used again.
        leaving: Nodes whose machines are to go, and whose ranks train there until they can move.
        holding: The one of them for which the ranks are stopping; empty for none.
        moved: Those whose ranks have moved, or do now: they too are used again only where there is
            no other.
        wanted: How many nodes a person wanted last; 0: as many as the job was submitted with.
        asked_size: Number of the last request for a size.
        size: With how many nodes training went on last; 0 before it has.
        resizing: How many nodes it is to have when the ranks have stopped; 0 where they do not.
        refused: Numbers of nodes with which the script cannot go on.
        resized_at_s: When it went on with another number last.
        growths: How often machines that came made it larger.
        none_come: Whether it is known, in the recovery under way, that no machine comes.
        is_unsettled: Whether agents keep versions of another number of ranks.
        asked_back: Number of the last request for a rewind, and how many there were.
        drains: Number of the last request for a drain.
        recoveries: Failures so far, this one included.
        trouble: What the recovery under way answers.
        said: The last recovery's end and the start of the one under way, or the newest of them: a
            root that is elected says them again, for they may not have been heard.
        iteration: Newest finished iteration of all ranks.
        ending: What is still to be said of the run's end; a root that is elected now says it.
        parting: With what the run ends once its newest version is saved.
        own: What a root agent of the user's own keeps, as JSON; see `GuidedRoot`.
        risk: What was seen of the machines' failures.
        shard_bytes: Of all ranks' shards the largest; 0 before it is known.
        later: The placement to which the one of now is on the way, once its copies are whole.
        placed_at_s: When copies were placed anew last; 0 for never.
        is_replacing: Whether the ranks are stopping for that.
        saved: The newest version that is known to be in the persistent tier and was neither left
            behind nor let go.
        saved_at_s: When it was begun, or the job was submitted.
        is_behind: Whether training went back behind what is there, and nothing was saved since.
        code: How this run executed the script's files last, by name.
        clock_s: What the clock of the root agent that wrote this said as it did; 0 in its own.
    """

    phase: Phase = "idle"
    epoch: int = 0
    order: JobOrder | None = None
    placed: Seats | None = None
    settings: Settings | None = None
    fingerprint: str | None = None
    rejected: tuple[VersionId, ...] = ()
    bad_copies: tuple[Copy, ...] = ()
    left: tuple[VersionId, ...] = ()
    newest: int = 0
    trained: int = 0
    rendezvous: str = ""
    silent: tuple[str, ...] = ()
    is_unsure: bool = False
    has_given_up: bool = False
    let_go: int = -1
    given_up: int = 0
    attempts: int = 0
    errors: tuple[str, ...] = ()
    offences: tuple[str, ...] = ()
    begun: int = 0
    barren: tuple[str, ...] = ()
    fruitless: int = 0
    excluded: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    holding: str = ""
    moved: tuple[str, ...] = ()
    wanted: int = 0
    asked_size: int = 0
    size: int = 0
    resizing: int = 0
    refused: tuple[int, ...] = ()
    resized_at_s: float = 0.0
    growths: int = 0
    none_come: bool = False
    is_unsettled: bool = False
    asked_back: tuple[int, int] = (0, 0)
    drains: int = 0
    recoveries: int = 0
    trouble: Trouble | None = None
    said: tuple[RecoveryStarted | RecoveryFinished, ...] = ()
    iteration: int = 0
    ending: RunFinished | RunFailed | None = None
    parting: RunFailed | None = None
    own: str = ""
    risk: Risk = field(default_factory=Risk)
    shard_bytes: int = 0
    later: Placement | None = None
    placed_at_s: float = 0.0
    is_replacing: bool = False
    saved: int = 0
    saved_at_s: float = 0.0
    is_behind: bool = False
    code: dict[str, ExecutedAs] = field(default_factory=dict)
    clock_s: float = 0.0

    def on_clock(self, at_s: float) -> "RootState":
        """The state for a root agent whose clock says this now, and may be another machine's.

        What is waited for goes on as if no time had passed since this was written: between two
        machines' clocks nobody knows how much did, and nothing is to be given up too early.
        """
        if not self.clock_s:
            return self
        ahead_s = at_s - self.clock_s
        trouble = self.trouble
        return replace(
            self,
            trouble=trouble and replace(trouble, since_s=trouble.since_s + ahead_s),
            resized_at_s=self.resized_at_s and self.resized_at_s + ahead_s,
            placed_at_s=self.placed_at_s and self.placed_at_s + ahead_s,
            clock_s=0.0,
        )

    @property
    def job(self) -> JobOrder:
        """The job, where there is one for certain."""
        assert self.order is not None
        return self.order

    @property
    def seats(self) -> Seats:
        """Who sits where, where there is a job for certain."""
        assert self.placed is not None
        return self.placed

    @property
    def seats_to_tell(self) -> Seats:
        """The same for workers: what is known of machines only as long as they choose."""
        return self.seats if self.seats.placement is None else replace(self.seats, risk=Risk())

    @property
    def members(self) -> tuple[str | None, ...]:
        """The node on each position; nobody without a job."""
        return () if self.placed is None else self.placed.members

    @property
    def avoided(self) -> frozenset[str]:
        """The nodes that are used only where there is no other."""
        return frozenset((*self.excluded, *self.moved))

    @property
    def goal(self) -> int:
        """How many nodes are to train."""
        return self.wanted or self.job.seats.nodes

    @property
    def ranks(self) -> range:
        """All ranks of the job."""
        return self.seats.ranks

    @property
    def lineage(self) -> Lineage:
        """The history in which versions are made now."""
        return Lineage(run=self.job.run, epoch=self.epoch)

    @property
    def recovery(self) -> int:
        """The number of the recovery under way; 0 is the first start."""
        return self.recoveries if self.trouble is not None else 0

    @property
    def is_disowning(self) -> bool:
        """Whether the run has failed, and its tier is yet to learn what counts no more."""
        ending = self.ending
        is_wrong = isinstance(ending, RunFailed) and ending.cause == "wrong_sums"
        return is_wrong and bool(self.left)

    @property
    def digests(self) -> dict[str, str]:
        """Those of the script's files, by name, as this run executed them last."""
        return {name: digest for name, (_, digest) in self.code.items()}

    def read_settings(self) -> Settings:
        """The workers' settings; before `protect` told them, what the launcher was told."""
        return self.settings or Settings.parse({**self.job.defaults, **self.job.settings})

    def to_text(self) -> str:
        """The state as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "RootState":
        """The state that `to_text` gave."""
        return msgspec.json.decode(text, type=cls)
