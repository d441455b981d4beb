"""The events of a run: one frozen class a kind, shared by all parts of a run and the simulator.

Who says an event builds the event alone. When it happened and on which node is added by whoever
owns the clock and the name: see `gemini_lab.log.entry.Entry`. A kind is a class's name in lower
case with underscores: `RootElected` is `"root_elected"`.
"""

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import msgspec

from gemini_lab.errors import LONGEST
from gemini_lab.limits import PrintedLine, Told, cut_told
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.placement import Placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings, SettingValue

SCHEMA: Final = 2
"""The version of these classes that a log is written with; it rises when one of them changes."""

Moment = Annotated[float, msgspec.Meta(extra={"is_moment": True})]
"""A point in time: seconds since the epoch (Unix time) in real runs, since the start in simulated
ones. `entry.shifted` moves fields of this type, and no others, to another machine's clock."""

Lines = Annotated[str, msgspec.Meta(extra={"most": LONGEST, "has_lines": True})]
"""A text for people of one line or more; in every other text of a log a line end is no letter."""

Number = float | Literal["nan", "inf", "-inf"]
"""A number in a log; JSON has no word of its own for those that are not finite."""

DIFFERENCES: Final = {
    "order": "iteration number",
    "random": "random state",
    "learning_rate": "learning rate",
}
"""What `Diverged.differs` means in words, where it is not a word itself."""

DRAIN: Final = "drain"
"""The `RecoveryStarted.cause` where nothing failed: `lost` leaves, and its ranks move."""

RESIZE: Final = "resize"
"""The same where ranks stopped because the run goes on with another number of nodes."""

REPLICAS: Final = "replicas"
"""The same where ranks stopped because copies are placed anew."""

PLANNED: Final = frozenset({DRAIN, RESIZE, REPLICAS})
"""The causes for which nothing failed."""

LISTED: Final = 8
"""So many names at most are told in a line."""

UNSAID: Final = -1
"""The rank and epoch of a worker's event whose session has not spoken yet; no log has it."""


def _kind_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=_kind_of,
    gc=False,  # no event is part of a cycle, and a log has millions
):
    """One thing that happened."""

    def __post_init__(self) -> None:
        cut_told(self)

    @property
    def kind(self) -> str:
        """Its kind, as the log names it."""
        return str(self.__struct_config__.tag)


class OfWorker(Event, frozen=True, kw_only=True):
    """Something about one worker; what it says itself has rank and epoch from its session.

    Attributes:
        rank: The worker's.
        epoch: The worker's; it rises with every restart.
    """

    rank: int = UNSAID
    epoch: int = UNSAID


class OfRecovery(Event, frozen=True, kw_only=True):
    """Something about one recovery.

    Attributes:
        recovery: Its number, from 1; 0 is the job's first start.
        epoch: That of the workers that it starts.
    """

    recovery: int
    epoch: int


# -- the log, the lab and its nodes ----------------------------------------------------------------


class LogOpened(Event, frozen=True, kw_only=True):
    """The log begins; its first line.

    Attributes:
        schema: The version of the classes that its lines are made of.
    """

    schema: int


class LabStarted(Event, frozen=True, kw_only=True):
    """The lab's nodes are up.

    Attributes:
        nodes: Machines that train.
        standbys: Machines that wait to take a lost one's place.
        names: Of all nodes.
        root: Name of the node with the root agent, if there is one yet.
        etcd: Addresses of the store.
    """

    nodes: int
    standbys: int
    names: tuple[str, ...]
    root: str | None
    etcd: tuple[str, ...] = ()


