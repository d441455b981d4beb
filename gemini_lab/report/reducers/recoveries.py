"""Failures, the recoveries from them, and the marks of both on the timeline."""

from collections import deque
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Final, Literal

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Diverged,
    Injected,
    LossNotFinite,
    NodeDrained,
    NodeLeaving,
    NodeLost,
    RecoveryFinished,
    RecoveryStarted,
    ReplicasPlaced,
    Resized,
    ResizeRefused,
    Rewound,
    WorkerExited,
    WorkerHung,
    WrongSums,
)
from gemini_lab.report.recovery import (
    Importing,
    Injection,
    Receipt,
    Recovery,
    Step,
    WorkerExit,
)
from gemini_lab.report.reducers import MOST_KEPT, seconds, whole
from gemini_lab.report.reducers.iteration_pace import IterationPace
from gemini_lab.report.reducers.iterations import Divergences
from gemini_lab.report.reducers.rank_progress import Reached
from gemini_lab.report.reducers.spans import STRIKES, Seated, Spans, lost_training

MarkKind = Literal["injected", "noticed", "planned", "lost", "recovery"]
"""Of what is marked: noticed is a failure, planned no failure, lost a node that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """Something that concerns the whole timeline."""

    kind: MarkKind
    start_s: float  # when it happened or began, on the log's clock
    end_s: float | None = None  # when it was over; None while it is not, or if it has no length
    lane: str = ""
    text: str = ""


class Marks:
    """Failures and recoveries, in the order in which the log tells them."""

    def __init__(self) -> None:
        # All of them; a recovery's gets its end when that is told.
        self.marks: list[TimelineMark] = []
        self.changes = 0
        self._recoveries: dict[int, int] = {}
        self._wrong = (-1, -1)  # epoch and iteration of the newest wrong sums: the same
        self._rewound = (-1, -1)  # epoch and number of the newest rewind: every rank says it

    def take(self, entry: Entry) -> None:
        at_s, node, event = entry.at_s, entry.node, entry.event
        match event:
            case Injected():
                text = f"{event.failure.replace('_', ' ')} on {node}"
                self._mark("injected", at_s, text, lane=node)
            case NodeLost(name=name):
                self._mark("lost", at_s, f"{name} is gone", lane=name)
            case NodeLeaving(name=name):
                self._mark("planned", at_s, f"{name} is to go", lane=name)
            case NodeDrained(name=name):
                self._mark("planned", at_s, f"{name} has no ranks left", lane=name)
            case Resized() | ReplicasPlaced() | ResizeRefused():
                self._mark("planned", at_s, f"{event}")
            case WorkerExited() | WorkerHung():
                what = "exited" if isinstance(event, WorkerExited) else "hangs"
                self._mark("noticed", at_s, f"rank {event.rank} on {node} {what}", lane=node)
            case Diverged():
                text = f"DIVERGED: rank {event.rank}, iteration {event.iteration}: {event.differs}"
                self._mark("noticed", at_s, text)
            case LossNotFinite():
                self._mark("noticed", at_s, f"NOT FINITE: {event}")
            case Rewound() as said if (said.epoch, said.rewinds) > self._rewound:
                self._rewound = said.epoch, said.rewinds
                started_s = at_s - seconds(said.duration_s)
                self._mark("recovery", started_s, f"WENT BACK: {said}", end_s=at_s)
            case WrongSums() as said if (said.epoch, said.iteration) > self._wrong:
                self._wrong = said.epoch, said.iteration
                self._mark("noticed", at_s, f"WRONG SUMS: {said}")
            case RecoveryStarted(recovery=number):
                started_s = seconds(event.failed_at_s)
                self._recoveries[number] = len(self.marks)
                self._mark("recovery", started_s, f"recovery {number}")
            case RecoveryFinished(recovery=number) if number in self._recoveries:
                place = self._recoveries[number]
                text = f"{self.marks[place].text}, from version {event.version}"
                self.marks[place] = replace(self.marks[place], end_s=at_s, text=text)
                self.changes += 1

    def _mark(
        self,
        kind: MarkKind,
        start_s: float,
        text: str,
        *,
        lane: str = "",
        end_s: float | None = None,
    ) -> None:
        if len(self.marks) >= MOST_KEPT:
            raise OverflowError(f"more than {MOST_KEPT} failures")
        mark = TimelineMark(kind=kind, start_s=start_s, end_s=end_s, lane=lane, text=text)
        self.marks.append(mark)
        self.changes += 1


MOST_STEPS: Final = 1000
"""Steps, or copies that were stepped over, of one recovery."""


@dataclass(slots=True)
class _RecoveryEvents:
    """The events of one recovery."""

    number: int
    first_s: float
    before: tuple[str | None, ...]  # who had which position
    started: events.RecoveryStarted | None = None
    plans: dict[int, events.RecoveryPlanned] = field(default_factory=dict)  # by epoch
    steps: list[Step] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    kept: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by epoch
    refused: list[events.ResizeRefused] = field(default_factory=list)
    lost: dict[str, None] = field(default_factory=dict)  # on the way
    ready: dict[str, tuple[float, float]] = field(default_factory=dict)  # when; its imports took
    resumed_at_s: float | None = None

    @property
    def plan(self) -> events.RecoveryPlanned | None:
        return self.plans[max(self.plans)] if self.plans else None


class RecoveryReducer:
    """A run's recoveries; numbers that the root agent cannot know are counted from the log."""

    def __init__(
        self,
        reached: Reached,  # how far each rank came; takes an entry before this does
        pace: IterationPace,  # when which iteration ended; takes an entry before this does
        divergences: Divergences,  # what was not the same when it was done again
        spans: Spans,  # when the run failed and trained again; also of recoveries that are not kept
        seated: Seated,  # who had ranks when: no other node's end is a failure
        *,
        # How many of the newest recoveries, injections and exits to keep; `None` for all.
        most: int | None = None,
    ) -> None:
        self.total = 0  # all recoveries, kept or not
        self.changes = 0  # counts entries that changed an answer
        self.injections: deque[Injection] = deque(maxlen=most)
        self.exits: deque[WorkerExit] = deque(maxlen=most)
        self._reached, self._pace, self._divergences = reached, pace, divergences
        self._spans, self._seated, self._most = spans, seated, most or MOST_KEPT
        self._told: dict[int, _RecoveryEvents] = {}
        self._receipts: dict[int, dict[int, tuple[float, Receipt]]] = {}  # by epoch and shard
        self._dropped: tuple[int, int, float] = (0, 0, float("-inf"))  # number, epoch, resumed
        self._members: tuple[str | None, ...] = ()  # the newest plan's

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case events.Injected():
                at_s, kind = seconds(entry.at_s), event.failure
                struck = Injection(at_s=at_s, kind=kind, node=entry.node, rank=event.rank)
                self.injections.append(struck)
            case events.WorkerExited():
                self.exits.append(exit_of(entry, event))
            case events.ShardRestored():
                self._restore(entry, event)
            case events.ResizeRefused():
                self._refuse(event)
            case events.NodeLost(name=name):
                self._lose(name, seconds(entry.at_s))
            case events.NodeReady(name=name, import_s=import_s):
                newest = self._under_way()  # its restart may wait for these imports
                if newest is not None and len(newest.ready) < MOST_STEPS:
                    newest.ready[name] = seconds(entry.at_s), seconds(import_s)
            case events.OfRecovery(recovery=number) if number > 0:
                self._tell(entry, event)
            case events.RecoveryPlanned(members=members):
                self._members = members
            case _:
                return
        self.changes += 1

    def _restore(self, entry: Entry, event: events.ShardRestored) -> None:
        if event.epoch not in self._receipts and len(self._receipts) > self._most:
            del self._receipts[min(self._receipts)]
        shards = self._receipts.setdefault(whole(event.epoch), {})
        before = shards.get(whole(event.shard))
        if before is None or entry.at_s >= before[0]:
            shards[event.shard] = seconds(entry.at_s), _receipt(event)

    def _refuse(self, event: events.ResizeRefused) -> None:
        whole(event.nodes)
        newest = self._under_way()
        if newest is not None and len(newest.refused) < MOST_STEPS:
            newest.refused.append(event)

    def _lose(self, name: str, at_s: float) -> None:
        """Note a node that is lost in the recovery under way, such as a new member."""
        newest = self._under_way()
        if newest is None or not self._seated.had_ranks(name, at_s):
            return
        if len(newest.lost) < MOST_STEPS:
            newest.lost[name] = None

    def _under_way(self) -> _RecoveryEvents | None:
        newest = self._told.get(max(self._told, default=0))
        return None if newest is None or newest.resumed_at_s is not None else newest

    def _tell(self, entry: Entry, event: events.OfRecovery) -> None:
        if (told := self._recovery(whole(event.recovery), seconds(entry.at_s))) is None:
            return
        match event:
            case events.RecoveryStarted():
                seconds(event.failed_at_s)
                told.started = told.started or event
            case events.RecoveryStep() if len(told.steps) < MOST_STEPS:
                times_s = seconds(event.start_s), seconds(event.end_s)
                told.steps.append(Step(name=event.step, start_s=times_s[0], end_s=times_s[1]))
            case events.RecoveryPlanned():
                whole(event.version or 0)
                told.plans[whole(event.epoch)] = event
                self._members = event.members
            case events.ProcessesKept():
                told.kept[whole(event.epoch)] = tuple(map(whole, event.ranks[:MOST_KEPT]))
            case events.RecoveryFinished() if told.resumed_at_s is None:
                # The root says so once it has written it down: the step ended before that.
                warm_s = [step.end_s for step in told.steps if step.name == "warm_up"]
                told.resumed_at_s = max(warm_s, default=entry.at_s)
            case events.ReplicaRejected() | events.VersionRejected():
                if len(told.rejected) < MOST_STEPS:
                    told.rejected.append(_rejection(event))

    def _recovery(self, number: int, at_s: float) -> _RecoveryEvents | None:
        """Return the recovery with this number; `None` if it was dropped as too old."""
        found = self._told.get(number)
        if found is None:
            if number <= self._dropped[0]:
                return None
            found = self._told[number] = _RecoveryEvents(
                number=number, first_s=at_s, before=self._members
            )
            self.total += 1
            if len(self._told) > self._most:
                old = self._told.pop(min(self._told))
                epoch = max(old.plans, default=self._dropped[1])
                over_s = old.resumed_at_s or self._dropped[2]
                self._dropped = old.number, epoch, over_s
        return found

    # -- answers; each costs time in proportion to what is kept ----------------------------------

    def recoveries(self) -> tuple[Recovery, ...]:
        """Return the recoveries that are kept, in order of their numbers."""
        found = []
        lost = lost_training(self._spans.outages(), self._pace)
        _, epoch, over_s = self._dropped
        for number, told in sorted(self._told.items()):
            recovery = self._caused(self._recovered(told, since=epoch), after_s=over_s)
            if number in lost and recovery.resumed_at_s is not None:
                lost_s = fsum(end_s - start_s for start_s, end_s in lost[number])
                recovery = replace(recovery, lost_progress_s=lost_s)
            found.append(recovery)
            epoch = max(told.plans, default=epoch)
            over_s = recovery.resumed_at_s or over_s
        return tuple(found)

    def _recovered(self, told: _RecoveryEvents, *, since: int) -> Recovery:
        plan, start = told.plan, told.started
        reached = self._reached.between(since, None if plan is None else plan.epoch)
        version = None if plan is None else plan.version or 0
        return Recovery(
            number=told.number,
            cause="unknown" if start is None else start.cause,
            injections=(),
            exits=(),
            lost_nodes=tuple({**dict.fromkeys(() if start is None else start.lost), **told.lost}),
            failed_at_s=told.first_s if start is None else start.failed_at_s,
            resumed_at_s=told.resumed_at_s,
            version=version,
            tier=None if plan is None else plan.tier,
            reason="" if plan is None else plan.reason,
            steps=tuple(sorted(told.steps, key=lambda step: step.end_s)),
            receipts=self._receipts_of(told),
            rejected=tuple(told.rejected),
            reached=reached.by_all,
            lost_iterations=0 if version is None else max(0, reached.by_all - version),
            lost_by_any=0 if version is None else max(0, reached.by_any - version),
            lost_progress_s=None,
            kept=told.kept.get(max(told.plans, default=0), ()),
            compared=self._divergences.compared(told.plans),
            divergences=self._divergences.of(told.plans),
            refused=tuple(told.refused),
            importing=_importing(told),
            before=told.before,
            members=() if plan is None else plan.members,
        )

    def _receipts_of(self, told: _RecoveryEvents) -> tuple[Receipt, ...]:
        """Return the newest receipt of each shard, in order of shards."""
        newest: dict[int, Receipt] = {}
        for epoch in sorted(told.plans):
            newest |= {shard: one for shard, (_, one) in self._receipts.get(epoch, {}).items()}
        return tuple(newest[shard] for shard in sorted(newest))

    def _caused(self, recovery: Recovery, *, after_s: float) -> Recovery:
        """Return the recovery with its causes, and the detection as a first step."""
        until_s = recovery.resumed_at_s or float("inf")
        noticed_s = recovery.failed_at_s
        # What was asked for has no cause before it.
        since_s = max(after_s, noticed_s) if recovery.cause in events.PLANNED else after_s
        causes = tuple(
            injection
            for injection in self.injections
            if since_s < injection.at_s < until_s
            and injection.kind in STRIKES
            and self._seated.had_ranks(injection.node, injection.at_s)
        )
        exits = tuple(one for one in self.exits if since_s < one.at_s < until_s)
        recovery = replace(recovery, injections=causes, exits=exits)
        before = [injection.at_s for injection in causes if injection.at_s <= noticed_s]
        if not before or recovery.cause in events.PLANNED:  # nothing has failed
            return recovery
        detect = Step(name="detect", start_s=before[0], end_s=noticed_s)
        return replace(recovery, failed_at_s=before[0], steps=(detect, *recovery.steps))


