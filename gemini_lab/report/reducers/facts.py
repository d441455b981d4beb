"""Parts of a run that a few kinds of events tell completely: a small class each."""

from array import array
from bisect import bisect_left
from collections import Counter, deque
from typing import Final, TypeVar

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Collectives,
    DrainWaiting,
    LabStarted,
    LossFinite,
    LossNotFinite,
    NodeAiling,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeRequested,
    PersistFailed,
    PersistFinished,
    Profiled,
    RankSlow,
    RecoveryPlanned,
    ReplicasPlaced,
    ReplicasShort,
    Resized,
    ResizeRefused,
    ResizeWaiting,
    Rewound,
    RunFailed,
    RunFinished,
    RunStarted,
    ShardRestored,
    StacksTaken,
    SumsVerified,
    VersionComplete,
    WrongSums,
)
from gemini_lab.report.reducers import MOST_KEPT, seconds, whole
from gemini_lab.report.values import NotFinite, TrafficPlan

Key = TypeVar("Key", int, tuple[str, str])
Told = TypeVar("Told", RankSlow, NodeAiling)


class Arrivals:
    """Machines that came in place of others, those that were asked for first coming first.

    A request may be told twice, as by a root agent that takes over; so there is one for each
    machine that is gone or is to go, and it counts from the first one told after that.
    """

    def __init__(self) -> None:
        # From a request until the machine's agent was there, one a machine.
        self.waits_s: deque[float] = deque(maxlen=MOST_KEPT)
        self._known: set[str] = set()
        self._lost: set[str] = set()
        self._unordered = 0
        self._ordered_s: deque[float] = deque(maxlen=MOST_KEPT)

    def take(self, entry: Entry) -> None:
        match entry.event:
            case LabStarted(names=names):
                self._known.update(names[:MOST_KEPT])
            case NodeLost(name=name) | NodeLeaving(name=name) if self._is_there(name):
                self._lost.add(name)
                self._unordered += 1
            case DrainWaiting(name=name, is_given_up=True):
                self._stay(name)
            case NodeRequested():
                self._ordered_s.extend([entry.at_s] * min(self._unordered, MOST_KEPT))
                self._unordered = 0
            case NodeJoined(name=name) if len(self._known) < MOST_KEPT:
                self._join(name, entry.at_s)

    def _is_there(self, name: str) -> bool:
        return name in self._known and name not in self._lost

    def _join(self, name: str, at_s: float) -> None:
        self._stay(name)  # it may only have been silent
        if name not in self._known and self._ordered_s:
            self.waits_s.append(max(0.0, at_s - self._ordered_s.popleft()))
        self._known.add(name)

    def _stay(self, name: str) -> None:
        if name not in self._lost:
            return
        self._lost.discard(name)
        if self._unordered:
            self._unordered -= 1
        elif self._ordered_s:
            self._ordered_s.pop()


class Sizes:
    """Each change of a run's size."""

    def __init__(self) -> None:
        self.found: deque[Resized] = deque(maxlen=MOST_KEPT)
        # Why it is not the size that it is to be; empty if it is, or nothing was said.
        self.waits_for = ""
        # Of the iterations that count: from which on there were how many nodes, in order.
        self.nodes: list[tuple[int, int]] = []
        self._epoch = 0

    def take(self, entry: Entry) -> None:
        match entry.event:
            case RunStarted(nodes=nodes) if not self.nodes:
                self.nodes.append((0, whole(nodes)))
            case RecoveryPlanned() as plan if plan.epoch >= self._epoch:
                self._epoch, first = whole(plan.epoch), whole(plan.version or 0) + 1
                self.nodes = [one for one in self.nodes if one[0] < first]
                if not self.nodes or self.nodes[-1][1] != len(plan.members):
                    self.nodes.append((first, len(plan.members)))
            case Resized() as said:
                whole(said.nodes)
                self.found.append(said)
                self.waits_for = ""
            case ResizeWaiting(nodes=nodes, reason=reason):
                self.waits_for = f"{nodes} nodes: {reason}"
            case ResizeRefused(nodes=nodes, reason=reason):
                self.waits_for = f"{nodes} nodes are refused: {reason}"
            case RunFinished() | RunFailed():
                self.waits_for = ""


