"""Progress of training without a failure in closed form, without an event an iteration."""

import math
from dataclasses import dataclass

from gemini_lab.simulator.policy import Policy, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSegment:
    """Training from one version on, until something stops it.

    Versions are numbered by iterations, so a stream checkpoints the same versions whenever they are
    computed: repeating lost work takes as long as it took the first time.
    """

    version: int  # what training starts from
    iteration_s: float  # duration of an iteration, the policy's slowdown included
    policy: Policy  # says after which iterations training stands still, and for how long

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(s for s in (self.policy.memory, self.policy.persistent) if s is not None)

    def reached_s(self, version: int) -> float:
        """Return when `version` is computed, since the segment's start, before its own stalls."""
        done = version - self.version
        stalls_s = sum(
            ((version - 1) // s.every - self.version // s.every) * s.stall_s for s in self.streams
        )
        return done * self.iteration_s + stalls_s if done else 0.0

    def stands_at_s(self, progress: float) -> float:
        """Return when training stands at `progress`, since the start; 0 if it did before."""
        whole = math.floor(progress)
        if progress <= self.version:
            return 0.0
        stalls_s = self._stall_s(whole) if whole > self.version and progress > whole else 0.0
        return self.reached_s(whole) + stalls_s + (progress - whole) * self.iteration_s

    def newest_at(self, elapsed_s: float) -> int:
        """Return the newest version computed `elapsed_s` after the segment's start."""
        low = self.version
        high = low + math.floor(elapsed_s / self.iteration_s + 1e-9)
        while low < high:
            middle = (low + high + 1) // 2
            if self.reached_s(middle) <= elapsed_s * (1 + 1e-12):
                low = middle
            else:
                high = middle - 1
        return low

    def progress_at(self, elapsed_s: float) -> float:
        """Return the versions computed by then, the running iteration as a fraction."""
        newest = self.newest_at(elapsed_s)
        stalled_s = self._stall_s(newest) if newest > self.version else 0.0
        running_s = max(0.0, elapsed_s - self.reached_s(newest) - stalled_s)
        return newest + min(1.0, running_s / self.iteration_s)

    def newest_whole(self, stream: Stream, elapsed_s: float) -> int | None:
        """Return the newest version of `stream` that is whole by then; `None` if none is."""
        spare_s = elapsed_s - stream.stall_s - stream.delay_s
        if spare_s < 0:
            return None
        newest = self.newest_at(spare_s) // stream.every * stream.every
        return newest if newest > self.version else None

    def waited_s(self, version: int) -> float:
        stall_s = self._stall_s(version - 1) if version - 1 > self.version else 0.0
        return self.policy.slowdown_s + stall_s

    def _stall_s(self, version: int) -> float:
        return sum(s.stall_s for s in self.streams if version % s.every == 0)