class NodeJoined(Event, frozen=True, kw_only=True):
    """The root agent is connected to a node's agent.

    Attributes:
        name: The node's.
    """

    name: str


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection that carries a node's traffic.

    Attributes:
        address: The node's, on which it listens.
        interface: What has that address; `None` where it is not known.
        bytes_per_s: What the interface says of its speed; 0 where it says nothing.
        faster: Interfaces that are up, have an address, and say that they are faster.
    """

    address: str
    interface: str | None = None
    bytes_per_s: float = 0.0
    faster: tuple[str, ...] = ()


class NodeReady(Event, frozen=True, kw_only=True):
    """A node's warm parent has imported what workers need.

    Attributes:
        name: The node's.
        import_s: How long that took.
        network: What carries the node's traffic; `None` in older logs.
    """

    name: str
    import_s: float
    network: Network | None = None


class NodeLost(Event, frozen=True, kw_only=True):
    """A node is gone.

    Way out: None is needed while a standby is left; `gemini-lab status` shows the standbys.

    Attributes:
        name: The node's.
        cause: How that was noticed: `"refused"` (its machine lets nobody connect to its agent),
            `"connection"`, `"lease"`, `"no answer"` or `"dead"`; simulated ones say what broke.
    """

    name: str
    cause: str


class NodeExcluded(Event, frozen=True, kw_only=True):
    """A node is not used again, but where there is no other; one that computed wrong never is.

    Way out: Look at that machine; the reason names what it lacked or what it computed wrong.

    Attributes:
        name: The node's.
        reason: How the last attempt on it ended, or what it computed wrong.
    """

    name: str
    reason: Told


class NodeLeaving(Event, frozen=True, kw_only=True):
    """A node's machine is to go: its ranks move as soon as they can.

    Attributes:
        name: The node's.
        within_s: The time that it has from now; `None` where a person asked and set none.
    """

    name: str
    within_s: float | None = None


class DrainWaiting(Event, frozen=True, kw_only=True):
    """A node's ranks cannot move yet; it trains on.

    Way out: Start one more machine, or wait: the ranks move as soon as a standby is ready.

    Attributes:
        name: The node's.
        reason: What is waited for, for people.
        is_given_up: Whether they will not move before another request.
    """

    name: str
    reason: Told
    is_given_up: bool = False


class NodeDrained(Event, frozen=True, kw_only=True):
    """A node that was to go has no ranks left: its machine may be taken.

    Attributes:
        name: The node's.
    """

    name: str


class ResizeWanted(Event, frozen=True, kw_only=True):
    """A user wants the run to have another number of nodes.

    Attributes:
        nodes: How many.
    """

    nodes: int


class ResizeWaiting(Event, frozen=True, kw_only=True):
    """The run is not the size that it is to be, and cannot be now; it trains on.

    Way out: Start the machines that are missing; the run trains on until they have joined.

    Attributes:
        nodes: How many nodes it is to have.
        reason: What stands against it, or is waited for, for people.
    """

    nodes: int
    reason: Told


class Resized(Event, frozen=True, kw_only=True):
    """Training continues with another number of nodes.

    Attributes:
        nodes_then: How many there were.
        nodes: How many there are.
        wanted: How many it is to be; more than `nodes` where machines are short.
        iteration: The first that they finished.
    """

    nodes_then: int
    nodes: int
    wanted: int
    iteration: int

    def __str__(self) -> str:
        more = f" ({self.wanted} are wanted)" if self.wanted != self.nodes else ""
        return (
            f"{self.nodes} nodes in place of {self.nodes_then} from iteration "
            f"{self.iteration} on{more}"
        )


class ResizeRefused(Event, frozen=True, kw_only=True):
    """The run cannot have this number of nodes; it is not tried again.

    Way out: Do what the reason says, such as setting another batch, or ask for another number
    of nodes.

    Attributes:
        nodes: How many.
        reason: What a worker said, for people.
    """

    nodes: int
    reason: Told

    def __str__(self) -> str:
        return f"{self.nodes} nodes are refused"


class ReplicasPlaced(Event, frozen=True, kw_only=True):
    """Other nodes keep copies than before, because the risk has changed.

    Attributes:
        placement: Who keeps whose shards from now on, by position.
        added: The position of each shard that gets a copy, and the node that is to keep it.
        dropped: The same of copies that are not kept any more.
        loss_chance_then: That memory does not suffice within the horizon, as copies were.
        loss_chance: The same as they are now.
        reason: What has changed, for people.
    """

    placement: Placement
    added: tuple[tuple[int, str], ...]
    dropped: tuple[tuple[int, str], ...]
    loss_chance_then: float
    loss_chance: float
    reason: Told

    def __str__(self) -> str:
        moves = [f"+{len(self.added)}"] if self.added else []
        moves += [f"-{len(self.dropped)}"] if self.dropped else []
        return f"copies are placed anew ({', '.join(moves)}): {self.reason}"


class ReplicasShort(Event, frozen=True, kw_only=True):
    """Copies follow the risk, and what there is cannot reach the target; training goes on.

    Way out: Raise `replica_memory`, add nodes, or lower `survival_target`.

    Attributes:
        loss_chance: That memory does not suffice within the horizon.
        reason: What stands against more, for people.
    """

    loss_chance: float
    reason: Told


class NodeRequested(Event, frozen=True, kw_only=True):
    """The operator was asked for a machine.

    Attributes:
        reason: What it is for, for people.
    """

    reason: Told


class LinkCut(Event, frozen=True, kw_only=True):
    """A connection between root agent and agent broke, but came back.

    Attributes:
        peer: Name of the agent's node.
    """

    peer: str


class RootElected(Event, frozen=True, kw_only=True):
    """A node's agent is the root agent now.

    Attributes:
        name: The node's.
        term: How many root agents there have been, this one included.
    """

    name: str
    term: int


class LabClosed(Event, frozen=True, kw_only=True):
    """All processes of the lab ended."""


# -- a run -----------------------------------------------------------------------------------------


class Simulated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The assumptions of a simulated run.

    Attributes:
        policy: The policy's name.
        source: Where the policy is described.
        assumptions: What it takes for granted, for people.
        gpus_per_node: GPUs that count as one worker.
    """

    policy: str
    source: str
    assumptions: str
    gpus_per_node: int


