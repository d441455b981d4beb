"""Input of a planner of chunks: bytes to send, the pipeline, and the idle spans."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.pipeliner.timing import Pipeline
from gemini_lab.profiler.profile import IdleSpan, Profile

Send = tuple[int | None, int]
"""Number of the span in which a chunk may leave, `None` for before the update; and its bytes."""
NumberedSpan = tuple[int, IdleSpan]

HALVINGS: Final = 10
"""How often the length that makes a span a long one is halved before every span is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Bytes to send in an iteration: each remote replica after the other, its bytes in order."""

    profile: Profile  # the iteration without checkpoints
    pipeline: Pipeline  # what chunks go through
    checkpoint_bytes: int  # size of the rank's shard (C)
    remote: int  # how many replicas are sent (m - 1)
    most_bytes: int  # the largest chunk
    mu: float  # share of a span to fill where that suffices

    @property
    def total_bytes(self) -> int:
        return self.checkpoint_bytes * self.remote

    @property
    def spans(self) -> list[NumberedSpan]:
        """Return the spans before the update, in which the state is still the one to send."""
        spans = enumerate(self.profile.idle_spans)
        return [(number, span) for number, span in spans if span.before_update]

    def piece_bytes(self, sent_bytes: int) -> int:
        """Return the next chunk's bytes when time is no limit; 0 if everything is sent."""
        if sent_bytes >= self.total_bytes:
            return 0
        return min(self.most_bytes, self.checkpoint_bytes - sent_bytes % self.checkpoint_bytes)

    def fitting_bytes(self, sent_bytes: int, left_s: float) -> int:
        """Return the next chunk's bytes that fit into the time left; 0 if none do."""
        size_bytes = self.piece_bytes(sent_bytes)
        if left_s < self.pipeline.sending_s(size_bytes):
            room_s = left_s - self.pipeline.alpha_s
            size_bytes = min(size_bytes, math.floor(room_s * self.pipeline.bandwidth_bytes_per_s))
        return max(0, size_bytes)

    def rest(self, sent_bytes: int) -> Iterator[int]:
        """Yield the chunks of what is left when so many bytes are sent."""
        while size_bytes := self.piece_bytes(sent_bytes):
            yield size_bytes
            sent_bytes += size_bytes

    def chunks(self, sends: Iterable[Send]) -> Iterator[Chunk]:
        at_bytes = 0
        for span, size_bytes in sends:
            remote, offset_bytes = divmod(at_bytes, self.checkpoint_bytes)
            yield Chunk(
                span=span, replica=remote + 1, offset_bytes=offset_bytes, size_bytes=size_bytes
            )
            at_bytes += size_bytes


def long_ones_first(spans: list[NumberedSpan]) -> Iterator[list[NumberedSpan]]:
    """Yield the longest spans in order of time, then more of them, and finally all."""
    longest_s = max((span.duration_s for _, span in spans), default=0.0)
    chosen: list[NumberedSpan] = []
    for halving in range(1, HALVINGS + 1):
        long_ones = [one for one in spans if one[1].duration_s >= longest_s / 2**halving]
        if len(chosen) < len(long_ones) < len(spans):
            yield long_ones
        chosen = long_ones
    yield spans
