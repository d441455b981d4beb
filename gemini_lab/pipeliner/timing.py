"""Model of how chunks delay an iteration: the wire, the sub-buffers and the copies.

The model knows one wire, shared with training, and one copy engine. A chunk takes a sub-buffer,
crosses the wire, is copied out, and gives the sub-buffer back. With several sub-buffers the next
chunk crosses meanwhile; with one, sending and copying take turns (paper, section 5.3, Fig. 5).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.profiler.profile import IdleSpan, Profile

AT_START: Final = "start"
AT_UPDATE: Final = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Path of a rank's chunks: the wire, sub-buffers, and the copy out of them.

    Attributes:
        bandwidth_bytes_per_s: What the wire carries once a message has started (B).
        alpha_s: What starting a message takes (alpha).
        copy_bytes_per_s: How fast a sub-buffer is emptied; infinite for at once.
        sub_buffers: How many chunks may be between wire and memory (p).
    """

    bandwidth_bytes_per_s: float
    alpha_s: float = 0.0
    copy_bytes_per_s: float = math.inf
    sub_buffers: int = 1

    def sending_s(self, size_bytes: float) -> float:
        """Return the seconds that a chunk takes on the wire: f(s) = alpha + s / B."""
        return self.alpha_s + size_bytes / self.bandwidth_bytes_per_s


class ModelledIteration:
    """An iteration as it goes by: spans are entered and left in order, with chunks sent in between.

    Training's next collective waits for a chunk that is still on the wire, and the update waits
    until everything is copied; compute is never held up otherwise.
    """

    def __init__(self, profile: Profile, pipeline: Pipeline) -> None:
        self.delay_s = 0.0  # by how much training is late, so far
        self.profile = profile  # the iteration without checkpoints
        self._pipeline = pipeline
        self._sent = 0
        self._buffer_free_s = [0.0] * pipeline.sub_buffers
        self._wire_free_s = 0.0
        self._copy_free_s = 0.0
        self._open_s = 0.0  # chunks may leave from here on
        self._span_end_s = math.inf

    def enter(self, span: IdleSpan) -> float:
        """Chunks may leave from the span's start on; gives it, with the delay so far."""
        self._open_s = span.start_s + self.delay_s
        self._span_end_s = span.end_s + self.delay_s
        return self._open_s

    def earliest_s(self) -> float:
        """When the next chunk begins to cross: as soon as span, wire and a sub-buffer allow."""
        number = self._sent % len(self._buffer_free_s)
        return max(self._open_s, self._wire_free_s, self._buffer_free_s[number])

    def feeding_bytes(self) -> int:
        """Return the largest chunk that arrives before the copies run dry; 0 if they wait."""
        room_s = self._copy_free_s - self.earliest_s() - self._pipeline.alpha_s
        return max(0, math.floor(room_s * self._pipeline.bandwidth_bytes_per_s))

    def send(self, size_bytes: int) -> None:
        self._wire_free_s = self.earliest_s() + self._pipeline.sending_s(size_bytes)
        self._copy_free_s = (
            max(self._wire_free_s, self._copy_free_s) + size_bytes / self._pipeline.copy_bytes_per_s
        )
        self._buffer_free_s[self._sent % len(self._buffer_free_s)] = self._copy_free_s
        self._sent += 1

    def leave(self) -> None:
        """End the span: training waits for a chunk that is still on the wire."""
        self.delay_s += max(0.0, self._wire_free_s - self._span_end_s)

    def block(self, sizes_bytes: Sequence[int]) -> None:
        """Send and copy these while training has not begun."""
        for size_bytes in sizes_bytes:
            self.send(size_bytes)
        self.delay_s = self._copy_free_s

    def finish(self, leftover_bytes: Iterable[int]) -> float:
        """Send these after the last collective, then update; gives the whole delay.

        Each size is asked for when the chunk before it was sent.
        """
        self._open_s = self.profile.last_collective_end_s + self.delay_s
        for size_bytes in leftover_bytes:
            self.send(size_bytes)
        self.delay_s += max(0.0, self._copy_free_s - (self.profile.update_s + self.delay_s))
        return self.delay_s


def modelled_delay_s(
    profile: Profile,
    sends: Sequence[tuple[int | None, int]],
    pipeline: Pipeline,
    *,
    leftover: str = AT_UPDATE,
) -> float:
    """Return the seconds that chunks add to the iteration of `profile`; see `ModelledIteration`.

    Args:
        profile: The iteration without checkpoints.
        sends: For each chunk, in order, the idle span in which it may start (`None`: none) and its
            bytes.
        pipeline: What carries them.
        leftover: Where chunks without a span go: before anything else (`AT_START`), training
            waiting, or after the last collective before the update (`AT_UPDATE`).
    """
    iteration = ModelledIteration(profile, pipeline)
    if leftover == AT_START:
        iteration.block([size_bytes for span, size_bytes in sends if span is None])
        sends = [send for send in sends if send[0] is not None]
    return play(iteration, sends)


def play(iteration: ModelledIteration, sends: Sequence[tuple[int | None, int]]) -> float:
    """Return the delay after these chunks, each given with its span (`None`: none) and bytes."""
    planned: dict[int | None, list[int]] = {}
    for span, size_bytes in sends:
        planned.setdefault(span, []).append(size_bytes)
    rest = planned.pop(None, [])
    for number, sizes in sorted((n, s) for n, s in planned.items() if n is not None):
        iteration.enter(iteration.profile.idle_spans[number])
        for size_bytes in sizes:
            iteration.send(size_bytes)
        iteration.leave()
    return iteration.finish(rest)


def least_delay_s(
    profile: Profile, pipeline: Pipeline, *, sent_bytes: int, most_bytes: int
) -> float:
    """Return a lower bound on the delay of any schedule.

    The wire is free of training only in the idle spans and between the last collective and the
    update, and each message has to start; the copies cannot begin before the first span does. So
    `schedule.delay_s - least_delay_s(...)` is the most that a better schedule could gain.

    Args:
        profile: The iteration without checkpoints.
        pipeline: What the chunks go through.
        sent_bytes: Of all remote replicas together.
        most_bytes: The largest chunk.
    """
    if sent_bytes == 0:
        return 0.0
    spans = [span for span in profile.idle_spans if span.before_update]
    covered_s = max((span.end_s for span in spans), default=0.0)
    tail_start_s = max(profile.last_collective_end_s, covered_s)
    free_s = sum(span.duration_s for span in spans) + max(0.0, profile.update_s - tail_start_s)
    messages = -(-sent_bytes // most_bytes)
    wire_s = messages * pipeline.alpha_s + sent_bytes / pipeline.bandwidth_bytes_per_s
    opens_s = min([profile.last_collective_end_s, *(span.start_s for span in spans)])
    copied_s = opens_s + sent_bytes / pipeline.copy_bytes_per_s
    return max(0.0, wire_s - free_s, copied_s - profile.update_s)
