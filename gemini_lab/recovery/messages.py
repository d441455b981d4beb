"""Every message between the processes of a lab, each a frozen value; one encoder, one decoder.

    lab            <-> agent         the owner's orders; events, output and requests in return
    root agent     <-> agent         the steps of a restart, saving, and what workers say
    agent          <-> warm parent   forking, killing and reaping the node's workers
    agent          <-> own root      events of a recovery, and what the user's function decides
    agent          <-> bulk process  whatever touches every byte of a slab, or the persistent tier
    agent          <-> worker        memory for checkpoints; events, errors, the end of the script
    `gemini-lab`   <-> lab           failures on purpose, and the end of a run

In JSON a message is one object; `op` is the class's name in snake case. The decoder is strict: an
unknown op, an unknown or missing field or a value of the wrong type is refused with a
`MessageError` that names the message. What is said about the past carries its epoch, so that what
was said before a fence can be told from what came after it.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, Union

import msgspec

from gemini_lab import errors
from gemini_lab.errors import GeminiError, MessageError
from gemini_lab.injector.orders import Action
from gemini_lab.job import Job
from gemini_lab.limits import Count, Printed, Told, cut_told
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    Iteration,
    IterationBegun,
    OfWorker,
    Protected,
    VersionComplete,
    WrongSums,
)
from gemini_lab.placement.memory import BUFFERS
from gemini_lab.recovery.plan import PlanPart, Stored, Unclear, VersionId
from gemini_lab.recovery.requests import AnyRequest, Rising
from gemini_lab.recovery.told_seats import ToldRanks, ToldSeats
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.shard.layout import ShardLayout, ShardRecord
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage
from gemini_lab.units import LARGEST

JsonValue = object  # whatever JSON has
Doing = Literal[
    "starting", "meeting", "restoring", "step", "between steps", "paused", "held", "finishing"
]
"""What a worker's training thread does; `starting` until `protect` has returned."""
End = Literal["break", "data", "epoch", "loop", "script"]
"""What may be over on a rank; see `EndReached`."""
Epoch = Count
ExecutedAs = tuple[Epoch, str]
"""The epoch in which workers said that they execute a file, and its digest."""
Rank = Count
Status = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
"""A process's exit status; negative: the signal."""
Seed = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""A time, or a moment on a clock."""
FRAME_LIMIT_BYTES: Final = 64 * 2**20
"""Of a message, at most: `encode` makes no larger one, and nobody waits for one."""


def _op(name: str) -> str:
    """`TakeInventory` is `take_inventory` in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op", tag=_op
):
    """Anything that one process of a lab says to another."""

    def __post_init__(self) -> None:
        cut_told(self)


# -- greetings: the first thing that the opener of a connection says -------------------------------


class LabHello(Message, frozen=True, kw_only=True):
    """The lab's owner is here."""

    at_s: Seconds  # its clock, to which agents set their events
    owner: str  # who it is; another process has another name
    taken: Count  # messages of this agent that it has taken before, on connections that are gone
    process: str = ""  # its process, as `node.this_machine` names it; empty: not told


class RootHello(Message, frozen=True, kw_only=True):
    """The root agent of `term` is here, on the node `name`."""

    name: str
    term: Count


class ProbeHello(Message, frozen=True, kw_only=True):
    """`name` looks whether this agent lives, or how fast its link is, and hangs up."""

    name: str
    pieces: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0  # of `Filler` that it wants


class Filler(Message, frozen=True, kw_only=True):
    """Bytes that mean nothing: how long they take tells the speed of the link."""

    fill: Annotated[str, msgspec.Meta(max_length=2**20)]


class ControlHello(Message, frozen=True, kw_only=True):
    """A command wants the lab to act on its run."""


Hello = LabHello | RootHello | ProbeHello | ControlHello


# -- lab and agent ---------------------------------------------------------------------------------


class CloseLab(Message, frozen=True, kw_only=True):
    """To an agent: end, and leave nothing behind."""