class RunStarted(Event, frozen=True, kw_only=True):
    """A job was submitted.

    Attributes:
        name: The job's.
        script: Path of a Python file, or the name of a module if `module`; `None` if simulated.
        args: The script's arguments.
        module: Whether `script` is run as `python -m` does.
        nodes: Positions that train.
        standbys: Machines that wait.
        workers_per_node: Ranks on each position.
        racks: The rack of each position, if there are any.
        settings: What the launcher was told; `Protected` has all settings.
        placement: Who keeps whose shard, where that is known before workers run: in simulations.
        simulated: What is assumed, if this is a simulation.
        made_with: Versions of what the lab runs with, by name, and the script's `"commit"`.
    """

    name: str
    script: str | None
    args: tuple[str, ...] = ()
    module: bool = False
    nodes: int
    standbys: int = 0
    workers_per_node: int = 1
    racks: tuple[str, ...] | None = None
    settings: dict[str, SettingValue] = {}
    placement: Placement | None = None
    simulated: Simulated | None = None
    made_with: dict[str, str] = {}


class RunFinished(Event, frozen=True, kw_only=True):
    """Every worker finished its script.

    Attributes:
        iteration: The last one.
    """

    iteration: int


FailureCause = Literal[
    "script", "divergence", "not_finite", "wrong_sums", "machines", "owner", "notice"
]
"""Why a run was given up: its script raised an error of its own, did not repeat itself, or made no
numbers; a machine computed wrong; what it ran on went away; a person ended it; it was told to end
soon, as batch systems do."""


class RunFailed(Event, frozen=True, kw_only=True):
    """The run was given up.

    Way out: The exit code says whether the same command with `--resume` helps.

    Attributes:
        reason: Why, in a sentence.
        cause: The same for programs.
        output: The last lines that the worker printed because of which it was given up.
    """

    reason: Lines
    cause: FailureCause = "machines"
    output: tuple[PrintedLine, ...] = ()


class Protected(OfWorker, frozen=True, kw_only=True):
    """A worker called `protect`.

    Attributes:
        shard_bytes: Size of the rank's shard.
        fingerprint: Of model, optimizer and number of ranks; another one is another job.
        settings: All that the job runs with.
        placement: Who keeps whose shard, by position; rank 0 says it for all. A log has it once,
            and again when it has changed; `None` says nothing new.
    """

    shard_bytes: int
    fingerprint: str
    settings: Settings
    placement: Placement | None = None


class Unprotected(OfWorker, frozen=True, kw_only=True):
    """A worker's script ended and never called `protect`.

    Way out: Start the script by `gemini-lab run` to protect it.
    """


class CodeSeen(OfWorker, frozen=True, kw_only=True):
    """A worker executes files of the script that no start of this run had executed so before.

    Way out: Restore the named file, or go on: `"on_code_change": "stop"` ends a run instead.

    Attributes:
        files: Their digests, by name.
        changed: Those that were executed before, and are not the same now.
    """

    files: dict[str, str]
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = len(self.changed) - LISTED
        names = ", ".join(self.changed[:LISTED]) + (f" and {more} more" if more > 0 else "")
        was = "was" if len(self.changed) == 1 else "were"
        return f"{names} {was} edited since the last start: workers execute other code now"


