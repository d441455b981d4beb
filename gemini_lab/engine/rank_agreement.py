"""Small messages among training's ranks: numbers, and whether one of them has failed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from gemini_lab.errors import ConfigError, GeminiError


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
    theirs = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, ours)
    return [one.tolist() for one in theirs]


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
            GeminiError: This rank failed, or another one.
        """
        answers = gather([int(self.failure is not None), *values])
        self.end()
        if failed := sum(answer[0] for answer in answers):
            raise ConfigError(
                f"this rank's shard fits, but {failed} of {len(answers)} ranks cannot load theirs; "
                "their own messages say why"
            )
        return [answer[1:] for answer in answers]