class Inject(Message, frozen=True, kw_only=True):
    """To an agent: do to your own node what a failure does."""

    action: Action


class TakeStacks(Message, frozen=True, kw_only=True):
    """To the lab, and on to an agent: log the stacks of these ranks' threads; none: of all."""

    ranks: list[Rank] = []


class EventSaid(Message, frozen=True, kw_only=True):
    """An event of a node or of one of its workers."""

    entry: Entry  # what happened
    # The root agent's, if it is the root that says it: a deposed root's word counts no more.
    term: Count | None = None

    @property
    def epoch(self) -> int | None:
        """That of the worker who says it; `None` for the node's own."""
        event = self.entry.event
        return event.epoch if isinstance(event, OfWorker) else None

    @property
    def words(self) -> list[AnyEvent]:
        """The event, as `WordsSaid.words`."""
        return [self.entry.event]


class OutputSaid(Message, frozen=True, kw_only=True):
    """To the lab: lines that a worker printed."""

    rank: Rank
    epoch: Epoch
    lines: list[str]


class Flush(Message, frozen=True, kw_only=True):
    """To an agent: say `Flushed` behind all that you have said."""


class Flushed(Message, frozen=True, kw_only=True):
    """To the lab: what was said before your question lies before this."""


class NeedNodes(Message, frozen=True, kw_only=True):
    """To the lab: have the operator bring machines until `wanted` agents live.

    The newest such word counts: with a smaller number, fewer are brought than by the one before.
    """

    wanted: Count
    reason: Told


class Heard(Message, frozen=True, kw_only=True):
    """To an agent: so many of the messages that you sent to this owner are on disk."""

    messages: Count


# -- a command and the lab -------------------------------------------------------------------------


class Ask(Message, frozen=True, kw_only=True):
    """To the lab: a user's request to the run under way."""

    request: AnyRequest


class InjectFailure(Message, frozen=True, kw_only=True):
    """To the lab: make this failure happen; `failure` is `Failure.to_json`'s."""

    failure: dict[str, JsonValue]


class FollowLog(Message, frozen=True, kw_only=True):
    """To the lab: send the run's log from this byte on, as it grows, and what workers print."""

    from_bytes: Count


class LogSaid(Message, frozen=True, kw_only=True):
    """From the lab: the next whole lines of the log."""

    lines: str  # with their line breaks; none where all that the log had was sent before


class DescribeRun(Message, frozen=True, kw_only=True):
    """To the lab: say how the run under way is."""


class RunDescribed(Message, frozen=True, kw_only=True):
    """From the lab: how its run is."""

    phase: Told  # what it does, as people call it
    recoveries: Count  # so far
    nodes: Count  # how many agents live, standbys included
    wanted: Count  # nodes and standbys that its lab began with


class Done(Message, frozen=True, kw_only=True):
    """From the lab: what was done, in words."""

    text: Told


class Refused(Message, frozen=True, kw_only=True):
    """An error on its way to another process; `raise_again` raises it there as its own type."""

    error: Told
    text: Told

    @classmethod
    def of(cls, error: Exception) -> "Refused":
        """The message about `error`."""
        return cls(error=type(error).__name__, text=str(error))

    def to_error(self) -> GeminiError:
        """The error, as its own type where it is one of ours."""
        kind = getattr(errors, self.error, None)
        if isinstance(kind, type) and issubclass(kind, GeminiError):
            return kind(self.text)
        return GeminiError(f"{self.error}: {self.text}")


# -- what a job is to root, agents and workers -----------------------------------------------------


class JobOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A job as the lab submits it."""

    number: Count  # counts the lab's runs
    # The run's identity, 32 random bits: what it makes is told by it from all else.
    run: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    job: Job  # what every worker runs
    # How many nodes, standbys and workers; racks. Members are the root agent's to choose.
    seats: Seats
    # What the launcher was told; it replaces what the script's configuration says.
    settings: dict[str, SettingValue] = {}
    defaults: dict[str, SettingValue] = {}  # what the lab would have where neither says anything
    # Whether versions of other runs in the persistent tier are this run's to go on from.
    is_resumed: bool = False
    # The user's own function that decides recoveries, as text; empty for the lab's own.
    root: str = ""
    # With which each worker's interpreter starts, on every node and in every start: the order of a
    # set of texts follows it.
    hash_seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0

    @cached_property
    def launched_with(self) -> Settings:
        """The launcher's settings, which count until a script has called `protect`."""
        return Settings.parse({**self.defaults, **self.settings})

    def resumes_elsewhere(self, settings: Settings) -> bool:
        """Return whether a resumed run's script names another tier than its launcher did.

        Then the first plan was made without the versions there, and another one is needed.
        """
        known = Settings.layered(self.defaults, self.settings).persistent_url
        return self.is_resumed and settings.persistent_url != known


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of a worker's start."""

    rank: Rank  # who it is
    epoch: Epoch  # the restart that it belongs to
    order: JobOrder  # the job, and what the launcher was told
    seats: Seats  # who sits where in this epoch
    plan: PlanPart  # its node's part of what is loaded from where
    rendezvous: str  # `host:port` of the job's store
    # Of the model that the version is of; `None` before the first `protect`.
    fingerprint: str | None
    interface: str | None  # the network interface to the other nodes; `None` where it is not known
    kept: list[Rank] = []  # ranks whose processes go on; a new one among them joins these
    # Where those that train meet, if this process starts beside them: it makes itself ready with
    # what they tell of their set-up, and waits for its place; else empty.
    joins: str = ""
    # A folder for multiprocessing's sockets, which its agent removes once it has ended; empty where
    # there is none.
    scratch: str = ""
    code: dict[str, str] = {}  # as `StartWorkers.code`


class VersionMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that made a persistent version, as its manifest has it."""

    job: str
    lineage: Lineage
    fingerprint: str | None
    world_size: Count
    settings: dict[str, SettingValue]
    # What rewinds had left behind by then: a run that goes on from here knows it by this.
    left: list[VersionId] = []
    code: dict[str, str] = {}  # digests of the files of the script that made it, by name


# -- root agent to agent ---------------------------------------------------------------------------


class RootOrder(Message, frozen=True, kw_only=True):
    """An order that only the root agent of this epoch, or of a later one, may send."""

    epoch: Epoch


class Fence(RootOrder, frozen=True, kw_only=True):
    """End all workers; what belongs to older epochs counts no more."""

    keeps: bool = False  # whether those may go on that can stand still, and touch no memory
    ends: list[Rank] = []  # ranks, of all nodes, that may not


class TakeInventory(RootOrder, frozen=True, kw_only=True):
    """Say which copies of a run are whole in memory and, given a URL, what the tier has."""

    run: Count
    persistent_url: str | None = None
    asks_settings: bool = False  # whether to say by which settings they were made
    # Of workers' iterations after this one to say what they said: the root agent heard the others.
    words_after: Count = 0


class StartWorkers(RootOrder, frozen=True, kw_only=True):
    """Start the workers of your position; `plan` is your part of it."""

    order: JobOrder
    seats: ToldSeats
    plan: PlanPart
    rendezvous: str
    fingerprint: str | None
    kept: ToldRanks = []  # ranks, of all nodes, that go on in their processes
    joins: str = ""  # as `WorkerStart.joins`
    # Digests of the script's files that this run executed last, by name; what workers execute is
    # compared with that.
    code: dict[str, str] = {}


class Persist(RootOrder, frozen=True, kw_only=True):
    """Write shards of a version to the persistent tier when it is whole."""

    version: Count  # which
    url: str  # of the tier
    shards: list[Count] = []  # which of those that you keep; none named: your own
    # The history that it is of; None: the last one that had such a version.
    lineage: Lineage | None = None
    number: Count = 0  # counts the tries: an order that is repeated is told from one to try again


class Commit(RootOrder, frozen=True, kw_only=True):
    """Write the manifest: every member has written its shards. `number` as in `Persist`."""

    number: Count = 0
    version: Count
    url: str
    keep: Count
    records: list[ShardRecord]
    meta: VersionMeta


class Disown(RootOrder, frozen=True, kw_only=True):
    """Write into the persistent tier what training has gone back behind; `Disowned` answers."""

    url: str  # of the tier
    left: list[VersionId]  # as `RootState.left`


class Hold(RootOrder, frozen=True, kw_only=True):
    """Order to stop all workers when a version is whole; passed on to each of them.

    All ranks agree on the version: the word goes round with one.
    """


class CallRoll(RootOrder, frozen=True, kw_only=True):
    """Say whether your workers all live: a connection between workers broke."""


class GoBack(RootOrder, frozen=True, kw_only=True):
    """Order to rewind training; passed on to each worker.

    All ranks agree on the iteration at whose end they do: the word goes round with a version.
    """

    number: Rising  # which such order of the run this is, from 1
    steps: Count  # how many of the iterations that are done by then are taken back
    skip: bool  # whether their batches do not come again


class Flawed(Message, frozen=True, kw_only=True):
    """Compute wrong from now on, as a broken machine does; an injected failure, agent to worker."""

    # What a bit turns in: a gradient, what a layer gives on, an optimizer's result.
    where: Literal["gradient", "activation", "optimizer"]
    is_lasting: bool  # whether it turns each time, or once
    seed: Seed  # decides in which weight or layer


class CutLinks(Message, frozen=True, kw_only=True):
    """Close your connections to these ranks' workers, which are told the same; agent to worker.

    An injected failure.
    """

    ranks: list[Rank]


class Settle(RootOrder, frozen=True, kw_only=True):
    """Order to free the versions of every other world size."""

    ranks: Count


class Drained(RootOrder, frozen=True, kw_only=True):
    """Your node's ranks train elsewhere now: whoever waits for that may take the machine."""