# -- training --------------------------------------------------------------------------------------


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs of a rank's iteration; with equal weights, equal inputs give equal numbers.

    Attributes:
        batch: Checksum of what entered its first forward pass.
        random: Checksum of each random generator's state at that moment: Python's, NumPy's,
            torch's, and the device's where that is no CPU.
        learning_rate: That of the first group of weights; `None` where it is not known.
        ranks: How many there are, each with a part of the data; 0 where an older log has it not.
    """

    batch: str
    random: dict[str, str]
    learning_rate: float | None = None
    ranks: int = 0


class IterationBegun(OfWorker, frozen=True, kw_only=True):
    """The first forward pass of an iteration began; on a GPU the event comes when the device has.

    Attributes:
        iteration: Its number, from 1.
        inputs: With what.
    """

    iteration: int
    inputs: Inputs


class Iteration(OfWorker, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer step ended.

    Attributes:
        iteration: Its number, from 1.
        duration_s: Since the end of the step before.
        waited_s: How much of that was spent waiting for the version on its way.
        values: What the script logged, such as `"loss"`, and the engine's `"grad_norm"`; read
            numbers with `value`.
        restored: Whether this repeats what a version says of its last iteration, for the case that
            the node that computed it is gone.
        of: Updates after which the script's loop ends, `protected.steps(of)`; told once by each
            worker, and again when it has changed.
    """

    iteration: int
    duration_s: float
    waited_s: float
    values: dict[str, Number] = {}
    restored: bool = False
    of: int | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(number, str) or isfinite(number) for number in self.values.values()):
            told = {name: _as_number(float(number)) for name, number in self.values.items()}
            msgspec.structs.force_setattr(self, "values", told)

    def value(self, name: str) -> float | None:
        """The value that was logged as `name`, to the bit; `None` if there is none."""
        number = self.values.get(name)
        return None if number is None else float(number)


class Diverged(OfWorker, frozen=True, kw_only=True):
    """An iteration that was done again after a recovery is not what it was before.

    Way out: Run `gemini-lab check` on the script, and hand over what it names in `also` or
    `client_state`.

    Attributes:
        iteration: Its number.
        differs: What differs first: `"order"` (another iteration was expected), `"batch"`,
            `"random"`, `"learning_rate"`, or the name of a value such as `"loss"`.
        before: What it was, to the bit.
        after: What it is now.
        cause: What is likely to be behind it, for people.
    """

    iteration: int
    differs: Told
    before: Told
    after: Told
    cause: Told

    def __str__(self) -> str:
        what = DIFFERENCES.get(self.differs, self.differs)
        return (
            f"rank {self.rank}, iteration {self.iteration}: {what} {self.after} now, "
            f"{self.before} before the failure"
        )


class LossNotFinite(OfWorker, frozen=True, kw_only=True):
    """Losses are no numbers any more: weights may hold NaN or infinity, and every later version.

    Way out: Set `"on_not_finite": "rewind"` to skip such batches, or `"stop"` to end the run.

    Attributes:
        iteration: The first of which that is known.
        loss: `"nan"`, `"inf"` or `"-inf"`.
        is_held: Whether no version goes to the persistent tier until it is over.
    """

    iteration: int
    loss: str
    is_held: bool

    def __str__(self) -> str:
        return f"rank {self.rank}, iteration {self.iteration}: the loss is {self.loss}"


class LossFinite(OfWorker, frozen=True, kw_only=True):
    """All losses are numbers again.

    Attributes:
        iteration: The first in which they are.
    """

    iteration: int


class Rewound(OfWorker, frozen=True, kw_only=True):
    """Training went back to a version in memory, on all ranks together; no process was started.

    Attributes:
        iteration: The newest that had ended; those from `version` on were taken back.
        version: To which it went back.
        rewinds: How often that has happened since the workers were started, this time included.
        skips: Whether data go on: the batches of the iterations that were taken back do not come
            again. What these were, `iteration_begun` says.
        cause: Who wanted it: the script, the guard that the settings ask for, or a person.
        reason: Why, for people.
        duration_s: From the top of the script's loop until the state was back.
    """

    iteration: int
    version: int
    rewinds: int
    skips: bool
    cause: Literal["script", "guard", "person"]
    reason: Told = ""
    duration_s: float

    def __str__(self) -> str:
        why = f"{self.reason}: " if self.reason else ""
        taken = self.iteration - self.version
        if not taken:
            return f"{why}back to version {self.version}"
        which, batches = f"iteration {self.iteration} is", "its batch is" if self.skips else ""
        if taken > 1:
            which = f"iterations {self.version + 1} to {self.iteration} are"
            batches = "their batches are" if self.skips else ""
        data = f"{batches} skipped" if self.skips else "the same data come again"
        return f"{why}back to version {self.version}; {which} taken back, {data}"


