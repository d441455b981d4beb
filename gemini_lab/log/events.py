"""The events of a run: one frozen class a kind, shared by all parts of a run and the simulator.

Who says an event builds the event alone. When it happened and on which node is added by whoever
owns the clock and the name: see `gemini_lab.log.entry.Entry`. A kind is a class's name in lower
case with underscores: `RootElected` is `"root_elected"`. What a field means stands beside it, and
in the reference's table, which is made from here.
"""

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import msgspec

from gemini_lab.errors import LONGEST
from gemini_lab.limits import Count, PrintedLine, Told, cut_told
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
        return str(self.__struct_config__.tag)


class OfWorker(Event, frozen=True, kw_only=True):
    """Something about one worker; what it says itself has rank and epoch from its session."""

    rank: int = UNSAID  # the worker's
    epoch: int = UNSAID  # the worker's; it rises with every restart


class OfRecovery(Event, frozen=True, kw_only=True):
    """Something about one recovery."""

    recovery: int  # its number, from 1; 0 is the job's first start
    epoch: int  # that of the workers that it starts


# -- the log, the lab and its nodes ----------------------------------------------------------------


class LogOpened(Event, frozen=True, kw_only=True):
    """The log begins; its first line."""

    schema: int  # the version of the classes that its lines are made of


class LabStarted(Event, frozen=True, kw_only=True):
    """The lab's nodes are up."""

    nodes: int  # machines that train
    standbys: int  # machines that wait to take a lost one's place
    names: tuple[str, ...]  # of all nodes
    root: str | None  # name of the node with the root agent, if there is one yet
    etcd: tuple[str, ...] = ()  # addresses of the store


class NodeJoined(Event, frozen=True, kw_only=True):
    """The root agent is connected to a node's agent."""

    name: str  # the node's


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection that carries a node's traffic."""

    address: str  # the node's, on which it listens
    interface: str | None = None  # what has that address; `None` where it is not known
    bytes_per_s: float = 0.0  # what the interface says of its speed; 0 where it says nothing
    # Interfaces that are up, have an address, and say that they are faster.
    faster: tuple[str, ...] = ()


class NodeReady(Event, frozen=True, kw_only=True):
    """A node's warm parent has imported what workers need."""

    name: str  # the node's
    import_s: float  # how long that took
    network: Network | None = None  # what carries the node's traffic; `None` in older logs


class NodeLost(Event, frozen=True, kw_only=True):
    """A node is gone.

    Way out: None is needed while a standby is left; `gemini-lab status` shows the standbys.
    """

    name: str  # the node's
    # How that was noticed: `"refused"` (its machine lets nobody connect to its agent),
    # `"connection"`, `"lease"`, `"no answer"` or `"dead"`; simulated ones say what broke.
    cause: str


class NodeExcluded(Event, frozen=True, kw_only=True):
    """A node is not used again, but where there is no other; one that computed wrong never is.

    Way out: Look at that machine; the reason names what it lacked or what it computed wrong.
    """

    name: str  # the node's
    reason: Told  # how the last attempt on it ended, or what it computed wrong


class NodeLeaving(Event, frozen=True, kw_only=True):
    """A node's machine is to go: its ranks move as soon as they can."""

    name: str  # the node's
    # The time that it has from now; `None` where a person asked and set none.
    within_s: float | None = None


class DrainWaiting(Event, frozen=True, kw_only=True):
    """A node's ranks cannot move yet; it trains on.

    Way out: Start one more machine, or wait: the ranks move as soon as a standby is ready.
    """

    name: str  # the node's
    reason: Told  # what is waited for, for people
    is_given_up: bool = False  # whether they will not move before another request


class NodeDrained(Event, frozen=True, kw_only=True):
    """A node that was to go has no ranks left: its machine may be taken."""

    name: str  # the node's


class NodeAiling(Event, frozen=True, kw_only=True):
    """A node's machine tells of a fault of its own, or no longer does.

    Way out: Have the machine examined. By `"on_ailing": "drain"` the ranks of one that is about to
    fail have moved to a standby.
    """

    name: str  # the node's
    fault: Told  # a key of `gemini_lab.recovery.ailments.RULES`
    seen: Told  # what the machine tells
    drains: bool = False  # whether the fault's rule has its ranks moved
    is_over: bool = False  # whether it is no longer seen

    def __str__(self) -> str:
        return f"{self.name}: {self.seen}{' (no longer)' if self.is_over else ''}"


