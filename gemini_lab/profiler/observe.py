"""Online profiling: from recorded iterations to a profile, and again when the job changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.average import build_profile
from gemini_lab.profiler.profile import CollectiveRecord, Profile, first_difference

ITERATIONS: Final = 20
"""How many iterations make a profile (paper, section 5.4)."""
SKIP: Final = 3
"""Iterations before those: ZeRO-3 learns its prefetch order in the first two."""
STALL: Final = 1.5
"""An iteration that takes this many times the median says nothing of the others: the script
evaluated or saved before it, or a batch came late. In a mean it would pass for idle time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One iteration as one rank saw it.

    Attributes:
        collectives: In the order of the calls.
        iteration_s: From the end of one optimizer step to the end of the next.
        update_s: Where that next step began, since the iteration's start.
    """

    collectives: tuple[CollectiveRecord, ...]
    iteration_s: float
    update_s: float

    @property
    def sequence(self) -> list[tuple[str, int]]:
        """Name and bytes of each collective, in order."""
        return [(record.name, record.size_bytes) for record in self.collectives]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChange:
    """The job's collectives are no longer those of its profile: it must not be followed.

    Attributes:
        iteration: How many iterations the profiler had seen before this one.
        difference: Where the sequences part, in words.
    """

    iteration: int
    difference: str


class Profiler:
    """Collects iterations until a profile is made, then watches that it stays true.

    It does no input or output. Fed with the same sequences, as the ranks of one job are, it
    decides the same on every rank at the same iteration.

    Args:
        iterations: How many make a profile.
        skip: How many to let pass first, and again after a change.
        world_size: Number of ranks of the job.
        conditions: See `Profile.conditions`.

    Attributes:
        profile: The newest profile that still holds; `None` before it is made and after a change.

    Raises:
        ConfigError: `iterations` is below 1 or `skip` is negative.
    """

    profile: Profile | None

    def __init__(
        self,
        *,
        iterations: int = ITERATIONS,
        skip: int = SKIP,
        world_size: int = 1,
        conditions: Sequence[str] = (),
    ) -> None:
        if iterations < 1 or skip < 0:
            raise ConfigError(
                f"a profile of {iterations} iterations after {skip} skipped ones cannot be made; "
                "take at least 1 and skip 0 or more"
            )
        self.profile = None
        self._iterations = iterations
        self._skip = skip
        self._world_size = world_size
        self._conditions = tuple(conditions)
        self._seen = 0
        self._skipped = 0
        self._window: list[IterationRecord] = []

    def observe(self, record: IterationRecord) -> Profile | SequenceChange | None:
        """Take one more iteration.

        Returns:
            A profile, at the iteration that completes it; a change, at the iteration that no longer
            follows the profile, after which profiling starts again; otherwise nothing.
        """
        self._seen += 1
        if self.profile is not None:
            return self._compare(self.profile, record)
        if self._skipped < self._skip:
            self._skipped += 1
            return None
        if self._window and self._window[-1].sequence != record.sequence:
            self._window.clear()
        self._window.append(record)
        if len(self._window) < self._iterations:
            return None
        usual = without_stalls(self._window)
        self.profile = build_profile(
            [one.collectives for one in usual],
            iteration_s=[one.iteration_s for one in usual],
            update_s=[one.update_s for one in usual],
            world_size=self._world_size,
            conditions=self._conditions,
        )
        return self.profile

    def _compare(self, profile: Profile, record: IterationRecord) -> SequenceChange | None:
        difference = first_difference(profile.sequence, record.sequence)
        if not difference:
            return None
        self.profile = None
        self._skipped = 0
        self._window.clear()
        return SequenceChange(iteration=self._seen - 1, difference=difference)


def without_stalls(records: Sequence[IterationRecord]) -> list[IterationRecord]:
    """Return the iterations that took at most `STALL` times their median."""
    limit_s = STALL * median(record.iteration_s for record in records)
    return [record for record in records if record.iteration_s <= limit_s]