class RewindFailed(OfWorker, frozen=True, kw_only=True):
    """No memory has a version that training could go back to.

    Way out: Raise `keep_in_memory`, or start again with `--resume` from the persistent tier.

    Attributes:
        iteration: The newest that had ended.
        cause: Who wanted it: the guard, and then the run ends, or a person.
        reason: Why it was wanted, and what there was to go back to, for people.
    """

    iteration: int
    cause: Literal["guard", "person"]
    reason: Told


class UpdatesUnkept(OfWorker, frozen=True, kw_only=True):
    """The weights change, and not by updates of the optimizer that is protected.

    Way out: Give `protect` the optimizer that trains, after it has been made for the last time.

    Attributes:
        version: The newest; none is made of these changes.
        optimizer: The class of the protected one.
        by: What changes them, for people.
        ends: Whether the run ends if that goes on, as `on_unkept_updates` says.
    """

    version: int
    optimizer: str
    by: str
    ends: bool

    def __str__(self) -> str:
        then = "; the run ends if that goes on" if self.ends else ""
        return (
            f"training is not protected: since version {self.version} the weights are changed by "
            f"{self.by} and not by the {self.optimizer} that `protect` was given, and no version "
            f"is made of that{then}; give `protect` the optimizer that trains, and make no other "
            "one for its weights afterwards"
        )


class SumsVerified(OfWorker, frozen=True, kw_only=True):
    """An iteration was computed again on other machines, and all computed the same; rank 0 says it.

    Attributes:
        iteration: Its number.
        replays: How often it was computed again.
        duration_s: How much longer it took for that.
    """

    iteration: int
    replays: int
    duration_s: float


class WrongSums(OfWorker, frozen=True, kw_only=True):
    """Machines came to different numbers with the same work: one of them computes wrong.

    All ranks say it alike.

    Way out: Have the named machine examined; with `"on_wrong_sums": "drain"` a standby has
    replaced it.

    Attributes:
        iteration: That was computed again.
        work: What came out differently: the gradients, or what the optimizer made of them.
        ranks: Whose.
        nodes: The machines that compute wrong, for certain.
        suspects: Of these nodes at least one does besides, and which cannot be told.
        replays: How often it was computed again.
        version: The newest one that is verified.
        goes_back: Whether training goes back there, and later versions are void.
        rewinds: How often training had gone back since the workers were started.
    """

    iteration: int
    work: Literal["gradient", "update"]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    suspects: tuple[str, ...]
    replays: int
    version: int
    goes_back: bool
    rewinds: int

    def __str__(self) -> str:
        what = "gradients" if self.work == "gradient" else "optimizer's update"
        told = [f"{', '.join(self.nodes)} computed wrong"] if self.nodes else []
        if self.suspects:
            told.append(f"which of {', '.join(self.suspects)} computed wrong cannot be told")
        ranks = ", ".join(map(str, self.ranks))
        return f"iteration {self.iteration}, {what} of rank {ranks}: {'; '.join(told)}"


class VersionComplete(OfWorker, frozen=True, kw_only=True):
    """A rank's shard, and the replicas that it receives, are whole.

    Attributes:
        version: The iteration after which the states were so.
        sent_bytes: What left for other nodes.
        local_s: How long the copy into the node's own memory took.
        duration_s: From the update until all ranks knew that all was whole.
        next_version: The next one that will be sent.
        form: What left: the shard, or the gradient of which peers made it, see `"replicate"`.
        whole_s: From the update until all that this rank writes was whole: what a recovery needs.
    """

    version: int
    sent_bytes: int
    local_s: float
    duration_s: float
    next_version: int
    form: Literal["copy", "gradients"] = "copy"
    whole_s: float | None = None


class ReplicaDiffered(OfWorker, frozen=True, kw_only=True):
    """A version made of a gradient differed from its owner's, and was sent in full instead.

    Way out: None is needed: the part was sent in full. If it repeats, examine that machine's
    memory.

    Attributes:
        shard: The owner's.
        version: Which version of it.
        reason: What was seen, for people.
    """

    shard: int
    version: int
    reason: Told


class GradientsGivenUp(Event, frozen=True, kw_only=True):
    """Shards are sent in full from here on, until the workers' next start.

    Way out: None is needed: versions are sent as copies until workers start again.

    Attributes:
        version: The newest that was not.
        reason: Why, for people.
    """

    version: int
    reason: Told


class Transfer(OfWorker, frozen=True, kw_only=True):
    """Chunks of a version left for a peer, in one idle span or in the background.

    Attributes:
        version: Of what.
        span: Number of the idle span; `None` for none.
        peer: Rank that received them.
        sent_bytes: All of them together.
        start_s: When the first one began to leave.
        end_s: When the last one had arrived.
    """

    version: int
    span: int | None
    peer: int
    sent_bytes: int
    start_s: Moment
    end_s: Moment