class ResizeWanted(Event, frozen=True, kw_only=True):
    """A user wants the run to have another number of nodes."""

    nodes: int  # how many


class ResizeWaiting(Event, frozen=True, kw_only=True):
    """The run is not the size that it is to be, and cannot be now; it trains on.

    Way out: Start the machines that are missing; the run trains on until they have joined.
    """

    nodes: int  # how many nodes it is to have
    reason: Told  # what stands against it, or is waited for, for people


class Resized(Event, frozen=True, kw_only=True):
    """Training continues with another number of nodes."""

    nodes_then: int  # how many there were
    nodes: int  # how many there are
    wanted: int  # how many it is to be; more than `nodes` where machines are short
    iteration: int  # the first that they finished

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
    """

    nodes: int  # how many
    reason: Told  # what a worker said, for people

    def __str__(self) -> str:
        return f"{self.nodes} nodes are refused"


class ReplicasPlaced(Event, frozen=True, kw_only=True):
    """Other nodes keep copies than before, because the risk has changed."""

    placement: Placement  # who keeps whose shards from now on, by position
    # The position of each shard that gets a copy, and the node that is to keep it.
    added: tuple[tuple[int, str], ...]
    dropped: tuple[tuple[int, str], ...]  # the same of copies that are not kept any more
    loss_chance_then: float  # that memory does not suffice within the horizon, as copies were
    loss_chance: float  # the same as they are now
    reason: Told  # what has changed, for people

    def __str__(self) -> str:
        moves = [f"+{len(self.added)}"] if self.added else []
        moves += [f"-{len(self.dropped)}"] if self.dropped else []
        return f"copies are placed again ({', '.join(moves)}): {self.reason}"


class ReplicasShort(Event, frozen=True, kw_only=True):
    """Copies follow the risk, and what there is cannot reach the target; training goes on.

    Way out: Raise `replica_memory`, add nodes, or lower `survival_target`.
    """

    loss_chance: float  # that memory does not suffice within the horizon
    reason: Told  # what stands against more, for people


class NodeRequested(Event, frozen=True, kw_only=True):
    """The operator was asked for a machine."""

    reason: Told  # what it is for, for people


class LinkCut(Event, frozen=True, kw_only=True):
    """A connection between root agent and agent broke, but came back."""

    peer: str  # name of the agent's node


class RootElected(Event, frozen=True, kw_only=True):
    """A node's agent is the root agent now."""

    name: str  # the node's
    term: int  # how many root agents there have been, this one included


class LabClosed(Event, frozen=True, kw_only=True):
    """All processes of the lab ended."""


# -- a run -----------------------------------------------------------------------------------------


