"""How far undisturbed training gets, in closed form: no event for every iteration."""

import math
from dataclasses import dataclass

from gemini_lab.simulator.policy import Policy, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Training from one version on, until something stops it.

    Versions are numbered by iterations, so a stream checkpoints the same versions whenever they are
    computed: repeating lost work takes as long as it took the first time.

    Attributes:
        version: What training starts from.
        iteration_s: Duration of an iteration, the policy's slowdown included.
        policy: Says after which iterations training stands still, and for how long.
    """

    version: int
    iteration_s: float
    policy: Policy

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The policy's kinds of checkpoints."""
        return tuple(s for s in (self.policy.memory, self.policy.persistent) if s is not None)

    def reached_s(self, version: int) -> float:
        """When `version` is computed, since the segment's start; its own stalls come after it."""
        stalls_s = sum(
            ((version - 1) // s.every - self.version // s.every) * s.stall_s for s in self.streams
        )
        done = version - self.version
        return done * self.iteration_s + stalls_s if done else 0.0

    def stands_at_s(self, progress: float) -> float:
        """When training stands at `progress`, since the start; 0 where it stood there before."""
        whole = math.floor(progress)
        if progress <= self.version:
            return 0.0
        stalls_s = 0.0
        if whole > self.version and progress > whole:
            stalls_s = sum(s.stall_s for s in self.streams if whole % s.every == 0)
        return self.reached_s(whole) + stalls_s + (progress - whole) * self.iteration_s

    def newest_at(self, elapsed_s: float) -> int:
        """The newest version computed `elapsed_s` after the segment's start."""
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
        """Versions computed `elapsed_s` after the start, the running iteration as a fraction."""
        newest = self.newest_at(elapsed_s)
        since_s = elapsed_s - self.reached_s(newest)
        if newest > self.version:
            since_s -= sum(s.stall_s for s in self.streams if newest % s.every == 0)
        return newest + min(1.0, max(0.0, since_s / self.iteration_s))

    def newest_whole(self, stream: Stream, elapsed_s: float) -> int | None:
        """The newest version of `stream` that is whole by then; `None`: none of this segment."""
        spare_s = elapsed_s - stream.stall_s - stream.delay_s
        if spare_s < 0:
            return None
        newest = self.newest_at(spare_s) // stream.every * stream.every
        return newest if newest > self.version else None