class Profiled(OfWorker, frozen=True, kw_only=True):
    """The ranks agreed on a profile, and on the chunks to follow it.

    Attributes:
        profile: When the network is idle: the mean of all ranks.
        schedule: Which chunk goes into which idle span, on this rank.
        calibration: The wire, as it was measured.
    """

    profile: Profile
    schedule: ChunkSchedule
    calibration: Calibration


class Call(NamedTuple):
    """One training collective.

    Attributes:
        name: Of the operation in torch.distributed.
        size_bytes: Of the full tensor.
        start_s: When it was called, since the iteration began.
        end_s: When its result was there, since the iteration began.
    """

    name: str
    size_bytes: int
    start_s: float
    end_s: float


class Collectives(OfWorker, frozen=True, kw_only=True):
    """The training collectives of one iteration: most of a log, and so in few bytes.

    Attributes:
        iteration: Its number.
        began_s: When it began.
        kinds: Operation in torch.distributed and bytes of the full tensor, each pair once.
        order: Of each call, in the order of calling, its kind: an index.
        gaps_us: From the call before it (of the first: from the beginning), in microseconds.
        durations_us: Until its result was there, in microseconds.
    """

    iteration: int
    began_s: Moment
    kinds: tuple[tuple[str, int], ...]
    order: tuple[int, ...]
    gaps_us: tuple[int, ...]
    durations_us: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.order) == len(self.gaps_us) == len(self.durations_us):
            raise ValueError("order, gaps_us and durations_us are not of one length")
        if self.order and not 0 <= min(self.order) <= max(self.order) < len(self.kinds):
            raise ValueError("order names a kind that is not there")

    @classmethod
    def of(cls, calls: Iterable[Call], **said: Any) -> Self:
        """The event of these calls, in the order of calling.

        Args:
            calls: Times are rounded to microseconds.
            said: The other fields.
        """
        kinds: dict[tuple[str, int], int] = {}
        order, gaps_us, durations_us, last_us = [], [], [], 0
        for call in calls:
            order.append(kinds.setdefault((call.name, call.size_bytes), len(kinds)))
            start_us = round(call.start_s * 1e6)
            gaps_us.append(start_us - last_us)
            durations_us.append(round((call.end_s - call.start_s) * 1e6))
            last_us = start_us
        return cls(
            kinds=tuple(kinds),
            order=tuple(order),
            gaps_us=tuple(gaps_us),
            durations_us=tuple(durations_us),
            **said,
        )

    def calls(self) -> Iterator[Call]:
        """The calls, in the order of calling."""
        start_us = 0
        for kind, gap_us, duration_us in zip(
            self.order, self.gaps_us, self.durations_us, strict=True
        ):
            start_us += gap_us
            name, size_bytes = self.kinds[kind]
            yield Call(name, size_bytes, start_us / 1e6, (start_us + duration_us) / 1e6)


# -- failures --------------------------------------------------------------------------------------


class Injected(Event, frozen=True, kw_only=True):
    """The injector acted on the node that says this.

    Attributes:
        failure: Its kind, a key of `gemini_lab.injector.failures.FAILURES`.
        rank: Of the worker that was struck, if one was.
        pid: Of that worker.
        shard: Of which a bit was flipped.
        version: Of which a bit was flipped.
        byte: Where in the shard that bit is.
    """

    failure: str
    rank: int | None = None
    pid: int | None = None
    shard: int | None = None
    version: int | None = None
    byte: int | None = None


class WorkerExited(OfWorker, frozen=True, kw_only=True):
    """A worker ended before its script did.

    Way out: Read its last lines: `gemini-lab logs RUN --rank N`. The run recovers by itself.

    Attributes:
        pid: The process's.
        signal: Name of the signal that ended it, if one did.
        exit_code: Its exit status, if no signal ended it.
        output: The last lines that it printed, in order.
    """

    pid: int
    signal: str | None
    exit_code: int | None
    output: tuple[PrintedLine, ...] = ()


class WorkerHung(OfWorker, frozen=True, kw_only=True):
    """A worker made no progress for too long.

    Way out: Wrap long work in `with protected.pause(...)`, or raise `idle_s` or
    `min_progress_s`.

    Attributes:
        silent_s: How long it has stood still, or said nothing.
        deadline_s: How long that may be.
        seen: What was seen of it and of the others, in words.
    """

    silent_s: float
    deadline_s: float
    seen: Told = ""


