"""Loaders that a script reads from one iteration to the next and has not handed over.

No version has where they stand. An iterator that is amid an epoch, and is read on in the next
iteration, belongs to such a loader; an evaluation comes to its end within an iteration.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.state.loaders import KINDS, LoaderWatch


class StrayLoaders:
    """Looks at iterators of loaders, and keeps none of them alive.

    Args:
        sources: What says where the data stand: loaders or their watches, or objects that may read
            a loader by themselves; where there is such a one, nothing is looked at.
    """

    def __init__(self, sources: Sequence[object]) -> None:
        loaders = [one.loader if isinstance(one, LoaderWatch) else one for one in sources]
        self._is_blind = not all(isinstance(one, KINDS) for one in loaders)
        self._known = {id(part) for loader in loaders for part in _samplers(loader)}
        self._seen: list[tuple[weakref.ref[Any], int]] = []

    def look(self) -> None:
        """See who is amid an epoch."""
        if self._is_blind:
            return
        self._seen = [
            (weakref.ref(one), taken)
            for one in made_objects()
            if isinstance(one, _BaseDataLoaderIter)
            and (taken := _taken_amid(one))
            and self._known.isdisjoint(map(id, _samplers(one)))
        ]

    def read_on(self) -> list[str]:
        """The data sets of loaders that were read on since the last look; asked once of each."""
        seen, self._seen = self._seen, []
        alive = [(one, taken) for held, taken in seen if (one := held()) is not None]
        return sorted({_name(one) for one, taken in alive if _taken_amid(one) > taken})


def _samplers(reads: Any) -> list[object]:
    """By which a loader and its iterators are known: its batches' indices, and where they are from.

    Args:
        reads: A loader, or an iterator of one.
    """
    names = ("_index_sampler", "batch_sampler", "sampler", "data_sampler")
    found = [getattr(reads, name, None) for name in names]
    found += [getattr(one, "sampler", None) for one in found]
    return [one for one in found if one is not None]


def _taken_amid(iterator: Any) -> int:
    """How many batches an iterator has given; 0 where its epoch has not begun, or is over."""
    taken: int = getattr(iterator, "_num_yielded", 0)  # one that could not be made has none
    try:
        return taken if taken < len(iterator) else 0
    except Exception:  # noqa: BLE001 - a stream has no length, and a sampler's own may be amiss
        return taken


def _name(iterator: Any) -> str:
    return f"a DataLoader of a {type(iterator._dataset).__name__}"  # noqa: SLF001
