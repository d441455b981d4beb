"""What chunks do to an iteration: a model of the wire, the sub-buffers and the copies.

The model knows one wire, shared with training, and one copy engine. A chunk takes a sub-buffer,
crosses the wire, is copied out, and gives the sub-buffer back. With several sub-buffers the next
chunk crosses meanwhile; with one, sending and copying take turns (paper, section 5.3, Fig. 5).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.profiler.profile import Profile

AT_START: Final = "start"
AT_UPDATE: Final = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """When one chunk crossed the wire and was copied, since the iteration's start."""

    send_start_s: float
    send_end_s: float
    copy_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A modelled iteration: its transfers, in the order of the chunks, and its duration."""

    transfers: tuple[ChunkTimes, ...]
    iteration_s: float


class _Pipe:
    """The wire, the sub-buffers and the copy engine, and when each is free again."""

    def __init__(
        self,
        *,
        bandwidth_bytes_per_s: float,
        alpha_s: float,
        copy_bytes_per_s: float,
        sub_buffers: int,
    ) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.alpha_s = alpha_s
        self.copy_bytes_per_s = copy_bytes_per_s
        self.buffer_free_s = [0.0] * sub_buffers
        self.wire_free_s = 0.0
        self.copy_free_s = 0.0
        self.transfers: list[ChunkTimes] = []

    def send(self, size_bytes: int, *, not_before_s: float) -> None:
        """One more chunk, as early as the wire and a sub-buffer allow."""
        number = len(self.transfers) % len(self.buffer_free_s)
        start_s = max(not_before_s, self.wire_free_s, self.buffer_free_s[number])
        self.wire_free_s = start_s + self.alpha_s + size_bytes / self.bandwidth_bytes_per_s
        self.copy_free_s = (
            max(self.wire_free_s, self.copy_free_s) + size_bytes / self.copy_bytes_per_s
        )
        self.buffer_free_s[number] = self.copy_free_s
        self.transfers.append(
            ChunkTimes(
                send_start_s=start_s, send_end_s=self.wire_free_s, copy_end_s=self.copy_free_s
            )
        )


def model_iteration(
    profile: Profile,
    sends: Sequence[tuple[int | None, int]],
    *,
    bandwidth_bytes_per_s: float,
    alpha_s: float = 0.0,
    copy_bytes_per_s: float = math.inf,
    sub_buffers: int = 1,
    leftover: str = AT_UPDATE,
) -> Timeline:
    """The iteration that `profile` describes, with chunks in it.

    Training's next collective waits for a chunk that is still on the wire, and the update waits
    until everything is copied; compute is never held up otherwise.

    Args:
        profile: The iteration without checkpoints.
        sends: For each chunk, in order, the idle span in which it may start (`None`: none) and its
            bytes.
        bandwidth_bytes_per_s: What the wire carries once a message has started (B).
        alpha_s: What starting a message takes (alpha).
        copy_bytes_per_s: How fast a sub-buffer is emptied; without it, at once.
        sub_buffers: How many chunks may be between wire and memory (p).
        leftover: Where chunks without a span go: before anything else (`AT_START`), training
            waiting, or after the last collective before the update (`AT_UPDATE`).
    """
    pipe = _Pipe(
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        alpha_s=alpha_s,
        copy_bytes_per_s=copy_bytes_per_s,
        sub_buffers=sub_buffers,
    )
    planned: dict[int | None, list[int]] = {}
    for span, size_bytes in sends:
        planned.setdefault(span, []).append(size_bytes)
    rest = planned.pop(None, [])
    delay_s = 0.0
    if leftover == AT_START:
        for size_bytes in rest:
            pipe.send(size_bytes, not_before_s=0.0)
        delay_s, rest = pipe.copy_free_s, []
    for number, sizes in sorted((n, s) for n, s in planned.items() if n is not None):
        span_ = profile.idle_spans[number]
        for size_bytes in sizes:
            pipe.send(size_bytes, not_before_s=span_.start_s + delay_s)
        delay_s += max(0.0, pipe.wire_free_s - (span_.end_s + delay_s))
    for size_bytes in rest:
        pipe.send(size_bytes, not_before_s=profile.last_collective_end_s + delay_s)
    delay_s += max(0.0, pipe.copy_free_s - (profile.update_s + delay_s))
    return Timeline(transfers=tuple(pipe.transfers), iteration_s=profile.iteration_s + delay_s)
