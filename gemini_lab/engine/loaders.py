"""The position in a plain DataLoader, which torch itself cannot say: counted, and replayed.

The order of an epoch, and what its workers draw, follow from the random states in which its
iterator was made. So these are kept beside the number of batches taken since. After a failure a new
iterator is made in the same states and gives away as many batches; the script's next `iter(loader)`
gets that one and goes on where it was. To load batches again takes time: a StatefulDataLoader does
without where its data set can.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final

import torch
from deepspeed.runtime.dataloader import DeepSpeedDataLoader
from torch.utils.data import DataLoader

from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.errors import ConfigError

KINDS: Final = (DataLoader, DeepSpeedDataLoader)
"""Classes of loaders that can be watched; their subclasses too."""
_WATCH: Final = "_gemini_lab_watch"


class LoaderWatch:
    """Sees each batch that a loader is asked for; keeps the loader's position if nobody else does.

    Args:
        loader: Its next `iter` is watched, and all after it; those made before are not.

    Attributes:
        loader: The same.
        on_fetch: Called before each batch, by whoever asks for it.
        replay_s: How long giving away batches took when a position was put back.
        replayed: How many they were.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.on_fetch: Callable[[], None] = lambda: None
        self.replay_s = 0.0
        self.replayed = 0
        self._began: dict[str, Any] = {}
        self._latest: Callable[[], _Batches | None] = lambda: None
        self._prepared: _Batches | None = None
        kind: Any = type(loader)
        self._make: Callable[[], Iterator[Any]] = partial(kind.__iter__, loader)
        loader.__dict__[_WATCH] = self
        loader.__class__ = _watched(kind)

    def begin(self) -> "_Batches":
        """An iterator for the script: the one that a position was put back into, or a new one."""
        batches, self._prepared = self._prepared, None
        return self._begin_epoch() if batches is None else batches

    def state_dict(self) -> dict[str, Any]:
        """The position: the random states in which the iterator was made, and batches taken."""
        latest = self._latest()
        is_under_way = latest is not None and not latest.is_over
        return {
            "began": self._began if is_under_way else None,
            "taken": latest.taken if latest is not None and is_under_way else 0,
            "now": self._draws(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position; the random states that all share are left as that makes them.

        Raises:
            ConfigError: There are fewer batches now.
        """
        self._prepared = None
        self._latest = lambda: None
        if state["began"] is not None:
            self._replay(state["began"], state["taken"])
        self._put_draws(state["now"])

    def _replay(self, began: Mapping[str, Any], taken: int) -> None:
        started_s = time.perf_counter()
        restore_random_states(began["random"])
        self._put_draws(began["draws"])
        self._prepared = self._begin_epoch()
        for number in range(taken):
            if self._prepared.skip():
                continue
            raise ConfigError(
                f"the position in the data is after batch {taken} of an epoch, which has "
                f"{number} now; start the script with the data as they were"
            )
        self.replayed, self.replay_s = taken, time.perf_counter() - started_s

    def _begin_epoch(self) -> "_Batches":
        self._began = {"random": random_states(), "draws": self._draws()}
        batches = _Batches(self, self._make())
        self._latest = weakref.ref(batches)
        return batches

    def _draws(self) -> list[dict[str, Any]]:
        """What an epoch's order is drawn from beside the random states that all share."""
        return [
            {
                "generator": g.get_state()
                if isinstance(g := getattr(part, "generator", None), torch.Generator)
                else None,
                "epoch": getattr(part, "epoch", None),
            }
            for part in _parts(self.loader)
        ]

    def _put_draws(self, draws: list[dict[str, Any]]) -> None:
        for part, drawn in zip(_parts(self.loader), draws, strict=True):
            if drawn["generator"] is not None:
                part.generator.set_state(drawn["generator"])
            if drawn["epoch"] is not None:
                part.epoch = drawn["epoch"]


class _Batches:
    """An epoch's batches, counted; what `iter(loader)` gives."""

    def __init__(self, watch: LoaderWatch, batches: Iterator[Any]) -> None:
        self.taken = 0
        self.is_over = False
        self._watch = watch
        self._batches = batches

    def __iter__(self) -> "_Batches":
        return self

    def __len__(self) -> int:
        return len(self._watch.loader)

    def __next__(self) -> Any:
        self._watch.on_fetch()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_over = True
            raise
        self.taken += 1
        return batch

    def skip(self) -> bool:
        """Give a batch away; false if there is none."""
        try:
            next(self._batches)
        except StopIteration:
            return False
        self.taken += 1
        return True


def watch(loader: Any) -> LoaderWatch:
    """The loader's watch; one is made if it has none."""
    found: LoaderWatch | None = loader.__dict__.get(_WATCH)
    return found or LoaderWatch(loader)


@cache
def _watched(kind: type) -> type:
    """`kind`, but whose iterators are its watch's."""

    def begin(self: Any) -> _Batches:
        found: LoaderWatch = self.__dict__[_WATCH]
        return found.begin()

    names = {"__iter__": begin, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)


def _parts(loader: Any) -> list[Any]:
    """The loader and its samplers, each once, in a fixed order."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "data_sampler", None),
    )
    return list({id(part): part for part in found if part is not None}.values())
