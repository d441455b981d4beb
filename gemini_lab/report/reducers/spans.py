"""The times of a run: when nodes had ranks, when it failed, recovered and waited, what was lost."""

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import RecoveryPlanned
from gemini_lab.report.reducers import MOST_KEPT, seconds, whole
from gemini_lab.report.reducers.exposure import Interval
from gemini_lab.report.reducers.iteration_pace import IterationPace


class Seated:
    """The nodes with ranks from one plan to the next; plans may be told in any order.

    Memory: 4 bytes for each node of every plan that has other nodes than those before it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._sets: dict[bytes, bytes] = {}
        self._plans: list[tuple[float, bytes]] = []

    def take(self, entry: Entry) -> None:
        event = entry.event
        if not isinstance(event, RecoveryPlanned) or len(self._plans) >= MOST_KEPT:
            return
        at_s, _ = seconds(entry.at_s), whole(event.version or 0)  # an odd plan seats nobody
        numbers = {
            self._numbers.setdefault(name, len(self._numbers)) for name in event.members if name
        }
        packed = array("I", sorted(numbers)).tobytes()
        insort(self._plans, (at_s, self._sets.setdefault(packed, packed)))

    def had_ranks(self, node: str, at_s: float) -> bool:
        """Return whether a node had ranks then; before the first plan every node may have."""
        before = bisect_right(self._plans, at_s, key=lambda plan: plan[0])
        if before == 0:
            return True
        return self._numbers.get(node, -1) in memoryview(self._plans[before - 1][1]).cast("I")


NEVER: Final = float("inf")
STRIKES: Final = frozenset({"worker_crash", "worker_hang", "node_loss", "node_freeze"})
"""Injections that a recovery answers; others are met on the way, such as a flipped bit."""
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """One recovery as a span of time; the job's first start is one without a failure."""

    recovery: int  # its number; 0 is the first start
    noticed_s: float
    failed_s: float  # when it struck, where the injector said so, else when it was noticed
    resumed_s: float  # when the first iteration after it had ended; infinite while it goes on
    version: int | None  # what was loaded; 0 for the start, `None` where nothing was planned
    is_planned: bool = False  # whether somebody asked for it: nothing failed


@dataclass(slots=True)
class _SpanEvents:
    """The events of one recovery."""

    first_s: float
    failed_s: float | None = None
    is_planned: bool = False
    warm_s: float | None = None
    resumed_s: float = NEVER
    plan: tuple[int, int] | None = None  # epoch and version


class Spans:
    """Every recovery's spans of time, also of those whose details were dropped as too old.

    Memory: some 24 bytes for each step of a recovery.
    """

    def __init__(self, seated: Seated) -> None:
        self._seated = seated
        # A recovery's number, a step's name, and from when to when, as told.
        self.steps: list[tuple[int, str, Interval]] = []
        self._told: dict[int, _SpanEvents] = {}
        self._strikes: list[tuple[float, str]] = []  # when, on which node
        self._waits: list[tuple[int, float, float]] = []  # recovery, from when, until when

    def take(self, entry: Entry) -> None:
        match entry.event:
            case events.Injected(failure=kind) if kind in STRIKES:
                _keep(self._strikes, (seconds(entry.at_s), entry.node))
            case events.OfRecovery(recovery=number) as event:
                self._tell(whole(number), seconds(entry.at_s), event)

    def _tell(self, number: int, at_s: float, event: events.OfRecovery) -> None:
        told = self._told.get(number)
        if told is None:
            if len(self._told) >= MOST_KEPT:
                raise ValueError("no run recovers so often")
            told = self._told[number] = _SpanEvents(first_s=at_s)
        match event:
            case events.RecoveryStarted() if told.failed_s is None:
                told.failed_s = seconds(event.failed_at_s)
                told.is_planned = event.cause in events.PLANNED
            case events.RecoveryStep():
                step = event.step, (seconds(event.start_s), seconds(event.end_s))
                _keep(self.steps, (number, *step))
                if event.step == "warm_up":
                    told.warm_s = step[1][1]
            case events.RecoveryPlanned():
                told.plan = max(told.plan or (0, 0), (whole(event.epoch), event.version or 0))
                self._end_wait(number, at_s)
            case events.RecoveryWaiting() if not self._waits or self._waits[-1][2] < NEVER:
                _keep(self._waits, (number, at_s, NEVER))
            case events.RecoveryFinished():
                # The root says so once it has written it down: the step ended before that.
                resumed_s = at_s if told.warm_s is None else told.warm_s
                told.resumed_s = min(told.resumed_s, resumed_s)
                self._end_wait(number, at_s)

    def _end_wait(self, number: int, at_s: float) -> None:
        if self._waits and self._waits[-1][0] == number and self._waits[-1][2] == NEVER:
            self._waits[-1] = number, self._waits[-1][1], at_s

    # -- answers ---------------------------------------------------------------------------------

    def outages(self) -> tuple[Downtime, ...]:
        """Return all but the start; a failure's strike is the first since the one before."""
        found = []
        strikes = sorted(at_s for at_s, node in self._strikes if self._seated.had_ranks(node, at_s))
        after_s = -NEVER
        for number, told in sorted(self._told.items()):
            if number == 0:
                continue
            noticed_s = told.first_s if told.failed_s is None else told.failed_s
            struck = [] if told.is_planned else strikes[bisect_right(strikes, after_s) :][:1]
            found.append(
                Downtime(
                    recovery=number,
                    noticed_s=noticed_s,
                    failed_s=min(*struck, noticed_s) if struck else noticed_s,
                    resumed_s=told.resumed_s,
                    version=None if told.plan is None else told.plan[1],
                    is_planned=told.is_planned,
                )
            )
            after_s = told.resumed_s if told.resumed_s < NEVER else after_s
        return tuple(found)

    def waits(self) -> Sequence[Interval]:
        """Return when a recovery waited: for machines, or for versions that may come back."""
        return [(start_s, end_s) for _, start_s, end_s in self._waits]


def _keep(rows: list[Row], row: Row) -> None:
    if len(rows) < MOST_KEPT:
        rows.append(row)


def lost_training(outages: Sequence[Downtime], pace: IterationPace) -> dict[int, list[Interval]]:
    """Return from when to when training was for nothing, by recovery, newest first.

    That is the time since the version that was loaded had been reached, or from the first iteration
    on where there was none, up to the failure. Earlier recoveries in between do not count, up to
    the end of their first iteration, nor does what the failures before them had lost already.

    Returns:
        None for a recovery of which nobody knows when its version was reached, or whether there
        is one.
    """
    reached_s = pace.reached()
    starts_s, _, _ = pace.spans()
    began_s = float(starts_s.min(initial=float("inf")))  # in whichever try
    found: dict[int, list[Interval]] = {}
    gone: list[Interval] = []  # apart from one another, in order
    for outage in outages:
        since_s = began_s if outage.version == 0 else None
        if outage.is_planned:  # all ranks stopped together, after an iteration
            since_s = outage.failed_s
        elif outage.version:  # ranks that were not struck may bring it about after the failure
            since_s = reached_s(outage.version, outage.resumed_s)
        edge_s = outage.failed_s
        from_s = edge_s if since_s is None else min(since_s, edge_s)
        lost = []
        while gone and gone[-1][1] > from_s:
            start_s, end_s = gone.pop()
            if end_s < edge_s:
                lost.append((end_s, edge_s))
            edge_s = min(edge_s, start_s)
        if from_s < edge_s:
            lost.append((from_s, edge_s))
        gone.append((min(from_s, edge_s), outage.resumed_s))
        if since_s is not None:
            found[outage.recovery] = lost
    return found