class Rewinds:
    """Each time once, though every rank says it."""

    def __init__(self) -> None:
        self.found: deque[Rewound] = deque(
            maxlen=MOST_KEPT
        )  # the newest, in order of the log; what the first rank said
        self.total = 0  # how many there were, also before those that are kept
        self._newest = (-1, -1)  # epoch, and how many there were in it

    def take(self, entry: Entry) -> None:
        match entry.event:
            case Rewound() as said if (whole(said.epoch), whole(said.rewinds)) > self._newest:
                self._newest = (said.epoch, said.rewinds)
                self.total += 1
                self.found.append(said)


NEWEST: Final = 3
"""Iterations of which collectives are kept, to say who came last to them."""


class RunTroubles:
    """Ranks that are slow, and machines that tell of faults of their own."""

    def __init__(self) -> None:
        self.told: deque[RankSlow | NodeAiling] = deque(
            maxlen=MOST_KEPT
        )  # the newest, in order of the log
        self.slow: dict[int, RankSlow] = {}  # what was said of each rank that is slow now
        # what was said of each node's faults that are seen now, by node and fault
        self.ailing: dict[tuple[str, str], NodeAiling] = {}
        # what each rank's threads did when a user asked last, and when that was
        self.stacks: dict[int, tuple[float, StacksTaken]] = {}
        self._calls: dict[int, dict[int, tuple[int, ...]]] = {}  # newest iterations, by rank

    def lines(self) -> tuple[str, ...]:
        """Return what stands now, in words; where collectives are logged, also who came last."""
        slow = [f"{one}{self._last(one.rank)}" for one in self.slow.values()]
        return (*slow, *map(str, self.ailing.values()))

    def _last(self, rank: int) -> str:
        """Return to how many collectives of an iteration a rank came last: it waited the least."""
        for iteration in sorted(self._calls, reverse=True):
            told = self._calls[iteration]
            mine = told.get(rank, ())
            others = [times for other, times in told.items() if other != rank]
            if mine and others and all(len(times) == len(mine) for times in others):
                last = sum(own <= min(rest) for own, *rest in zip(mine, *others, strict=True))
                return (
                    f"; it came last to {last} of {len(mine)} collectives of iteration {iteration}"
                )
        return ""

    def take(self, entry: Entry) -> None:
        match entry.event:
            case Collectives() as one:  # the most frequent one first
                newest = self._calls.setdefault(one.iteration, {})
                if len(newest) < MOST_KEPT:
                    newest[one.rank] = one.durations_us
                while len(self._calls) > NEWEST:
                    del self._calls[min(self._calls)]
            case RankSlow() as one:
                self._note(self.slow, one.rank, one)
            case NodeAiling() as one:
                self._note(self.ailing, (one.name, one.fault), one)
            case StacksTaken() as one if one.rank in self.stacks or len(self.stacks) < MOST_KEPT:
                self.stacks[one.rank] = seconds(entry.at_s), one
            case RecoveryPlanned() | RunFinished() | RunFailed():  # ranks begin anew, or are gone
                self.slow.clear()
                self._calls.clear()
            case NodeLost(name=name):
                for key in [key for key in self.ailing if key[0] == name]:
                    del self.ailing[key]

    def _note(self, now: dict[Key, Told], key: Key, one: Told) -> None:
        self.told.append(one)
        now.pop(key, None)
        if not one.is_over and len(now) < MOST_KEPT:
            now[key] = one


class CopiesPlaced:
    """Each change of who keeps what."""

    def __init__(self) -> None:
        self.found: deque[ReplicasPlaced] = deque(maxlen=MOST_KEPT)
        self.short = ""  # why the target is not reached; empty if it is, or nothing was said

    def take(self, entry: Entry) -> None:
        match entry.event:
            case ReplicasPlaced() as said:
                self.found.append(said)
                self.short = ""
            case ReplicasShort(reason=reason):
                self.short = reason
            case RunFinished() | RunFailed():
                self.short = ""