class Preload(RootOrder, frozen=True, kw_only=True):
    """Order to import modules in a warm parent for the next start."""

    modules: list[str]
    environment: dict[str, str]


class Release(RootOrder, frozen=True, kw_only=True):
    """The run is over: end its workers, and give its memory back."""


class MeasureLink(Message, frozen=True, kw_only=True):
    """Measure the link to the agent of another machine."""

    node: str
    address: str  # where that agent listens, `host:port`


# -- agent to root agent ---------------------------------------------------------------------------


class Joined(Message, frozen=True, kw_only=True):
    """The first word to a new root: the newest epoch seen, and the ranks of its workers."""

    epoch: Epoch
    workers: list[Rank]  # those whose scripts have ended included: what they said comes next
    is_ready: bool  # whether workers start here without waiting for imports
    memory_bytes: Count = 0  # what could be taken for copies here, those that there are included
    # What workers of the last start said of machines that compute wrong; they stand still since.
    wrong_sums: WrongSums | None = None
    left: list[VersionId] = []  # what rewinds left behind, as workers here said


class ReadyToStart(Message, frozen=True, kw_only=True):
    """From now on workers start here without waiting for imports."""

    @property
    def epoch(self) -> None:
        """It holds in any."""


class Ailing(Message, frozen=True, kw_only=True):
    """This node's machine tells of a fault of its own, or no longer does."""

    fault: Told  # A key of `recovery.ailments.RULES`
    seen: Told  # the evidence, in words
    is_over: bool = False

    @property
    def epoch(self) -> None:
        """It holds in any."""


class NodeLeaves(Message, frozen=True, kw_only=True):
    """This node was told that its machine goes soon."""

    within_s: Seconds  # from now, the time that is left

    @property
    def epoch(self) -> None:
        """It holds in any."""


class Fenced(Message, frozen=True, kw_only=True):
    """No worker of an older epoch is left, but for those that stand still."""

    epoch: Epoch
    kept: list[Rank] = []  # their ranks
    # A port that this node holds, in which the epoch's ranks may meet; the worker that serves it
    # gets it as it starts. Empty if none could be opened.
    address: str = ""
    no_port: Told = ""  # why none could be opened


class DamagedCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete copy that differs from its checksums, first in `chunk`."""

    shard: Count
    version: Count
    lineage: Lineage
    chunk: Count


class KeptCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole copy whose checksums were verified just now, of a version that `ranks` made."""

    shard: Count
    version: Count
    lineage: Lineage = NO_LINEAGE
    ranks: Count = 0


class Inventory(Message, frozen=True, kw_only=True):
    """The copies in a node's memory, and the versions of the tier if it was asked for."""

    epoch: Epoch
    copies: list[KeptCopy]  # whole ones of the run; those of other runs are nobody's any more
    damaged: list[DamagedCopy]  # complete ones that differ from their checksums
    # The tier's versions; `None` where it was not asked for, or cannot be read.
    persistent: list[Stored] | None = None
    # Those of it that were saved and are not whole as this node sees them.
    unclear: list[Unclear] = []
    unread: Told = ""  # why it cannot be read
    disowned: list[VersionId] = []  # what training went back behind, as the tier says
    # By which settings the copies were made, where that was asked: a root that was elected before
    # any root could store them knows them from nowhere else.
    protected: Protected | None = None
    # What the node's workers said of their newest ones, so that this root too can compare with that
    # what is done again.
    iterations: list[IterationBegun | Iteration] = []
    left: list[VersionId] = []  # versions that rewinds left behind, as this node's workers said
    # How they execute the script's files, by name, as they said last.
    code: dict[str, ExecutedAs] = {}


class Persisted(Message, frozen=True, kw_only=True):
    """This node's own shards of a version are written."""

    epoch: Epoch
    version: Count
    lineage: Lineage
    records: list[ShardRecord]


class SaveFailed(Message, frozen=True, kw_only=True):
    """They, or the manifest, could not be written."""

    epoch: Epoch
    version: Count
    reason: Told


class Committed(Message, frozen=True, kw_only=True):
    """The version exists in the persistent tier."""

    epoch: Epoch
    version: Count
    size_bytes: Count


class Disowned(Message, frozen=True, kw_only=True):
    """The persistent tier says what was left behind, or why it does not."""

    epoch: Epoch
    versions: list[Count] = []  # those there that still count, oldest first
    reason: Told = ""  # why it could not be written; empty if it was


class OrderFailed(Message, frozen=True, kw_only=True):
    """An agent could not do what the root agent ordered: its machine lacks what that needs."""

    epoch: Epoch
    order: str  # the name of the order's class
    reason: Told  # what was tried, and why it failed


class ScriptError(Message, frozen=True, kw_only=True):
    """The exception with which a worker's script ended."""

    error: Told
    text: Told


class WorkerEnded(Message, frozen=True, kw_only=True):
    """A worker ended before its script had finished."""

    rank: Rank
    epoch: Epoch
    code: Status  # exit status; negative: the signal
    output: Printed  # its last lines
    error: ScriptError | None = None  # the exception, if its script ended with one


# -- agent and warm parent -------------------------------------------------------------------------


class Fork(Message, frozen=True, kw_only=True):
    """To the warm parent: fork a worker; its socket, output pipe and port, if any, come along."""

    start: WorkerStart


class KillWorkers(Message, frozen=True, kw_only=True):
    """To the warm parent: kill all workers, but for those of the ranks to spare."""

    epoch: Epoch
    spare: list[Rank] = []


class Preloaded(Message, frozen=True, kw_only=True):
    """A warm parent has imported what it was told to."""

    modules: Count  # how many are new
    seconds: Seconds  # how long that took
    problem: Told = ""  # why no workers may be forked from it; empty if they may


class ParentReady(Message, frozen=True, kw_only=True):
    """The warm parent has imported everything."""