class Simulated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The assumptions of a simulated run."""

    policy: str  # the policy's name
    source: str  # where the policy is described
    assumptions: str  # what it takes for granted, for people
    gpus_per_node: int  # GPUs that count as one worker


class RunStarted(Event, frozen=True, kw_only=True):
    """A job was submitted."""

    name: str  # the job's
    # Path of a Python file, or the name of a module if `module`; `None` if simulated.
    script: str | None
    args: tuple[str, ...] = ()  # the script's arguments
    module: bool = False  # whether `script` is run as `python -m` does
    nodes: int  # positions that train
    standbys: int = 0  # machines that wait
    workers_per_node: int = 1  # ranks on each position
    racks: tuple[str, ...] | None = None  # the rack of each position, if there are any
    # What the launcher was told; `Protected` has all settings.
    settings: dict[str, SettingValue] = {}
    # Who keeps whose shard, where that is known before workers run: in simulations.
    placement: Placement | None = None
    simulated: Simulated | None = None  # what is assumed, if this is a simulation
    # Versions of what the lab runs with, by name, and the script's `"commit"`.
    made_with: dict[str, str] = {}


class RunFinished(Event, frozen=True, kw_only=True):
    """Every worker finished its script."""

    iteration: int  # the last one


FailureCause = Literal[
    "script", "divergence", "not_finite", "wrong_sums", "machines", "owner", "notice"
]
"""Why a run was given up: its script raised an error of its own, did not repeat itself, or made no
numbers; a machine computed wrong; what it ran on went away; a person ended it; it was told to end
soon, as batch systems do."""


class RunFailed(Event, frozen=True, kw_only=True):
    """The run was given up.

    Way out: The exit code says whether the same command with `--resume` helps.
    """

    reason: Lines  # why, in a sentence
    cause: FailureCause = "machines"  # the same for programs
    # The last lines that the worker printed because of which it was given up.
    output: tuple[PrintedLine, ...] = ()


LONGEST_PLACE: Final = 60
"""Letters of what a rank is: a log of thousands has it of each."""


class Protected(OfWorker, frozen=True, kw_only=True):
    """A worker called `protect`."""

    shard_bytes: int  # size of the rank's shard
    fingerprint: str  # of model, optimizer and number of ranks; another one is another job
    settings: Settings  # all that the job runs with
    # Who keeps whose shard, by position; rank 0 says it for all. A log has it once, and again when
    # it has changed; `None` says nothing new.
    placement: Placement | None = None
    place: str = ""  # what the rank is among ranks that differ, such as `pp 0, dp 1`
    # Ranks that hold one model between them: the world size stays a multiple of it. 0 if nothing
    # tells which ranks are data-parallel, so that the world size is fixed.
    model_parallel_size: Count = 1


class Unprotected(OfWorker, frozen=True, kw_only=True):
    """A worker's script ended and never called `protect`.

    Way out: Start the script by `gemini-lab run` to protect it.
    """


class CodeSeen(OfWorker, frozen=True, kw_only=True):
    """A worker executes files of the script that no start of this run had executed so before.

    Way out: Restore the named file, or go on: `"on_code_change": "stop"` ends a run instead.
    """

    files: dict[str, str]  # their digests, by name
    changed: tuple[str, ...] = ()  # those that were executed before, and are not the same now

    def __str__(self) -> str:
        more = len(self.changed) - LISTED
        names = ", ".join(self.changed[:LISTED]) + (f" and {more} more" if more > 0 else "")
        was = "was" if len(self.changed) == 1 else "were"
        return f"{names} {was} edited since the last start: workers execute other code now"


# -- training --------------------------------------------------------------------------------------


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs of a rank's iteration; with equal weights, equal inputs give equal numbers."""

    batch: str  # checksum of what entered its first forward pass
    # Checksum of each random generator's state at that moment: Python's, NumPy's, torch's, and the
    # device's where that is no CPU.
    random: dict[str, str]
    # That of the first group of weights; `None` where it is not known.
    learning_rate: float | None = None
    # How many there are, each with a part of the data; 0 where an older log has it not.
    ranks: int = 0


class IterationBegun(OfWorker, frozen=True, kw_only=True):
    """An iteration's first forward pass began; on a GPU the event comes when the device has."""

    iteration: int  # its number, from 1
    inputs: Inputs  # with what


