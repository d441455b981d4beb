"""Whether DDP's ranks really hold the same: a version keeps what they share only once."""

from collections.abc import Callable, Iterator

import torch
import xxhash

from gemini_lab.engine.digests import feed
from gemini_lab.engine.ranks import gather
from gemini_lab.errors import UnsupportedError


class ReplicaCheck:
    """Compares checksums of replicated tensors between ranks.

    At the start, and after update 1, 2, 4, 8 and so on from there: to read all of them costs some
    tenths of a second a GB, and so often that is nothing in the long run.

    Args:
        tensors: Gives what is to be the same on all ranks, by name; several may have one name.

    Raises:
        UnsupportedError: The ranks differ already.
    """

    def __init__(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]) -> None:
        self._tensors = tensors
        self._updates = 0
        self._compare("when `protect` was called")

    def restart(self) -> None:
        """Count updates from here on, as ranks do that have just started."""
        self._updates = 0

    def after_update(self, number: int) -> None:
        """An update was made; all ranks call it together.

        Raises:
            UnsupportedError: The ranks differ.
        """
        self._updates += 1
        if self._updates & (self._updates - 1) == 0:
            self._compare(f"after update {number}")

    def _compare(self, when: str) -> None:
        sums: dict[str, xxhash.xxh3_64] = {}
        for name, tensor in self._tensors():
            feed(sums.setdefault(name, xxhash.xxh3_64()), tensor)
        found = gather([one.intdigest() >> 1 for one in sums.values()])
        for place, name in enumerate(sums):
            for rank, words in enumerate(found):
                if words[place] != found[0][place]:
                    raise UnsupportedError(
                        f"DDP's ranks differ {when}: {name!r} of rank {rank} is not rank 0's, and "
                        "a version keeps what they share once; have all ranks make the same "
                        "updates (learning rates, clipping, order of parameters), or shard with "
                        "fully_shard"
                    )