def _importing(told: _RecoveryEvents) -> tuple[Importing, ...]:
    """Return the nodes that the newest restart waited for until they could fork workers."""
    start = next((step for step in reversed(told.steps) if step.name == "start"), None)
    if told.plan is None or start is None:
        return ()
    return tuple(
        Importing(node=name, waited_s=at_s - start.start_s, import_s=import_s)
        for name, (at_s, import_s) in told.ready.items()
        if name in told.plan.members and start.start_s < at_s < start.end_s
    )


def exit_of(entry: Entry, event: events.WorkerExited) -> WorkerExit:
    """Return the exit of a worker that ended early."""
    how = event.signal or f"exit code {event.exit_code}"
    return WorkerExit(
        at_s=seconds(entry.at_s),
        node=entry.node,
        rank=whole(event.rank),
        how=how,
        output=event.output,
        epoch=whole(event.epoch),
    )


def _receipt(event: events.ShardRestored) -> Receipt:
    return Receipt(
        shard=event.shard,
        version=whole(event.version),
        tier=event.tier,
        holder=event.holder,
        size_bytes=whole(event.size_bytes),
        verified=event.verified,
        retrieve_s=seconds(event.retrieve_s),
        verify_s=seconds(event.verify_s),
        load_s=seconds(event.load_s),
    )


def _rejection(event: events.ReplicaRejected | events.VersionRejected) -> str:
    if isinstance(event, events.VersionRejected):
        return f"version {event.version}: {event.reason}"
    where = event.holder or "the persistent tier"
    return f"shard {event.shard} of version {event.version} on {where}: {event.reason}"
