"""Progress of training without a failure in closed form, without an event an iteration."""

import math
from dataclasses import dataclass, replace
from typing import Self

from gemini_lab.simulator.policy import Policy, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of a segment that follows another one at another pace."""

    before: "TrainingSegment"  # the segment until then
    start_s: float  # when the pace changed, since the segment's start
    done: int  # the version that was the newest then
    share: float  # how much of the next iteration was done
    stalled_s: float  # how long training still stood still then for the newest version


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSegment:
    """Training from one version on, until something stops it.

    Versions are numbered by iterations, so a stream checkpoints the same versions whenever they are
    computed: repeating lost work takes as long as it took the first time. Training may change its
    pace on the way (`at_pace`); streams do not.
    """

    version: int  # what training starts from
    iteration_s: float  # duration of an iteration, the policy's slowdown included
    policy: Policy  # says after which iterations training stands still, and for how long
    leg: Leg | None = None  # what came before the pace was that of `iteration_s`; `None`: nothing

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(s for s in (self.policy.memory, self.policy.persistent) if s is not None)

    @property
    def first(self) -> int:
        """The version after which iterations take `iteration_s`."""
        return self.version if self.leg is None else self.leg.done

    def at_pace(self, iteration_s: float, elapsed_s: float) -> Self:
        """Return the segment with iterations of `iteration_s` from `elapsed_s` on."""
        newest = self.newest_at(elapsed_s)
        standing_s = self._stall_s(newest) if newest > self.version else 0.0
        since_s = elapsed_s - self.reached_s(newest)
        if self.leg is not None and newest == self.leg.done:  # that leg has not finished one yet
            standing_s, since_s = self.leg.stalled_s, elapsed_s - self.leg.start_s
            share = self.leg.share
        else:
            share = 0.0
        share += max(0.0, since_s - standing_s) / self.iteration_s
        leg = Leg(
            before=self,
            start_s=elapsed_s,
            done=newest,
            share=min(1.0, share),
            stalled_s=max(0.0, standing_s - since_s),
        )
        return replace(self, iteration_s=iteration_s, leg=leg)

    def reached_s(self, version: int) -> float:
        """Return when `version` is computed, since the segment's start, before its own stalls."""
        part = self
        while part.leg is not None and version <= part.leg.done:
            part = part.leg.before
        first, leg = part.first, part.leg
        stalls_s = sum(
            ((version - 1) // s.every - first // s.every) * s.stall_s for s in part.streams
        )
        done = version - first
        if leg is None:
            return done * part.iteration_s + stalls_s if done else 0.0
        return leg.start_s + leg.stalled_s + (done - leg.share) * part.iteration_s + stalls_s

    def stands_at_s(self, progress: float) -> float:
        """Return when training stands at `progress`, since the start; 0 if it did before."""
        whole = math.floor(progress)
        if progress <= self.version:
            return 0.0
        part = self
        while part.leg is not None and progress <= part.leg.done + part.leg.share:
            part = part.leg.before
        leg = part.leg
        if leg is not None and whole == leg.done:
            work_s = (progress - whole - leg.share) * part.iteration_s
            return leg.start_s + leg.stalled_s + work_s
        stalls_s = self._stall_s(whole) if whole > self.version and progress > whole else 0.0
        return part.reached_s(whole) + stalls_s + (progress - whole) * part.iteration_s

    def newest_at(self, elapsed_s: float) -> int:
        """Return the newest version computed `elapsed_s` after the segment's start."""
        part = self
        while part.leg is not None and elapsed_s < part.leg.start_s:
            part = part.leg.before
        low, start_s, share = part.first, 0.0, 0.0
        if part.leg is not None:
            start_s, share = part.leg.start_s, part.leg.share
        high = low + math.floor((elapsed_s - start_s) / part.iteration_s + share + 1e-9)
        while low < high:
            middle = (low + high + 1) // 2
            if part.reached_s(middle) <= elapsed_s * (1 + 1e-12):
                low = middle
            else:
                high = middle - 1
        return low

    def progress_at(self, elapsed_s: float) -> float:
        """Versions computed `elapsed_s` after the start, the running iteration as a fraction."""
        now = self.at_pace(self.iteration_s, elapsed_s).leg
        assert now is not None
        return now.done + now.share

    def newest_whole(self, stream: Stream, elapsed_s: float) -> int | None:
        """Return the newest version of `stream` that is whole by then; `None` if none is."""
        spare_s = elapsed_s - stream.stall_s - stream.delay_s
        if spare_s < 0:
            return None
        newest = self.newest_at(spare_s) // stream.every * stream.every
        return newest if newest > self.version else None

    def waited_s(self, version: int) -> float:
        """Return the seconds that the iteration of `version` waited for checkpoints."""
        stall_s = self._stall_s(version - 1) if version - 1 > self.version else 0.0
        return self.policy.slowdown_s + stall_s

    def _stall_s(self, version: int) -> float:
        """Return the seconds that training stalls after `version`."""
        return sum(s.stall_s for s in self.streams if version % s.every == 0)