class RanksApart(OfWorker, frozen=True, kw_only=True):
    """A rank has come to an end while others train on: they would wait for it for good.

    Way out: Give all ranks equally many batches and iterations, and let none leave its loop
    alone.

    Attributes:
        iteration: The newest that it has done.
        seen: Which rank ended, how and when, and who stands where, in words.
    """

    iteration: int
    seen: Told


# -- recovery --------------------------------------------------------------------------------------


class RecoveryStarted(OfRecovery, frozen=True, kw_only=True):
    """A failure was detected.

    Attributes:
        cause: What was noticed: `"node_lost"`, `"worker_exited"`, `"worker_hung"`, `"root_lost"`...
        lost: Names of the nodes that are gone.
        failed_at_s: When it was noticed.
        iteration: Newest iteration of all ranks that the root agent knows of; one that was just
            elected may know of none, the log's `Iteration`s are what counts.
    """

    cause: str
    lost: tuple[str, ...]
    failed_at_s: Moment
    iteration: int


class RecoveryStep(OfRecovery, frozen=True, kw_only=True):
    """One step of a recovery ended (paper, Fig. 14).

    Attributes:
        step: fence, inventory, reserve, start, retrieve or warm_up; in older logs also plan.
        start_s: When it began.
        end_s: When it ended.
    """

    step: str
    start_s: Moment
    end_s: Moment


class ProcessesKept(OfRecovery, frozen=True, kw_only=True):
    """Some workers go on in their processes; only the others restart.

    Attributes:
        ranks: Whose.
    """

    ranks: tuple[int, ...]


class ReplicaRejected(OfRecovery, frozen=True, kw_only=True):
    """A copy of a shard cannot be used.

    Way out: None is needed: another copy is read. If it repeats, examine that machine's memory.

    Attributes:
        shard: Rank of its owner.
        version: Of which it is a copy.
        holder: Name of the node that has it; `None` for the persistent tier.
        chunk: Number of the chunk that failed its checksum, where that is known.
        reason: Why, for people.
    """

    shard: int
    version: int
    holder: str | None
    chunk: int | None = None
    reason: Told


class VersionRejected(OfRecovery, frozen=True, kw_only=True):
    """A version will not be tried again.

    Way out: None is needed: an older version is read. `gemini-lab report` names it.

    Attributes:
        version: Which.
        reason: Why, for people.
    """

    version: int
    reason: Told


class ShardSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place from which one shard comes.

    Attributes:
        shard: Rank of its owner.
        tier: The owner's own memory, another node's, the persistent tier, or none: it restarts.
        holder: Name of the node that has it, if one does.
    """

    shard: int
    tier: Literal["local", "peer", "persistent", "start"]
    holder: str | None


class ShardMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy of a shard that goes from node to node before training resumes.

    Attributes:
        shard: Rank of its owner.
        sender: Name of the node that has it.
        receiver: Name of the node that will keep it too.
    """

    shard: int
    sender: str
    receiver: str


class RecoveryPlanned(OfRecovery, frozen=True, kw_only=True):
    """The version to load and its sources; see `gemini_lab.recovery.plan.RecoveryPlan`.

    Attributes:
        version: What every rank loads; `None` when training starts at its beginning.
        made_in: The epoch in which that version was made.
        made_after: How many rewinds there had been in that epoch by then.
        tier: From where the version as a whole comes.
        members: Name of the node on each position; `None` where no machine is left.
        sources: One for each shard, in shard order.
        transfers: What brings the version to every holder that lacks it.
        reason: Why this version and tier, for people.
        ranks_then: How many ranks made the version that memory has, if it is divided again.
    """

    version: int | None
    made_in: int = 0
    made_after: int = 0
    tier: Literal["memory", "persistent", "start"]
    members: tuple[str | None, ...]
    sources: tuple[ShardSource, ...]
    transfers: tuple[ShardMove, ...]
    reason: Told
    ranks_then: int | None = None


class ShardRecut(OfWorker, frozen=True, kw_only=True):
    """A shard was put together of those of a version that another number of ranks had made.

    Attributes:
        shard: Rank of its owner: this one.
        version: Whose state it holds.
        ranks_then: How many ranks had made that.
        ranks: How many there are now.
        read_bytes: What was read of their shards for it: of files in the persistent tier, or in
            memory, of which these are:
        local_bytes: From its own node's.
        peer_bytes: From that of others.
    """

    shard: int
    version: int
    ranks_then: int
    ranks: int
    read_bytes: int
    local_bytes: int = 0
    peer_bytes: int = 0