class Forked(Message, frozen=True, kw_only=True):
    """A worker runs."""

    pid: Count
    rank: Rank
    epoch: Epoch


class Reaped(Message, frozen=True, kw_only=True):
    """A worker ended, or never began."""

    pid: Count  # 0 for one that never began
    rank: Rank
    epoch: Epoch
    code: Status
    reason: Told = ""  # why it did not; else empty


class Killed(Message, frozen=True, kw_only=True):
    """No worker is left, but for those that were to be spared."""

    epoch: Epoch


# -- worker and version maker: one question at a time, about memory that both have mapped ----------


class MakerReady(Message, frozen=True, kw_only=True):
    """A version maker has imported what it needs."""


class MakeVersion(Message, frozen=True, kw_only=True):
    """Make a version of the one before it, and of the difference that lies in the room."""

    base_bytes: Count  # where in the slab the version before begins
    into_bytes: Count  # where the new one is to begin
    payload_bytes: Count  # size of both
    chunk_bytes: Count  # what one checksum covers


class VersionMade(Message, frozen=True, kw_only=True):
    """It lies there; nobody has compared it with its owner's yet."""

    digests: list[int]  # checksums of its chunks, in order


# -- agent and bulk process: one question at a time; slabs come along as descriptors ---------------


class BulkReady(Message, frozen=True, kw_only=True):
    """A bulk process has imported what it needs."""


class BulkRequest(Message, frozen=True, kw_only=True):
    """An agent's question to a bulk process, which answers `Refused` if it failed."""


class SlotWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Room for one shard: the worker's own, or a replica of another's."""

    shard: Count
    payload_bytes: Count


class LayOutSlab(BulkRequest, frozen=True, kw_only=True):
    """Make a slab; the copies that fit come over from the old one, if that is given along."""

    slots: list[SlotWanted]
    chunk_bytes: Count
    buffers: Count = BUFFERS


class SlabLaidOut(Message, frozen=True, kw_only=True):
    """The new slab comes along."""


class InspectSlabs(BulkRequest, frozen=True, kw_only=True):
    """Read all copies of a run in these slabs, and compare them with their checksums."""

    run: Count  # whose
    ranks: Count = 0  # how many ranks made what is in them


class SlabsInspected(Message, frozen=True, kw_only=True):
    """Which copies are whole, and which complete ones are damaged."""

    copies: list[KeptCopy]
    damaged: list[DamagedCopy]


class FlipBit(BulkRequest, frozen=True, kw_only=True):
    """Flip one bit in the newest complete copy of `shard`, or of any, as failing memory does."""

    shard: Count | None
    bit: Count


class BitFlipped(Message, frozen=True, kw_only=True):
    """The flipped bit."""

    shard: Count
    version: Count
    byte: Count


class FreeSlabs(BulkRequest, frozen=True, kw_only=True):
    """Be the last to let these slabs go: to give GiBs back takes a while, too."""


class SlabsFreed(Message, frozen=True, kw_only=True):
    """Their memory is free."""


class WriteShards(BulkRequest, frozen=True, kw_only=True):
    """Write shards of a version to the persistent tier; `Persisted` answers."""

    order: Persist  # the version, and where to
    layouts: list[ShardLayout]  # of each shard that is to be written
    is_full: bool = False  # whether every write is to fail, as on a full disk


class WriteManifest(BulkRequest, frozen=True, kw_only=True):
    """Write the manifest of a version; `Committed` answers."""

    order: Commit


class WriteLeft(BulkRequest, frozen=True, kw_only=True):
    """Write what was left behind into the persistent tier; `Disowned` answers."""

    order: Disown


class ListVersions(BulkRequest, frozen=True, kw_only=True):
    """Say what the persistent tier at `url` has."""

    url: str


class VersionsListed(Message, frozen=True, kw_only=True):
    """The versions in the persistent tier."""

    # Those that count, oldest first; `None` where nobody looked.
    versions: list[Stored] | None = None
    unclear: list[Unclear] = []  # those that were saved and are not whole as this node sees them
    disowned: list[VersionId] = []  # what training went back behind, as it says


# -- worker and agent ------------------------------------------------------------------------------


class SlabRequest(Message, frozen=True, kw_only=True):
    """To the agent: give me the descriptor of my slab, made if it is not there yet."""

    slots: list[SlotWanted]  # the shards that it keeps, the worker's own first
    chunk_bytes: Count  # what one checksum covers
    buffers: Count = BUFFERS  # of each shard
    layout: ShardLayout  # what lies where in the worker's own shard
    # The same of the others, for when the agent alone can save them.
    replicas: list[ShardLayout] = []


class SlabGiven(Message, frozen=True, kw_only=True):
    """To the worker: the descriptor comes along."""


class OldSlabsWanted(Message, frozen=True, kw_only=True):
    """To the agent: give me all slabs that this node has of a job of so many ranks."""

    ranks: Count


class OldSlabsGiven(Message, frozen=True, kw_only=True):
    """To the worker: their descriptors come along, with what lies where in the shards in them."""

    layouts: list[ShardLayout]


class WordsSaid(Message, frozen=True, kw_only=True):
    """Words of a node's workers on an iteration, in order: one message in place of many."""

    epoch: Epoch
    words: list[IterationBegun | Iteration | VersionComplete]


