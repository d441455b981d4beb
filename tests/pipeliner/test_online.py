"""Which versions leave, and when a job is profiled: the same on all ranks, by marks alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from gemini_lab.pipeliner.online import PATIENCE, MakePlan, OnlinePlanner, Order, UseBackground
from gemini_lab.pipeliner.slowdown import Expected, Felt, FeltWatch
from gemini_lab.profiler.drift import WINDOW, WINDOWS, Drift
from gemini_lab.profiler.observe import SKIP, IterationRecord, SequenceChange
from gemini_lab.profiler.profile import CollectiveRecord

PROFILED = 2
PLANNED = Expected(iteration_s=1.0, delay_s=0.0, felt_s=0.0, allowed_s=0.1)


def iteration(*, calls: int = 1, start_s: float = 0.1, end_s: float = 0.2) -> IterationRecord:
    record = CollectiveRecord(name="all_reduce", size_bytes=8, start_s=start_s, end_s=end_s)
    return IterationRecord(collectives=(record,) * calls, iteration_s=1.0, update_s=0.9)


@dataclass
class Story:
    """The ranks of one job, iteration by iteration; a plan is made whenever one is ordered."""

    ranks: list[OnlinePlanner]
    every: int = 1
    version: int = 0
    marks: tuple[int, ...] = ()
    sent: list[int] = field(default_factory=list)
    orders: list[list[Order]] = field(default_factory=list)

    def go_on(
        self, iterations: int, *, calls: list[int] | None = None, end_s: Sequence[float] = (0.2,)
    ) -> None:
        """Iterations in which each rank calls so many collectives, each over by its `end_s`."""
        for _ in range(iterations):
            self.version += 1
            told, self.marks = self.marks, ()
            answers = []
            self.orders = []
            for rank, planner in enumerate(self.ranks):
                record = iteration(
                    calls=calls[rank] if calls else 1,
                    start_s=0.1 + 0.01 * rank,
                    end_s=end_s[rank % len(end_s)],
                )
                self.orders.append(list(planner.end_iteration(record, told)))
                if any(isinstance(order, MakePlan) for order in self.orders[-1]):
                    planner.follow(every_iterations=self.every, expected=PLANNED)
                answers.append(planner.admit(self.version))
            assert len({*answers}) == 1, "all ranks send the same versions"
            if answers[0]:
                self.sent.append(self.version)
                self.marks = tuple(planner.mark for planner in self.ranks)

    def until(self, kind: type[Order]) -> int:
        """The iteration in which the first rank is ordered this."""
        for _ in range(10 * (SKIP + PROFILED)):
            self.go_on(1)
            if any(isinstance(order, kind) for order in self.orders[0]):
                return self.version
        raise AssertionError(f"{kind} is never ordered")

    def until_planned(self) -> int:
        return self.until(MakePlan)


def story(*, ranks: int = 2, every: int = 1) -> Story:
    made = [OnlinePlanner(world_size=ranks, iterations=PROFILED) for _ in range(ranks)]
    return Story(made, every=every)


@pytest.fixture
def two() -> Story:
    return story()


def test_every_version_is_sent_until_profiling_begins_and_then_every_second() -> None:
    one = OnlinePlanner(world_size=2, iterations=PROFILED)
    sent = []
    for version in range(1, SKIP + 6):
        one.end_iteration(iteration())
        if one.admit(version):
            sent.append(version)
    assert sent == [*range(1, SKIP + 1), SKIP + 2, SKIP + 4]
    assert one.next_version == SKIP + 6


def test_a_profile_is_made_of_iterations_without_traffic_only() -> None:
    """After settling, every second iteration carries none: two of those take four iterations."""
    one = OnlinePlanner(world_size=2, iterations=PROFILED)
    marks = []
    for version in range(1, SKIP + 2 * PROFILED + 1):
        marks.append(one.mark)
        one.end_iteration(iteration())
        one.admit(version)
    assert not any(marks)
    assert one.mark != 0


def test_ranks_that_saw_the_same_sequence_plan_in_the_same_iteration(two: Story) -> None:
    two.until_planned()
    for orders in two.orders:
        assert [type(order) for order in orders] == [MakePlan]


@pytest.mark.parametrize("every", [1, 3])
def test_under_a_plan_every_so_manieth_version_is_sent(every: int) -> None:
    planned = story(every=every)
    planned.until_planned()
    count = len(planned.sent)
    planned.go_on(10)
    later = planned.sent[count:]
    assert [other - one for one, other in pairwise(later)] == [every] * (len(later) - 1)
    assert len(later) >= 3


def test_a_change_on_one_rank_brings_all_back_to_the_background(two: Story) -> None:
    two.until_planned()
    two.go_on(1, calls=[1, 2])
    assert two.orders[0] == []
    (seen,) = two.orders[1]
    assert isinstance(seen, SequenceChange)
    two.go_on(1)
    for orders in two.orders:
        assert [type(order) for order in orders] == [UseBackground]
        assert "changed" in orders[0].reason


@pytest.mark.parametrize("every", [1, 3])
def test_spans_that_drift_on_one_rank_bring_all_back_to_be_profiled_again(every: int) -> None:
    two = story(every=every)
    two.until_planned()
    two.go_on(WINDOW)
    told: list[list[tuple[int, Order]]] = [[], []]
    for _ in range(200):
        two.go_on(1, end_s=[0.2, 0.8])
        for rank, orders in enumerate(two.orders):
            told[rank] += [(two.version, order) for order in orders]
    assert [type(order) for _, order in told[0]] == [UseBackground, MakePlan]
    assert [type(order) for _, order in told[1]] == [Drift, UseBackground, MakePlan]
    assert "and is 210 ms" in told[1][0][1].difference
    assert [when for when, _ in told[0]] == [when for when, _ in told[1][1:]]
    (seen, _), (left, _), (planned, _) = told[1]
    assert left - seen <= every
    assert planned - left <= 2 * SKIP + 2 * PROFILED + 2


def test_a_drift_is_not_forgotten_before_all_were_told_of_it() -> None:
    """Even where so few iterations make a profile that the rank has another one by then."""
    one = OnlinePlanner(world_size=2, iterations=1)
    for version in range(1, 3 * SKIP):
        one.end_iteration(iteration())
        one.admit(version)
    mark = one.mark
    assert mark != 0
    one.end_iteration(iteration(), (mark, mark))
    one.follow(every_iterations=100, expected=PLANNED)
    found = [one.end_iteration(iteration()) for _ in range(WINDOW)]
    found += [one.end_iteration(iteration(end_s=0.8)) for _ in range(WINDOWS * WINDOW)]
    assert isinstance(found[-1][0], Drift)
    for version in range(100, 130):
        one.end_iteration(iteration(end_s=0.8))
        one.admit(version)
    assert one.mark == 0


def test_after_a_change_the_job_settles_twice_as_long_and_is_planned_for_again(two: Story) -> None:
    two.until_planned()
    two.go_on(1, calls=[2, 2])
    changed = two.until(UseBackground)
    two.until_planned()
    later = [version for version in two.sent if version >= changed]
    settled = changed + 2 * SKIP
    assert later[: 2 * SKIP + 2] == [*range(changed, settled + 1), settled + 2]


def test_a_change_seen_just_as_all_agree_does_not_keep_one_rank_from_planning(two: Story) -> None:
    """The others plan with it now; the next marks then bring all of them back."""
    while not (two.marks and all(two.marks)):
        two.go_on(1)
    two.go_on(1, calls=[1, 2])
    assert [type(order) for order in two.orders[0]] == [MakePlan]
    assert [type(order) for order in two.orders[1]] == [SequenceChange, MakePlan]
    two.until(UseBackground)
    assert [type(order) for orders in two.orders for order in orders] == [UseBackground] * 2


def test_ranks_with_different_collectives_stay_in_the_background(two: Story) -> None:
    reasons = []
    for _ in range(30):
        two.go_on(1, calls=[1, 2])
        reasons += [o.reason for o in two.orders[0] if isinstance(o, UseBackground)]
    (reason,) = reasons
    assert "differ from each other" in reason
    assert two.sent[-6:] == list(range(25, 31))


def test_a_job_that_never_repeats_is_given_up_and_every_version_is_sent(two: Story) -> None:
    reasons = []
    for calls in range(1, 40):
        two.go_on(1, calls=[calls, calls])
        reasons += [(calls, o.reason) for o in two.orders[0] if isinstance(o, UseBackground)]
    ((when, reason),) = reasons
    assert "do not repeat" in reason
    assert SKIP + 2 * PATIENCE * PROFILED < when <= SKIP + 2 * PATIENCE * PROFILED + 2
    assert two.sent[-6:] == list(range(34, 40))


def test_a_single_rank_is_never_profiled_and_sends_every_version() -> None:
    alone = story(ranks=1)
    alone.go_on(20)
    assert alone.sent == list(range(1, 21))
    assert alone.ranks[0].mark == 0


def test_a_plan_that_is_refused_leaves_all_in_the_background_for_good() -> None:
    one = OnlinePlanner(world_size=2, iterations=PROFILED)
    order = one.give_up("the buffer is too small")
    assert order.reason.endswith("the buffer is too small")
    for version in range(1, 20):
        assert one.end_iteration(iteration(), (1, 1)) == ()
        assert one.admit(version)


def felt_after(iterations_s: Sequence[float]) -> Felt | None:
    watch = FeltWatch(PLANNED)
    found = [watch.observe(iteration_s) for iteration_s in iterations_s]
    assert not any(found[:-1])
    return found[-1]


def test_chunks_are_felt_where_iterations_take_longer_for_two_windows_in_a_row() -> None:
    longer, planned = [1.3] * WINDOW, [1.05] * WINDOW
    assert felt_after(planned * 5) is None
    assert felt_after((longer + planned) * 3) is None
    assert felt_after([1.05] * 6 + [9.0] * 4 + planned) is None  # some stalled
    assert felt_after(planned + longer * WINDOWS) is not None


def test_only_iterations_that_carry_a_version_tell_whether_it_is_felt() -> None:
    one = OnlinePlanner(world_size=2, iterations=1)
    for version in range(1, 3 * SKIP):
        one.end_iteration(iteration())
        one.admit(version)
    one.end_iteration(iteration(), (one.mark, one.mark))
    one.follow(every_iterations=2, expected=PLANNED)
    told = []
    for version in range(100, 200):
        longer = replace(iteration(), iteration_s=1.5 if version % 2 else 1.0)
        told += one.end_iteration(longer)
        one.admit(version)
    assert [type(order) for order in told] == [Felt]