class Finite:
    """When losses were NaN or infinite, as the root agent noticed."""

    def __init__(self) -> None:
        self.found: list[NotFinite] = []  # in order of the log; the last may not be over

    def take(self, entry: Entry) -> None:
        match entry.event:
            case LossNotFinite(iteration=iteration) as noticed:
                whole(iteration)
                # A root that was just elected says it again.
                if len(self.found) < MOST_KEPT and self.under_way is None:
                    self.found.append(NotFinite(began=noticed))
            case LossFinite(iteration=iteration) if self.under_way is not None:
                self.found[-1] = NotFinite(began=self.found[-1].began, ended=whole(iteration))

    @property
    def under_way(self) -> NotFinite | None:
        return self.found[-1] if self.found and self.found[-1].ended is None else None


class VerifiedSums:
    """Verified computations, and each time that machines came to different numbers."""

    def __init__(self) -> None:
        self.count = 0  # iterations of which all machines computed the same
        self.newest: int | None = None  # the newest of them; `None` for none
        self.took_s = 0.0  # what that took, all together
        # Each time that they did not, once though every rank says it; the newest.
        self.wrong: deque[WrongSums] = deque(maxlen=MOST_KEPT)
        self.total = 0  # how many of these there were, also before those that are kept
        self._last: tuple[int, int, str] = (-1, -1, "")

    def take(self, entry: Entry) -> None:
        match entry.event:
            case SumsVerified() as said:
                self.count += 1
                self.newest = whole(said.iteration)
                self.took_s += seconds(said.duration_s)
            case WrongSums() as said:
                key = whole(said.epoch), whole(said.iteration), said.work
                if key == self._last:
                    return
                self._last = key
                self.total += 1
                self.wrong.append(said)
                if said.goes_back:
                    self.newest = whole(said.version)


TIMED: Final = 10_000
"""Newest versions of which it is known when they were whole."""


class Persistent:
    """Versions in the persistent tier."""

    def __init__(self) -> None:
        self.size_bytes = 0  # of all that was written
        self.failed = 0
        self.versions: set[int] = set()
        # When each was whole, and how long it took.
        self.written: deque[tuple[float, float]] = deque(maxlen=TIMED)
        self.failures: deque[str] = deque(maxlen=MOST_KEPT)

    def take(self, entry: Entry) -> None:
        match entry.event:
            case PersistFinished() as done:
                version, size_bytes = whole(done.version), whole(done.size_bytes)
                self.written.append((entry.at_s, seconds(done.duration_s)))
                self.versions.add(version)
                self.size_bytes += size_bytes
            case PersistFailed() as failed:
                self.failed += 1
                self.failures.append(f"version {failed.version}: {failed.reason}")


class Sums:
    """Bytes sent.

    Memory: 8 bytes a version.
    """

    def __init__(self) -> None:
        self.checkpoint_bytes = 0  # replicas sent while training
        # Shards that were loaded, by the tier that they came from.
        self.restored_bytes: Counter[str] = Counter()
        self.versions = array("q")  # versions that were whole at some time, each once, in order

    def take(self, entry: Entry) -> None:
        match entry.event:
            case VersionComplete() as done:
                version, sent_bytes = whole(done.version), whole(done.sent_bytes)
                self.checkpoint_bytes += sent_bytes
                newest = self.versions[-1] if self.versions else -1
                if version > newest:  # nearly always
                    self.versions.append(version)
                elif version != newest:
                    place = bisect_left(self.versions, version)
                    if self.versions[place] != version:
                        self.versions.insert(place, version)
            case ShardRestored(tier=tier, size_bytes=size_bytes):
                self.restored_bytes[tier] += whole(size_bytes)

    @property
    def recovery_bytes(self) -> int:
        return self.restored_bytes["peer"]


class Plans:
    """The traffic plans that ranks agreed on after profiling; a few in a run."""

    def __init__(self) -> None:
        self._told: list[TrafficPlan] = []

    def take(self, entry: Entry) -> None:
        match entry.event:
            case Profiled() as plan:
                self._told.append(
                    TrafficPlan(
                        at_s=entry.at_s,
                        profile=plan.profile,
                        schedule=plan.schedule,
                        calibration=plan.calibration,
                    )
                )

    def told(self) -> tuple[TrafficPlan, ...]:
        return tuple(sorted(self._told, key=lambda plan: plan.at_s))