class ShardRestored(OfWorker, frozen=True, kw_only=True):
    """Receipt of one shard.

    Attributes:
        shard: Rank of its owner: this one.
        version: What was loaded.
        tier: From where.
        holder: Name of the node that had it; of a shard that was divided again, the node that had
            most of what was not on its own; or the persistent tier's URL.
        size_bytes: Of the shard.
        verified: Whether every chunk was compared with its checksum.
        retrieve_s: To fetch it.
        verify_s: To compare it with its checksums.
        load_s: To put it into the engine.
    """

    shard: int
    version: int
    tier: Literal["local", "peer", "persistent"]
    holder: str | None
    size_bytes: int
    verified: bool
    retrieve_s: float
    verify_s: float
    load_s: float


class RecoveryWaiting(OfRecovery, frozen=True, kw_only=True):
    """Nothing starts yet: a machine is missing, or newer versions may still come back.

    Way out: Bring the missing machine or store back, or accept the loss: `gemini-lab give-up
    RUN`.

    Attributes:
        missing: Positions without a machine.
        standbys: Names of living nodes without a position.
        reason: What the run waits for, for people.
    """

    missing: tuple[int, ...]
    standbys: tuple[str, ...]
    reason: Told = ""


class RecoveryFinished(OfRecovery, frozen=True, kw_only=True):
    """The first iteration after a failure ended on every rank.

    Attributes:
        version: What training went on from.
        iteration: The one that ended.
        duration_s: Since the failure was noticed.
        lost_iterations: Done again, as far as the root agent knows; see `RecoveryStarted`.
    """

    version: int
    iteration: int
    duration_s: float
    lost_iterations: int


# -- the persistent tier, and anything else --------------------------------------------------------


class PersistStarted(Event, frozen=True, kw_only=True):
    """A version is being written to the persistent tier.

    Attributes:
        version: Which.
        url: Where.
    """

    version: int
    url: str


class PersistFinished(Event, frozen=True, kw_only=True):
    """A version is whole in the persistent tier.

    Attributes:
        version: Which.
        url: Where.
        size_bytes: Of all its shards.
        duration_s: To write it.
    """

    version: int
    url: str
    size_bytes: int
    duration_s: float


class PersistFailed(Event, frozen=True, kw_only=True):
    """Writing a version failed; training goes on.

    Way out: Mend the store that the reason names; the next save tries again.

    Attributes:
        version: Which.
        url: Where.
        reason: Why, for people.
        in_a_row: Versions that failed with none between that arrived, this one included.
    """

    version: int
    url: str
    reason: Told
    in_a_row: int = 1


class Note(Event, frozen=True, kw_only=True):
    """A remark that is worth a line.

    Attributes:
        text: For people.
    """

    text: Lines


AnyEvent = (
    LogOpened
    | LabStarted
    | NodeJoined
    | NodeReady
    | NodeLost
    | NodeExcluded
    | NodeLeaving
    | DrainWaiting
    | NodeDrained
    | ResizeWanted
    | ResizeWaiting
    | Resized
    | ResizeRefused
    | ReplicasPlaced
    | ReplicasShort
    | NodeRequested
    | LinkCut
    | RootElected
    | LabClosed
    | RunStarted
    | RunFinished
    | RunFailed
    | Protected
    | Unprotected
    | CodeSeen
    | IterationBegun
    | Iteration
    | Diverged
    | LossNotFinite
    | LossFinite
    | Rewound
    | SumsVerified
    | WrongSums
    | RewindFailed
    | UpdatesUnkept
    | VersionComplete
    | ReplicaDiffered
    | GradientsGivenUp
    | Transfer
    | Profiled
    | Collectives
    | Injected
    | WorkerExited
    | WorkerHung
    | RanksApart
    | RecoveryStarted
    | ProcessesKept
    | RecoveryStep
    | ReplicaRejected
    | VersionRejected
    | RecoveryPlanned
    | ShardRecut
    | ShardRestored
    | RecoveryWaiting
    | RecoveryFinished
    | PersistStarted
    | PersistFinished
    | PersistFailed
    | Note
)
"""Every kind of event: the type of a field that holds one."""

KINDS: Final[dict[str, type[Event]]] = {
    _kind_of(kind.__name__): kind for kind in get_args(AnyEvent)
}
"""Every class by its kind's name."""


def _as_number(number: float) -> Number:
    if isfinite(number):
        return number
    return "nan" if number != number else "inf" if number > 0 else "-inf"  # noqa: PLR0124
