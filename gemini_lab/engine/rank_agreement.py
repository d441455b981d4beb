"""Small messages among training's ranks: numbers, and why one of them refuses.

A rank may have a reason to refuse that no other rank has. If it raised at once, the others would
wait for it in their next collective. So it takes part in one more, in which all ranks learn of it.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
import xxhash
from deepspeed.accelerator import get_accelerator

from gemini_lab.errors import TOLD, ConfigError, GeminiError, UnsupportedError, shortened
from gemini_lab.seats import listed

_WORD_BYTES: Final = 8
_REASON_BYTES: Final = 4 * TOLD  # UTF-8 takes four bytes a character at most
_FINAL: Final = {kind.__name__: kind for kind in (ConfigError, UnsupportedError)}
"""Errors that end the run wherever they are raised; a copy of another one must not."""


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as torch.distributed has them."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(values: Sequence[int]) -> list[list[int]]:
    """Return every rank's `values` (equally many, 64-bit), in rank order; all call it together."""
    if not dist.is_initialized():
        return [[*values]]
    on_cpu = "gloo" in dist.get_backend()
    device = "cpu" if on_cpu else get_accelerator().current_device_name()
    ours = torch.tensor(values, dtype=torch.int64, device=device)
    # A collective that is broken off, as by a lost rank of kept processes, writes nothing: zeros
    # are no reason to refuse, and no checksum.
    theirs = [torch.zeros_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, ours)
    return [one.tolist() for one in theirs]


def word_of(value: object) -> int:
    """Return a checksum that ranks can gather, of what has the same text on each."""
    return xxhash.xxh3_64_intdigest(repr(value).encode()) >> 1


@contextmanager
def jointly() -> Iterator[None]:
    """Run this rank's part in the block, and raise on all ranks if it fails on one of them.

    All ranks call it together. No collective stands in the block: a rank may have left it before.

    Raises:
        GeminiError: This rank's own, or why another one refuses.
    """
    verdict = JointOutcome()
    with verdict.withheld():
        yield
    verdict.agree()


class JointOutcome:
    """Work of all ranks in which one may fail: none is left waiting for it."""

    def __init__(self) -> None:
        # The first error on this rank; `None` if there was none.
        self.failure: GeminiError | None = None

    @contextmanager
    def withheld(self) -> Iterator[None]:
        """Keep an error of this rank's until all ranks know: it still joins their collectives."""
        try:
            yield
        except GeminiError as error:
            self.failure = self.failure or error

    def end(self) -> None:
        if self.failure is not None:
            raise self.failure

    def agree(self, *values: int) -> list[list[int]]:
        """Return every rank's `values`, in rank order; all ranks call it together.

        Raises:
            GeminiError: This rank's own, or why another one refuses.
        """
        answers = gather([int(self.failure is not None), *values])
        failed = [rank for rank, answer in enumerate(answers) if answer[0]]
        if failed:
            kind, _, text = self._gather_reasons()[failed[0]].partition(": ")
            self.end()
            refuse = "ranks {} refuse" if len(failed) > 1 else "rank {} refuses"
            raise _FINAL.get(kind, GeminiError)(
                f"{refuse.format(listed(failed))}, so all ranks end: {text}"
            )
        self.end()  # a rank that plays what others gathered before is not among these answers
        return [answer[1:] for answer in answers]

    def _gather_reasons(self) -> list[str]:
        """Return the kind and the text of every rank's error; empty for a rank without one."""
        own = self.failure and f"{type(self.failure).__name__}: {shortened(str(self.failure))}"
        room = (own or "").encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0")
        words = [*memoryview(room).cast("q")]
        told = gather(words)
        return [
            b"".join(one.to_bytes(_WORD_BYTES, sys.byteorder, signed=True) for one in rank)
            .rstrip(b"\0")
            .decode(errors="replace")
            for rank in told
        ]
