"""Control of a running job's schedule: when to profile, plan, watch, and which versions to send.

A job begins in the background. After some iterations it is profiled: every second iteration runs
without checkpoint traffic and is recorded, and the version that was not sent before it is the price
(a failure then costs one iteration more). When all ranks have a profile they plan with it; from
then on chunks leave in their spans. When the sequence of collectives changes on any rank, its idle
spans drift (`profiler.drift`) or chunks are felt (`pipeliner.slowdown`), all go back to the
background and profile again. After every such change they wait twice as long before they do, so
that a restless job is rarely profiled.

All ranks must send the same versions in the same way. So what is decided here follows only from
what all ranks know alike: version numbers, and the marks that the ranks exchanged with the newest
version. A rank's own profile decides nothing but its mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.pipeliner.slowdown import Expected, Felt, FeltWatch
from gemini_lab.profiler.drift import Drift, DriftWatch
from gemini_lab.profiler.observe import ITERATIONS, SKIP, IterationRecord, Profiler, SequenceChange
from gemini_lab.profiler.profile import Profile

PATIENCE: Final = 3
"""After so many times the iterations of a profile without one, the job counts as unsteady."""
_MOST_DOUBLINGS: Final = 5
"""How often the time to settle is doubled, one time for each change or drift."""


@dataclass(frozen=True, slots=True)
class MakePlan:
    """All ranks have a profile of the same sequence: agree on one, measure, plan, and follow it.

    It is answered by `OnlinePlanner.follow`, or by `OnlinePlanner.give_up`, on all ranks alike.
    """

    profile: Profile  # what this rank saw
    felt_s: float  # what chunks were seen to cost in an iteration, beside what is modelled


@dataclass(frozen=True, slots=True)
class UseBackground:
    """Versions leave in the background from the next one on; `reason` is for people."""

    reason: str


Remark = SequenceChange | Drift | Felt
Order = MakePlan | UseBackground | Remark
"""What a rank has to do; a `Remark` is only to be said."""


class OnlinePlanner:
    """Decides for one rank of a job, without any input or output.

    At the end of each iteration the rank calls `end_iteration`, does what it is ordered to, and
    asks `admit` about the version that was just made.

    Args:
        world_size: Ranks of the job; a single one has nobody to send to, so nothing is planned.
        iterations: How many make a profile.
        conditions: See `Profile.conditions`.
    """

    def __init__(
        self, *, world_size: int, iterations: int = ITERATIONS, conditions: Sequence[str] = ()
    ) -> None:
        self.next_version = 0  # the next version that will be sent
        self._world_size = world_size
        self._iterations = iterations
        self._conditions = tuple(conditions)
        self._is_over = world_size == 1
        self._marks: tuple[int, ...] = ()
        self._carries_version = True  # whether one travels in the iteration that is computed
        self._planned_every: int | None = None  # how often a version is sent, under a plan
        self._changes = 0
        self._profiler: Profiler
        self._told_profile: Profile | None
        self._watches: tuple[DriftWatch, FeltWatch] | None  # of a plan, until one saw something
        self._is_outdated: bool  # the plan, as this rank has seen
        self._felt: Felt | None = None  # since the last plan
        self._felt_s = 0.0
        self._settle()

    @property
    def mark(self) -> int:
        """Return the number of the profile that this rank sends with each version; 0 is none."""
        profile = self._profiler.profile
        if profile is None or self._is_outdated:
            return 0
        # The fingerprint is that of the sequence; where in it the update comes is told beside it.
        calls = profile.collectives_before_update
        return (int(profile.fingerprint, 16) ^ calls) % (2**62) + 1

    def end_iteration(
        self, record: IterationRecord | None, marks: Sequence[int] = ()
    ) -> tuple[Order, ...]:
        """One more iteration is over.

        Args:
            record: What this rank saw of it; `None` if nothing was recorded.
            marks: Every rank's mark, in rank order, if a version became whole in it.
        """
        self._age += 1
        if self._is_over:
            return ()
        orders: list[Order] = []
        if record is not None and self._is_worth_a_look:
            found = self._profiler.observe(record)
            if isinstance(found, SequenceChange):
                orders.append(found)
            elif found is not None:
                self._told_profile = found
            elif remark := self._look_at_plan(record):
                orders.append(remark)
        self._marks = tuple(marks) or self._marks
        if self._marks:
            orders += self._decide(self._marks)
        return tuple(orders)

    def follow(self, *, every_iterations: int, expected: Expected) -> None:
        """There is a plan from here on, under which every so many iterations a version is sent."""
        self._planned_every = every_iterations
        self._felt, self._felt_s = None, expected.felt_s
        if self._told_profile is not None:
            self._watches = DriftWatch(self._told_profile), FeltWatch(expected)

    def give_up(self, why: str) -> UseBackground:
        self._is_over = True
        self._planned_every = None
        return UseBackground(f"versions leave in the background, not in idle spans: {why}")

    def admit(self, version: int) -> bool:
        """Send `version`, which was just made, or let it pass; true if it is sent."""
        self._carries_version = version >= self.next_version
        if self._carries_version:
            self.next_version = version + self._stride
        return self._carries_version

    def go_back(self, version: int) -> None:
        """Training goes back to a version: what comes after it is made, and admitted, anew."""
        self.next_version = min(self.next_version, version + 1)

    # -- between the iterations ------------------------------------------------------------------

    @property
    def _is_worth_a_look(self) -> bool:
        """Return whether the iteration can build a profile, or could contradict the current one.

        Only iterations without a version show the idle spans as they are.
        """
        if self._profiler.profile is not None:
            return True
        return not self._carries_version and self._age > self._settles

    @property
    def _stride(self) -> int:
        """Return the distance to the next version that is sent."""
        if self._planned_every is not None:
            return self._planned_every
        return 1 if self._is_over or self._age < self._settles else 2

    def _look_at_plan(self, record: IterationRecord) -> Drift | Felt | None:
        """Return how iterations of the same sequence differ from the plan, if they do."""
        if self._watches is None or self._profiler.profile is None:
            return None
        spans, pace = self._watches
        drift = spans.observe(record)
        felt = pace.observe(record.iteration_s) if self._carries_version else None
        if drift or felt:
            self._watches, self._is_outdated = None, True
            self._felt = felt
        return felt or drift

    def _decide(self, marks: Sequence[int]) -> list[Order]:
        is_agreed = marks[0] != 0 and len({*marks}) == 1
        if self._planned_every is not None:
            return [] if is_agreed else [self._fall_back()]
        if is_agreed and self._told_profile is not None:
            # The one that the marks speak of, even if this rank has just seen it contradicted: the
            # others begin to plan now. The next marks then bring all of them back.
            profile = self._told_profile
            felt_s = self._felt_s if self._felt is None else self._felt.felt_s(profile)
            return [MakePlan(profile, felt_s)]
        if all(marks):
            return [self.give_up("the ranks' collectives differ from each other")]
        if self._age > self._settles + 2 * PATIENCE * self._iterations:
            return [self.give_up("the collectives do not repeat from iteration to iteration")]
        return []

    def _fall_back(self) -> UseBackground:
        self._planned_every = None
        self._marks = ()  # they spoke of the profile that was left
        self._changes += 1
        self._settle()
        return UseBackground(
            "some rank's collectives changed, or its idle spans, or chunks are felt: versions "
            "leave in the background until the job is profiled again"
        )

    def _settle(self) -> None:
        """Begin anew: some iterations to settle, more after every change, then profiling."""
        self._age = 0
        self._told_profile = None
        self._watches, self._is_outdated = None, False
        self._settles = SKIP * 2 ** min(self._changes, _MOST_DOUBLINGS)
        self._profiler = Profiler(
            iterations=self._iterations,
            skip=0,
            world_size=self._world_size,
            conditions=self._conditions,
        )
