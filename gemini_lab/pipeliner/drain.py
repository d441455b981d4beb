"""Chunks planned with the sub-buffers' drain in view, and slack spent before delay.

Algorithm 2 plans each span by itself: where copies out of the sub-buffers are slower than the wire,
at the copies' rate. But a span that finds the sub-buffers empty takes all of them at the wire's
rate, and they drain while training has the wire. And what mu keeps free for jitter is, when bytes
do not fit, better used than a certain delay. So here spans are filled along the modelled iteration,
sub-buffers and all, in three steps, each where the one before it does not suffice:

1. mu of the spans, the long ones first;
2. an equal, larger share of all spans, the least that suffices;
3. whole spans, and beyond the ends of the last ones where that gains more than waiting at the
   update: a chunk that training waits for drains behind it, and one at the update does not. This
   with chunks of a whole sub-buffer, and with smaller ones where copies wait for the wire: the
   sooner the first of them is here, the sooner all are copied (`WAYS_TO_CUT`).

What holds in general: a plan is never later than Algorithm 2's by the model. With copies at once it
is within one start-up time (alpha) and one byte's for each span and each replica of the best
possible, for bytes in a span's end may need a message of their own. With slow copies, finding the
best is a search among all ways to cut; `timing.least_delay_s` bounds what it could gain, plan by
plan. On random small jobs of up to twelve half sub-buffers, the mean excess over the best of all
plans whose chunks are halves or wholes of a sub-buffer, in any order and any spans, is below 0.01
of the checkpoint's time on the wire, and no plan there is 0.2 of it later
(`tests/pipeliner/test_optimum.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gemini_lab.pipeliner import algorithm_2
from gemini_lab.pipeliner.schedule import NO_DELAY
from gemini_lab.pipeliner.task import NumberedSpan, Send, Task, long_ones_first
from gemini_lab.pipeliner.timing import ModelledIteration, play

BISECTIONS: Final = 7
"""Of the share: to a hundredth of what lies between mu and 1."""
OVERTIMES: Final = 8
"""How many lengths of overtime are tried, up to twice an even share of the delay without any."""
MOST_PLACED: Final = 10_000
"""How many chunks the search for overtime places at most for each way to cut; more chunks, fewer
lengths to try."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Sizes of chunks that may be smaller than a sub-buffer."""

    least: float = 1.0  # the smallest, as a share of a sub-buffer
    # Only the first chunk of each span is small. Else every one that would come after the copies
    # ran dry, but none smaller than what comes just in time.
    is_first_only: bool = False

    def most_bytes(self, task: Task, iteration: ModelledIteration, *, is_first: bool) -> int:
        least_bytes = max(1, math.floor(self.least * task.most_bytes))
        if self.is_first_only:
            return least_bytes if is_first else task.most_bytes
        return max(least_bytes, iteration.feeding_bytes())


WHOLE: Final = _Cut()
WAYS_TO_CUT: Final = (
    WHOLE,
    _Cut(least=1 / 2, is_first_only=True),
    _Cut(least=1 / 2),
    _Cut(least=1 / 4),
)
"""Tried in this order. None is smaller than a quarter, for each chunk also costs what no model
knows."""


@dataclass(frozen=True, slots=True)
class _Plan:
    sends: list[Send]
    delay_s: float


def plan(task: Task) -> list[Send]:
    """Fill the spans so that training is delayed as little as possible, and the safest such way."""
    nothing_s = NO_DELAY * task.profile.iteration_s
    for spans in long_ones_first(task.spans):
        found = _fill(task, spans, share=task.mu)
        if found.delay_s <= nothing_s:
            return found.sends
    best = _fill(task, task.spans, share=1.0)
    if best.delay_s <= nothing_s:
        return _even(task, best, nothing_s).sends
    for other in _others(task, best.delay_s):
        if other.delay_s < best.delay_s - nothing_s:
            best = other
        if best.delay_s <= nothing_s:
            break
    return best.sends