class Iteration(OfWorker, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer step ended."""

    iteration: int  # its number, from 1
    duration_s: float  # since the end of the step before
    waited_s: float  # how much of that was spent waiting for the version on its way
    # How much of it its training thread computed, or wanted a processor; 0 where that is not known.
    work_s: float = 0.0
    # What the script logged, such as `"loss"`, and the engine's `"grad_norm"`; read numbers with
    # `value`.
    values: dict[str, Number] = {}
    # Whether this repeats what a version says of its last iteration, for the case that the node
    # that computed it is gone.
    restored: bool = False
    # Updates after which the script's loop ends, `protected.steps(of)`; told once by each worker,
    # and again when it has changed.
    of: int | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(number, str) or isfinite(number) for number in self.values.values()):
            told = {name: _as_number(float(number)) for name, number in self.values.items()}
            msgspec.structs.force_setattr(self, "values", told)

    def value(self, name: str) -> float | None:
        """Return the value that was logged as `name`, to the bit; `None` if there is none."""
        number = self.values.get(name)
        return None if number is None else float(number)


class Diverged(OfWorker, frozen=True, kw_only=True):
    """An iteration that was done again after a recovery is not what it was before.

    Way out: Run `gemini-lab check` on the script, and hand over what it names in `also` or
    `client_state`.
    """

    iteration: int  # its number
    # What differs first: `"order"` (another iteration was expected), `"batch"`, `"random"`,
    # `"learning_rate"`, or the name of a value such as `"loss"`.
    differs: Told
    before: Told  # what it was, to the bit
    after: Told  # what it is now
    cause: Told  # what is likely to be behind it, for people

    def __str__(self) -> str:
        what = DIFFERENCES.get(self.differs, self.differs)
        return (
            f"rank {self.rank}, iteration {self.iteration}: {what} {self.after} now, "
            f"{self.before} before the failure"
        )


class LossNotFinite(OfWorker, frozen=True, kw_only=True):
    """Losses are no numbers any more: weights may hold NaN or infinity, and every later version.

    Way out: Set `"on_not_finite": "rewind"` to skip such batches, or `"stop"` to end the run.
    """

    iteration: int  # the first of which that is known
    loss: str  # `"nan"`, `"inf"` or `"-inf"`
    is_held: bool  # whether no version goes to the persistent tier until it is over

    def __str__(self) -> str:
        return f"rank {self.rank}, iteration {self.iteration}: the loss is {self.loss}"


class LossFinite(OfWorker, frozen=True, kw_only=True):
    """All losses are numbers again."""

    iteration: int  # the first in which they are


class Rewound(OfWorker, frozen=True, kw_only=True):
    """Training went back to a version in memory, on all ranks together; no process was started."""

    iteration: int  # the newest that had ended; those from `version` on were taken back
    version: int  # to which it went back
    rewinds: int  # how often that has happened since the workers were started, this time included
    # Whether data go on: the batches of the iterations that were taken back do not come again. What
    # these were, `iteration_begun` says.
    skips: bool
    # Who wanted it: the script, the guard that the settings ask for, or a person.
    cause: Literal["script", "guard", "person"]
    reason: Told = ""  # why, for people
    duration_s: float  # from the top of the script's loop until the state was back

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
    """

    iteration: int  # the newest that had ended
    # Who wanted it: the guard, and then the run ends, or a person.
    cause: Literal["guard", "person"]
    reason: Told  # why it was wanted, and what there was to go back to, for people


class UpdatesUnkept(OfWorker, frozen=True, kw_only=True):
    """The weights change, and not by updates of the optimizer that is protected.

    Way out: Give `protect` the optimizer that trains, after it has been made for the last time.
    """

    version: int  # the newest; none is made of these changes
    optimizer: str  # the class of the protected one
    by: str  # what changes them, for people
    ends: bool  # whether the run ends if that goes on, as `on_unkept_updates` says

    def __str__(self) -> str:
        then = "; the run ends if that goes on" if self.ends else ""
        return (
            f"training is not protected: since version {self.version} the weights are changed by "
            f"{self.by} and not by the {self.optimizer} that `protect` was given, and no version "
            f"is made of that{then}; give `protect` the optimizer that trains, and make no other "
            "one for its weights afterwards"
        )


class SumsVerified(OfWorker, frozen=True, kw_only=True):
    """Other machines computed an iteration again, and all computed the same; rank 0 says it."""

    iteration: int  # its number
    replays: int  # how often it was computed again
    duration_s: float  # how much longer it took for that


class WrongSums(OfWorker, frozen=True, kw_only=True):
    """Machines came to different numbers with the same work: one of them computes wrong.

    All ranks say it alike.

    Way out: Have the named machine examined; with `"on_wrong_sums": "drain"` a standby has
    replaced it.
    """

    iteration: int  # that was computed again
    # What came out differently: the gradients, or what the optimizer made of them.
    work: Literal["gradient", "update"]
    ranks: tuple[int, ...]  # whose
    nodes: tuple[str, ...]  # the machines that compute wrong, for certain
    suspects: tuple[str, ...]  # of these nodes at least one does besides, and which cannot be told
    replays: int  # how often it was computed again
    version: int  # the newest one that is verified
    goes_back: bool  # whether training goes back there, and later versions are void
    rewinds: int  # how often training had gone back since the workers were started

    def __str__(self) -> str:
        what = "gradients" if self.work == "gradient" else "optimizer's update"
        told = [f"{', '.join(self.nodes)} computed wrong"] if self.nodes else []
        if self.suspects:
            told.append(f"which of {', '.join(self.suspects)} computed wrong cannot be told")
        ranks = ", ".join(map(str, self.ranks))
        return f"iteration {self.iteration}, {what} of rank {ranks}: {'; '.join(told)}"


class VersionComplete(OfWorker, frozen=True, kw_only=True):
    """A rank's shard, and the replicas that it receives, are whole."""

    version: int  # the iteration after which the states were so
    sent_bytes: int  # what left for other nodes
    local_s: float  # how long the copy into the node's own memory took
    duration_s: float  # from the update until all ranks knew that all was whole
    next_version: int  # the next one that will be sent
    # What left: the shard, or the gradient of which peers made it, see `"replicate"`.
    form: Literal["copy", "gradients"] = "copy"
    # From the update until all that this rank writes was whole: what a recovery needs.
    whole_s: float | None = None


class ReplicaDiffered(OfWorker, frozen=True, kw_only=True):
    """A version made of a gradient differed from its owner's, and was sent in full instead.

    Way out: None is needed: the part was sent in full. If it repeats, examine that machine's
    memory.
    """

    shard: int  # the owner's
    version: int  # which version of it
    reason: Told  # what was seen, for people


class GradientsGivenUp(Event, frozen=True, kw_only=True):
    """Shards are sent in full from here on, until the workers' next start.

    Way out: None is needed: versions are sent as copies until workers start again.
    """

    version: int  # the newest that was not
    reason: Told  # why, for people


class Transfer(OfWorker, frozen=True, kw_only=True):
    """Chunks of a version left for a peer, in one idle span or in the background."""

    version: int  # of what
    span: int | None  # number of the idle span; `None` for none
    peer: int  # rank that received them
    sent_bytes: int  # all of them together
    start_s: Moment  # when the first one began to leave
    end_s: Moment  # when the last one had arrived


class Profiled(OfWorker, frozen=True, kw_only=True):
    """The ranks agreed on a profile, and on the chunks to follow it."""

    profile: Profile  # when the network is idle: the mean of all ranks
    schedule: ChunkSchedule  # which chunk goes into which idle span, on this rank
    calibration: Calibration  # the wire, as it was measured


class Call(NamedTuple):
    """One training collective."""

    name: str  # of the operation in torch.distributed
    size_bytes: int  # of the full tensor
    start_s: float  # when it was called, since the iteration began
    end_s: float  # when its result was there, since the iteration began


class Collectives(OfWorker, frozen=True, kw_only=True):
    """The training collectives of one iteration: most of a log, and so in few bytes."""

    iteration: int  # its number
    began_s: Moment  # when it began
    # Operation in torch.distributed and bytes of the full tensor, each pair once.
    kinds: tuple[tuple[str, int], ...]
    order: tuple[int, ...]  # of each call, in the order of calling, its kind: an index
    # From the call before it (of the first: from the beginning), in microseconds.
    gaps_us: tuple[int, ...]
    durations_us: tuple[int, ...]  # until its result was there, in microseconds

    def __post_init__(self) -> None:
        if not len(self.order) == len(self.gaps_us) == len(self.durations_us):
            raise ValueError("order, gaps_us and durations_us are not of one length")
        if self.order and not 0 <= min(self.order) <= max(self.order) < len(self.kinds):
            raise ValueError("order names a kind that is not there")

    @classmethod
    def of(cls, calls: Iterable[Call], **said: Any) -> Self:
        """Return the event of these calls, in the order of calling.

        Times are rounded to microseconds; `said` has the other fields.
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
        start_us = 0
        for kind, gap_us, duration_us in zip(
            self.order, self.gaps_us, self.durations_us, strict=True
        ):
            start_us += gap_us
            name, size_bytes = self.kinds[kind]
            yield Call(name, size_bytes, start_us / 1e6, (start_us + duration_us) / 1e6)


# -- failures --------------------------------------------------------------------------------------


class Injected(Event, frozen=True, kw_only=True):
    """The injector acted on the node that says this."""

    failure: str  # its kind, a key of `gemini_lab.injector.failures.FAILURES`
    rank: int | None = None  # of the worker that was struck, if one was
    pid: int | None = None  # of that worker
    shard: int | None = None  # of which a bit was flipped
    version: int | None = None  # of which a bit was flipped
    byte: int | None = None  # where in the shard that bit is


class WorkerExited(OfWorker, frozen=True, kw_only=True):
    """A worker ended before its script did.

    Way out: Read its last lines: `gemini-lab logs RUN --rank N`. The run recovers by itself.
    """

    pid: int  # the process's
    signal: str | None  # name of the signal that ended it, if one did
    exit_code: int | None  # its exit status, if no signal ended it
    output: tuple[PrintedLine, ...] = ()  # the last lines that it printed, in order


class WorkerHung(OfWorker, frozen=True, kw_only=True):
    """A worker made no progress for too long.

    Way out: Wrap long work in `with protected.pause(...)`, or raise `idle_s` or
    `min_progress_s`.
    """

    silent_s: float  # how long it has stood still, or said nothing
    deadline_s: float  # how long that may be
    seen: Told = ""  # what was seen of it and of the others, in words


class RankSlow(OfWorker, frozen=True, kw_only=True):
    """A rank works much longer in each iteration than the others, which wait for it.

    Way out: Look for what else runs on the named machine, or for a processor or GPU that runs
    slower. With `"on_slow": "drain"` a standby takes its place. If the rank's own work is larger,
    divide the work evenly.
    """

    name: str  # its node's
    iteration: int  # the newest of those that show it
    work_s: float  # its median work in an iteration, of those in which it was behind
    others_s: float  # that of the other ranks
    duration_s: float  # the median iteration
    behind: int  # in how many of the last 16 iterations it was behind
    is_over: bool = False  # whether it is no longer slow

    def __str__(self) -> str:
        who = f"rank {self.rank} on {self.name}"
        if self.is_over:
            return f"{who} is no longer slow (iteration {self.iteration})"
        return (
            f"{who} is slow: it works for {self.work_s:.3g} s of an iteration of "
            f"{self.duration_s:.3g} s, the others for {self.others_s:.3g} s, in {self.behind} of "
            f"the last {min(16, self.iteration)} iterations"
        )


class StacksTaken(OfWorker, frozen=True, kw_only=True):
    """A user asked what a worker's threads do, with `gemini-lab stacks`."""

    pid: int  # the process's
    how: Told  # how the worker answered, or why it did not
    # A paragraph a thread, its innermost call first; the training thread's is the last.
    lines: tuple[PrintedLine, ...] = ()


class RanksApart(OfWorker, frozen=True, kw_only=True):
    """A rank has come to an end while others train on: they would wait for it for good.

    Way out: Give all ranks equally many batches and iterations, and let none leave its loop
    alone.
    """

    iteration: int  # the newest that it has done
    seen: Told  # which rank ended, how and when, and who stands where, in words


# -- recovery --------------------------------------------------------------------------------------


class RecoveryStarted(OfRecovery, frozen=True, kw_only=True):
    """A failure was detected."""

    # What was noticed: `"node_lost"`, `"worker_exited"`, `"worker_hung"`, `"root_lost"`...
    cause: str
    lost: tuple[str, ...]  # names of the nodes that are gone
    failed_at_s: Moment  # when it was noticed
    # Newest iteration of all ranks that the root agent knows of; one that was just elected may know
    # of none, the log's `Iteration`s are what counts.
    iteration: int


class RecoveryStep(OfRecovery, frozen=True, kw_only=True):
    """One step of a recovery ended (paper, Fig. 14)."""

    step: str  # fence, inventory, reserve, start, retrieve or warm_up; in older logs also plan
    start_s: Moment  # when it began
    end_s: Moment  # when it ended


class ProcessesKept(OfRecovery, frozen=True, kw_only=True):
    """Some workers go on in their processes; only the others restart."""

    ranks: tuple[int, ...]  # whose


class ReplicaRejected(OfRecovery, frozen=True, kw_only=True):
    """A copy of a shard cannot be used.

    Way out: None is needed: another copy is read. If it repeats, examine that machine's memory.
    """

    shard: int  # rank of its owner
    version: int  # of which it is a copy
    holder: str | None  # name of the node that has it; `None` for the persistent tier
    chunk: int | None = None  # number of the chunk that failed its checksum, where that is known
    reason: Told  # why, for people


class VersionRejected(OfRecovery, frozen=True, kw_only=True):
    """A version will not be tried again.

    Way out: None is needed: an older version is read. `gemini-lab report` names it.
    """

    version: int  # which
    reason: Told  # why, for people


class ShardSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place from which one shard comes."""

    shard: int  # rank of its owner
    # The owner's own memory, another node's, the persistent tier, or none: it restarts.
    tier: Literal["local", "peer", "persistent", "start"]
    holder: str | None  # name of the node that has it, if one does


class ShardMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy of a shard that goes from node to node before training resumes."""

    shard: int  # rank of its owner
    sender: str  # name of the node that has it
    receiver: str  # name of the node that will keep it too


class RecoveryPlanned(OfRecovery, frozen=True, kw_only=True):
    """The version to load and its sources; see `gemini_lab.recovery.plan.RecoveryPlan`."""

    version: int | None  # what every rank loads; `None` when training starts at its beginning
    made_in: int = 0  # the epoch in which that version was made
    made_after: int = 0  # how many rewinds there had been in that epoch by then
    tier: Literal["memory", "persistent", "start"]  # from where the version as a whole comes
    # Name of the node on each position; `None` where no machine is left.
    members: tuple[str | None, ...]
    sources: tuple[ShardSource, ...]  # one for each shard, in shard order
    transfers: tuple[ShardMove, ...]  # what brings the version to every holder that lacks it
    reason: Told  # why this version and tier, for people
    # How many ranks made the version that memory has, if it is divided again.
    ranks_then: int | None = None


class ShardRecut(OfWorker, frozen=True, kw_only=True):
    """A shard was put together of those of a version that another number of ranks had made."""

    shard: int  # rank of its owner: this one
    version: int  # whose state it holds
    ranks_then: int  # how many ranks had made that
    ranks: int  # how many there are now
    # What was read of their shards for it: of files in the persistent tier, or in memory, of which
    # these are:
    read_bytes: int
    local_bytes: int = 0  # from its own node's
    peer_bytes: int = 0  # from that of others


class ShardRestored(OfWorker, frozen=True, kw_only=True):
    """Receipt of one shard."""

    shard: int  # rank of its owner: this one
    version: int  # what was loaded
    tier: Literal["local", "peer", "persistent"]  # from where
    # Name of the node that had it; of a shard that was divided again, the node that had most of
    # what was not on its own; or the persistent tier's URL.
    holder: str | None
    size_bytes: int  # of the shard
    verified: bool  # whether every chunk was compared with its checksum
    retrieve_s: float  # to fetch it
    verify_s: float  # to compare it with its checksums
    load_s: float  # to put it into the engine


class RecoveryWaiting(OfRecovery, frozen=True, kw_only=True):
    """Nothing starts yet: a machine is missing, or newer versions may still come back.

    Way out: Bring the missing machine or store back, or accept the loss: `gemini-lab give-up
    RUN`.
    """

    missing: tuple[int, ...]  # positions without a machine
    standbys: tuple[str, ...]  # names of living nodes without a position
    reason: Told = ""  # what the run waits for, for people


class RecoveryFinished(OfRecovery, frozen=True, kw_only=True):
    """The first iteration after a failure ended on every rank."""

    version: int  # what training went on from
    iteration: int  # the one that ended
    duration_s: float  # since the failure was noticed
    lost_iterations: int  # done again, as far as the root agent knows; see `RecoveryStarted`


# -- the persistent tier, and anything else --------------------------------------------------------


class PersistStarted(Event, frozen=True, kw_only=True):
    """A version is being written to the persistent tier."""

    version: int  # which
    url: str  # where


class PersistFinished(Event, frozen=True, kw_only=True):
    """A version is whole in the persistent tier."""

    version: int  # which
    url: str  # where
    size_bytes: int  # of all its shards
    duration_s: float  # to write it


class PersistFailed(Event, frozen=True, kw_only=True):
    """Writing a version failed; training goes on.

    Way out: Mend the store that the reason names; the next save tries again.
    """

    version: int  # which
    url: str  # where
    reason: Told  # why, for people
    in_a_row: int = 1  # versions that failed with none between that arrived, this one included


class Note(Event, frozen=True, kw_only=True):
    """A remark that is worth a line."""

    text: Lines  # for people


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
    | NodeAiling
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
    | RankSlow
    | StacksTaken
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