class RankProtected(Message, frozen=True, kw_only=True):
    """A worker called `protect`, as one that runs with the settings that the root agent knows."""

    rank: Rank
    epoch: Epoch
    fingerprint: str  # as `Protected.fingerprint`


class RestoreFailed(Message, frozen=True, kw_only=True):
    """A copy could not be used."""

    rank: Rank
    epoch: Epoch
    shard: Count
    version: Count
    holder: str | None  # the node that has it; `None` for the persistent tier
    reason: Told
    # Whether the tier did not return it, which is no damage: it is asked again.
    is_unread: bool = False


class Held(Message, frozen=True, kw_only=True):
    """A worker has stopped as `Hold` asked: its last version is whole everywhere."""

    rank: Rank
    epoch: Epoch
    version: Count


class Stand(Message, frozen=True, kw_only=True):
    """Agent to worker: a rank is lost; break off what waits for it, and write no memory."""

    epoch: Epoch


class Stands(Message, frozen=True, kw_only=True):
    """The worker's answer."""

    rank: Rank
    epoch: Epoch
    reason: Told = ""  # why it cannot go on in this process; empty if it can


class ReadyToJoin(Message, frozen=True, kw_only=True):
    """A worker that was started beside those that train could take its place."""

    rank: Rank
    epoch: Epoch


class Severed(Message, frozen=True, kw_only=True):
    """A worker's connection to others broke, and it has not heard that any of them is lost."""

    rank: Rank
    epoch: Epoch


class AllLive(Message, frozen=True, kw_only=True):
    """The answer to `CallRoll`; none comes where a worker has ended, but word of its end."""

    epoch: Epoch


class GoOn(Message, frozen=True, kw_only=True):
    """Agent to worker: go on from the version of this plan; the port to serve may come along."""

    start: WorkerStart


class EndReached(Message, frozen=True, kw_only=True):
    """A worker has come to an end after an iteration; if other ranks train on, it is too early."""

    rank: Rank
    epoch: Epoch
    iteration: Annotated[int, msgspec.Meta(ge=0)]  # the newest that it has done
    # What is over: a pass through its data, an epoch for which it waits for the others, its loop,
    # its script. A loop that was broken off may have been so by an error.
    what: End


class ScriptFinished(Message, frozen=True, kw_only=True):
    """A worker's script has ended as it should."""

    rank: Rank
    epoch: Epoch