def _even(task: Task, whole: _Plan, nothing_s: float) -> _Plan:
    """Return the plan with the least share of all spans that suffices; `whole` uses all of them."""
    low, high, best = task.mu, 1.0, whole
    for _ in range(BISECTIONS):
        share = (low + high) / 2
        found = _fill(task, task.spans, share=share)
        if found.delay_s <= nothing_s:
            high, best = share, found
        else:
            low = share
    return best


def _others(task: Task, delay_s: float) -> Iterator[_Plan]:
    """Algorithm 2's plan; then, for each way to cut, plans without overtime and with it.

    Overtime is in the last span, the last two, four, ...
    """
    yield _played(task, algorithm_2.plan(algorithm_2.at_the_pace_of_copies(task)))
    spans = task.spans
    if math.isinf(task.pipeline.copy_bytes_per_s):
        return  # with copies at once a chunk costs the same wherever training waits for it
    counts = sorted({*(2**power for power in range(len(spans).bit_length())), len(spans)} - {0})
    for cut in WAYS_TO_CUT:
        yield _fill(task, spans, share=1.0, cut=cut)
        placed = len(counts) * task.total_bytes / (cut.least * task.most_bytes)
        steps = min(OVERTIMES, int(MOST_PLACED / max(placed, 1)))
        for count in counts:
            late = {number for number, _ in spans[-count:]}
            longest_s = min(delay_s, 2 * delay_s / count)
            for step in range(1, steps + 1):
                overtime_s = longest_s * step / steps
                yield _fill(task, spans, share=1.0, cut=cut, late=late, overtime_s=overtime_s)


def _played(task: Task, sends: list[Send]) -> _Plan:
    return _Plan(sends, play(ModelledIteration(task.profile, task.pipeline), sends))


def _fill(
    task: Task,  # what to send
    spans: list[NumberedSpan],  # where, in order of time
    *,
    share: float,  # of each span's length
    cut: _Cut = WHOLE,  # into which chunks
    # Numbers of the spans whose chunks may be over later,
    late: frozenset[int] | set[int] = frozenset(),
    overtime_s: float = 0.0,  # by so much
) -> _Plan:
    """Send as early as possible, each chunk over by the end of its span's share."""
    iteration = ModelledIteration(task.profile, task.pipeline)
    sends: list[Send] = []
    sent_bytes = 0
    for number, span in spans:
        until_s = iteration.enter(span) + share * span.duration_s
        until_s += overtime_s if number in late else 0.0
        for size_bytes in _pieces(task, iteration, sent_bytes, until_s=until_s, cut=cut):
            iteration.send(size_bytes)
            sends.append((number, size_bytes))
            sent_bytes += size_bytes
        iteration.leave()
    rest: list[int] = []
    pieces = _pieces(task, iteration, sent_bytes, until_s=math.inf, cut=cut)
    delay_s = iteration.finish(_noted(pieces, rest))
    return _Plan([*sends, *((None, size_bytes) for size_bytes in rest)], delay_s)


def _noted(sizes_bytes: Iterator[int], noted: list[int]) -> Iterator[int]:
    """Yield the same sizes, and append each to `noted`."""
    for size_bytes in sizes_bytes:
        noted.append(size_bytes)
        yield size_bytes


def _pieces(
    task: Task, iteration: ModelledIteration, sent_bytes: int, *, until_s: float, cut: _Cut
) -> Iterator[int]:
    """Yield a span's next chunks, each sent by `until_s`; send one before taking the next."""
    is_first = True
    while size_bytes := task.fitting_bytes(sent_bytes, until_s - iteration.earliest_s()):
        if cut is not WHOLE:
            size_bytes = min(size_bytes, cut.most_bytes(task, iteration, is_first=is_first))
        yield size_bytes
        sent_bytes += size_bytes
        is_first = False