class Entered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest collective of a process group that a rank has entered."""

    group: Told  # the group's name in PyTorch, the same on all its ranks
    number: Count = 0  # counts the group's collectives from 1; 0 if the rank has entered none
    what: Told = ""  # the operation, and the type and size of its first tensor
    waits: bool = False  # whether the rank is still in it

    def __post_init__(self) -> None:
        cut_told(self)


class WorkerPulse(Message, frozen=True, kw_only=True):
    """A worker's pulse, once a second; its agent passes on what matters."""

    rank: Rank
    epoch: Epoch
    doing: Doing = "starting"
    detail: Told = ""  # why it is paused, or where it restores from
    calls: Count = 0  # collectives that it has called in this iteration, where they are watched
    # Since it last got on: with an update, a collective, a chunk of a version.
    still_s: Seconds = 0.0
    # Since it last did anything at all: got on, ran another line, used a processor.
    idle_s: Seconds = 0.0
    waits_in: Told = ""  # the collective in which it is; empty if in none
    # Its newest collective of each process group, as PyTorch's flight recorder has them; empty
    # while the worker makes progress.
    entered: list[Entered] = []
    where: Told = ""  # its place in the script
    # The file for which it waits to compile an extension of PyTorch's, or which it holds while it
    # compiles; empty if there is none.
    lock: Told = ""
    compiles: bool = False  # whether it holds that
    # Whether it waits for another program that it runs, such as a compiler, or for `torch.compile`.
    runs_other: bool = False
    silent_s: Seconds = 0.0  # the agent's: since the worker's last word, where that is long
    is_stopped: bool = False  # the agent's: whether the silent process is stopped, as by SIGSTOP


FromAgentMessage = (
    Fenced
    | Inventory
    | OrderFailed
    | Persisted
    | SaveFailed
    | Committed
    | Disowned
    | WorkerEnded
    | EndReached
    | ScriptFinished
    | Held
    | Severed
    | AllLive
    | Ailing
    | NodeLeaves
    | ReadyToStart
    | ReadyToJoin
    | RankProtected
    | RestoreFailed
    | WorkerPulse
    | WordsSaid
    | EventSaid
)
"""What the root agent hears from an agent that has joined."""


# -- bytes -----------------------------------------------------------------------------------------


def _leaves(kind: type[Message]) -> list[type[Message]]:
    """All classes of messages that are said, below `kind`."""
    below = [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]
    return below or [kind]


MESSAGES: Mapping[str, type[Message]] = {
    str(kind.__struct_config__.tag): kind for kind in _leaves(Message)
}
"""Every message by its `op`."""

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(
    Union[tuple(MESSAGES.values())]  # noqa: UP007 - made at run time
)


def encode(message: Message, most_bytes: int = FRAME_LIMIT_BYTES) -> bytes:
    """The message as one line of JSON, without the line break.

    Raises:
        MessageError: It is larger than anybody reads: who sends it has not begun to.
    """
    line = _ENCODER.encode(message)
    require_size(len(line), line, most_bytes)
    return line


def require_size(
    size_bytes: Count, line: bytes | bytearray | memoryview, most_bytes: int = FRAME_LIMIT_BYTES
) -> None:
    """Refuse a message that is larger than it may be.

    Args:
        size_bytes: The message's.
        line: Its first bytes, or all of them.
        most_bytes: How many it may have.

    Raises:
        MessageError: It is; the error names the message as far as that is known.
    """
    if size_bytes > most_bytes:
        raise MessageError(
            f"a {name_in(line)} of {size_bytes:,} bytes is larger than a message may be, which is "
            f"{most_bytes:,}; it is left out"
        )


def name_in(line: bytes | bytearray | memoryview) -> str:
    """Return which message a line seems to be, by its first bytes."""
    found = re.search(rb'"op":\s*"([a-z_]{1,40})"', bytes(line[:4096]))
    return found[1].decode() if found else "message"


def decode(line: bytes | bytearray | memoryview) -> Message:
    """The message that `encode` gave as `line`.

    Raises:
        MessageError: It is none, or has other fields than its kind has.
    """
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, ValueError) as error:
        raise MessageError(
            f"cannot read a {name_in(line)} ({error}); do all nodes run the same gemini_lab?"
        ) from error
