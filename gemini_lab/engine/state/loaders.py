"""The position in a plain DataLoader, which torch itself cannot say: counted, and replayed.

The order of an epoch, and what its workers draw, follow from the random states in which its
iterator was made. So these are kept beside the number of batches taken since. After a failure a new
iterator is made in the same states and gives away as many batches; the script's next `iter(loader)`
gets that one and goes on where it was. To load batches again takes time: a StatefulDataLoader does
without where its data set can.

Accelerate's loaders read a batch ahead, and what they draw for it lies among what training draws.
So the random states in which the last batch was asked for are kept, too.

A script may read ahead itself: it asks for a batch while it still trains on the one before, and a
position that counts what was asked for would leave a batch out. A script that says so, by the
setting `reads_ahead`, gets a position that counts what it has trained on. Each forward pass after
new questions takes one batch. Those that the script holds are read again in the random states in
which it had asked for them.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from threading import get_ident
from typing import Any, Final

import torch
from deepspeed.runtime.dataloader import DeepSpeedDataLoader
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.engine.state.data_values import DataValues, put_generators, reached, read_generators
from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import encode

KINDS: Final = (DataLoader, DeepSpeedDataLoader)
"""Classes of loaders that can be watched; their subclasses too."""
_WATCH: Final = "_gemini_lab_watch"
_OVER: Final = object()
_FORWARDS: Final = 3  # forward passes that show whether a script reads ahead
_MOST_HELD: Final = 16  # batches that a script holds, with 15 kB of random states each
_COUNTS: Final = ("epoch", "iteration", "initial_seed")  # with which a sampler seeds its order


class LoaderWatch:
    """Sees each batch that a loader is asked for; keeps the loader's position if nobody else does.

    The loader's next `iter` is watched, and all after it; those made before are not.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader  # the same
        # Called before each batch, by whoever asks for it.
        self.on_fetch: Callable[[], None] = lambda: None
        # Called where it has no batch left for whoever asks.
        self.on_over: Callable[[], None] = lambda: None
        self.on_batch: Callable[[], None] = lambda: None  # called where it has come
        # Called where an iterator is asked that is not the newest one.
        self.on_return: Callable[[], None] = lambda: None
        self.replay_s = 0.0  # how long giving away batches took when a position was put back
        self.replayed = 0  # how many they were
        self._began: StateDict = {}  # what the newest iterator was made in
        self._drawn_from: StateDict = {}  # the same at its first fetch, where most draw their order
        self._reads_ahead = reads_ahead(loader)
        self._asked: StateDict = {}  # if so, the random states at the latest fetch
        self._latest: Callable[[], _Batches | None] = lambda: None
        self._prepared: _Batches | None = None
        self._made = 0  # iterators
        self._is_asked = False  # for a batch, which has not come
        self.is_ahead = False  # the setting `reads_ahead`
        # How many more batches were asked for before the first forward pass than before later ones.
        self.lead = 0
        self._is_awaited = False  # the end of the newest iterator, which the script may still hold
        self.thread = get_ident()  # which trains
        self.is_read_apart = False  # by another thread
        self._made_when_put = 0  # when a position was put back
        self._begun = 0  # of those, by the script in this pass of its loop
        self._begun_then: int | None = None  # the same, by a position that was put back
        # What the loader's data change by themselves.
        self.values = DataValues(lambda: of_loader(loader))
        kind: Any = type(loader)
        # The class's own `__iter__`, taken before the loader's class is replaced below.
        self._make: Callable[[], Iterator[Any]] = partial(kind.__iter__, loader)
        # Past `__setattr__`, which a class of loaders may define.
        loader.__dict__[_WATCH] = self
        # Not `loader.__class__ =`: Accelerate's loaders pretend there to be of another class.
        object.__dict__["__class__"].__set__(loader, _watched(kind))

    def begin(self) -> "_Batches":
        """Return an iterator: the one that a position was put back into, or a new one."""
        self._begun += 1
        self._is_awaited = True
        batches, self._prepared = self._prepared, None
        return self._begin_epoch() if batches is None else batches

    def state_dict(self) -> StateDict:
        """Return the position: the random states at the iterator's making, and batches taken."""
        latest = self._latest()
        held = [] if latest is None else latest.held
        # A script that reads ahead knows of the end before it comes to it.
        is_over = latest is None or (latest.is_over and not (self.is_ahead and self._is_awaited))
        is_under_way = latest is not None and not is_over
        return {
            "began": self._began if is_under_way else None,
            "drawn_from": self._drawn_from if is_under_way else {},
            "asked": self._asked if is_under_way else {},
            "taken": latest.taken - len(held) if latest is not None and is_under_way else 0,
            "held": held,
            "now": self._draws(),
            "own": read_generators(of_loader(self.loader)),
            "counts": self.values.changed(),
            "dealt": self.dealt,
            "begun": self._begun,
        }

    def begin_pass(self) -> None:
        """Count iterators from here on: a loop, or a pass of one over epochs, begins."""
        self._begun, self.thread = 0, get_ident()

    def end_epoch(self) -> None:
        """Take the script to have used all batches of its iterator: its epoch is over."""
        self._is_awaited = False

    @property
    def is_where_put(self) -> bool:
        """Return whether the script has begun as many iterators as when its position was taken.

        Also where nobody knows, as the loader says its position itself.
        """
        return self._begun_then in {None, self._begun}

    @property
    def has_begun(self) -> bool:
        return self._made > 0

    def note_forward(self) -> None:
        """Take a batch as trained on, if one was asked for since the forward pass before.

        Raises:
            ConfigError: The script holds no batch in advance, or several, against `reads_ahead`.
        """
        latest = self._latest()
        if latest is None or not latest.note_forward():
            return
        first, *later = latest.gaps
        self.lead = first - max(later)
        if self.is_ahead and self.lead != 1:
            raise ConfigError(
                f'"reads_ahead" is true, and the script asks for {first} batches before the first '
                f"forward pass of an epoch, and for {max(later)} before each later one; the "
                "setting is for scripts that ask for 2 and for 1: leave it out, or hold one batch"
            )

    @property
    def passes(self) -> int:
        return self._made

    @property
    def is_over(self) -> bool:
        """Return whether its newest iterator has given all batches; also where there is none."""
        latest = self._latest()
        return latest is None or latest.is_over

    @property
    def dealt(self) -> int | None:
        """Return how many samples a batch of every rank takes; None if no sampler says so."""
        sampler = getattr(self.loader, "data_sampler", getattr(self.loader, "sampler", None))
        size = getattr(self.loader, "batch_size", None)
        if self._reads_ahead or not isinstance(sampler, DistributedSampler) or size is None:
            return None
        return int(size) * int(sampler.num_replicas)

    def load_state_dict(self, state: StateView) -> None:
        """Go to a position; the random states that all share are left as that makes them."""
        self._prepared = None
        self._latest = lambda: None
        if state["began"] is not None:
            self._replay(state)
        self._put_draws(state["now"])
        put_generators(of_loader(self.loader), state.get("own", {}))
        self._put_values(state)
        self._made_when_put, self._begun_then = self._made, state.get("begun", 1)

    def load_again(self, state: StateView) -> None:
        """Go to a position once more, if the script has read the loader since `load_state_dict`.

        The newest iterator goes there if the script asks it now, had made it before its loop then,
        or has not read it yet; else the next one that it makes does.
        """
        latest = self._latest()
        is_read = latest is not None and latest.taken - len(latest.held) != state["taken"]
        if self._made == self._made_when_put and not is_read:
            return
        was_made_in_loop = state.get("begun", 1) > 0
        if was_made_in_loop and not self._is_asked and latest is not None and latest.taken:
            self.load_state_dict(state)
        else:
            self.move_back(state)

    def can_move_back(self, state: StateView) -> bool:
        """Return whether the script's own iterator can go to a position of its epoch.

        Not if the script holds batches: no iterator can take these back.
        """
        if self.is_ahead:
            return False
        if self.is_over:
            return state["began"] is None
        return state["began"] is not None and encode(state["began"]) == encode(self._began)

    def move_back(self, state: StateView) -> None:
        """Go to a position with the iterator that the script has, too."""
        latest = self._latest()
        self.load_state_dict(state)
        if latest is not None and self._prepared is not None:
            latest.take_over(self._prepared)
            self._latest, self._prepared = weakref.ref(latest), None

    def counts(self) -> list[StateDict]:
        """Return what the samplers seed an epoch's order with, such as the epoch's number."""
        return [counts_of(part) for part in _parts(self.loader)]

    def put_counts(self, counts: Sequence[StateView]) -> None:
        for part, kept in zip(_parts(self.loader), counts, strict=True):
            put_counts(part, kept)

    def skip(self, batches: int) -> None:
        self._prepared = self._begin_epoch()
        self._drawn_from = self._beginning() if batches else {}
        self._give_away(self._prepared, batches)

    def note_fetch(self, batches: "_Batches") -> None:
        if get_ident() != self.thread:
            # What ends an iteration must not run while another thread trains.
            self.is_read_apart = True
            return
        self._is_asked = True
        self.on_fetch()
        self._is_asked = False
        batches.note_ask(keeps_state=self.is_ahead)
        if batches.number != self._made:
            self.on_return()
        if batches.number == self._made and batches.is_unread:
            self._drawn_from = self._beginning()
        if self._reads_ahead:
            self._asked = random_states()

    def _replay(self, state: StateView) -> None:
        started_s, taken, asked = time.perf_counter(), state["taken"], state.get("asked", {})
        self._put_beginning(state["began"])
        self._prepared = self._begin_epoch()
        # The script may have drawn in between, or told the epoch's number.
        if drawn_from := state.get("drawn_from"):  # an older version has none
            self._put_beginning(drawn_from)
        self._give_away(self._prepared, taken, asked=asked)
        self._prepared.hold(state.get("held", []))
        self._drawn_from, self._asked = dict(drawn_from or {}), dict(asked)
        self.replayed, self.replay_s = taken, time.perf_counter() - started_s

    @staticmethod
    def _give_away(prepared: "_Batches", batches: int, *, asked: StateView | None = None) -> None:
        for number in range(batches):
            if asked and number == batches - 1:
                restore_random_states(asked)
            if not prepared.skip():
                raise ConfigError(
                    f"the position in the data is after batch {batches} of an epoch, which has "
                    f"{number} now; start the script with the data as they were"
                )

    def _begin_epoch(self) -> "_Batches":
        self._began = self._beginning()
        self._drawn_from = {}
        batches = _Batches(self, self._make(), number=self._made + 1)
        # A strong reference would keep an epoch's workers alive after the script has dropped it.
        self._latest = weakref.ref(batches)
        self._made = batches.number
        return batches

    def _beginning(self) -> StateDict:
        """Return what the order of an epoch that begins now follows from."""
        return {
            "random": random_states(),
            "draws": self._draws(),
            "own": read_generators(of_loader(self.loader)),
            "counts": self.values.changed(),
        }

    def _put_beginning(self, then: StateView) -> None:
        restore_random_states(then["random"])
        self._put_draws(then["draws"])
        put_generators(of_loader(self.loader), then.get("own", {}))
        self._put_values(then)

    def _put_values(self, state: StateView) -> None:
        """Put back what the data had changed; an older version has nothing of it."""
        if "counts" in state:
            self.values.put(state["counts"])

    def _draws(self) -> list[StateDict]:
        """Return what an epoch's order is drawn from, beside the shared random states."""
        return [
            {
                "generator": g.get_state()
                if isinstance(g := getattr(part, "generator", None), torch.Generator)
                else None,
                **counts,
            }
            for part, counts in zip(_parts(self.loader), self.counts(), strict=True)
        ]

    def _put_draws(self, draws: list[StateDict]) -> None:
        for part, drawn in zip(_parts(self.loader), draws, strict=True):
            if drawn["generator"] is not None:
                if part.generator is None:  # some are made when they are first needed
                    part.generator = torch.Generator()
                part.generator.set_state(drawn["generator"])
        self.put_counts(draws)


class _Batches:
    """An epoch's batches, counted; what `iter(loader)` gives."""

    def __init__(self, watch: LoaderWatch, batches: Iterator[Any], *, number: int) -> None:
        self.number = number
        self.taken = 0
        self.is_over = False
        self.gaps: list[int] = []  # how many were asked for before each of the first forward passes
        self._watch = watch
        self._batches = batches
        self._asked = self._asked_then = 0  # so far, and before the newest forward pass
        self._states: list[StateDict] = []  # random, at each question that no training followed yet
        self._again: list[tuple[StateDict, Any]] = []  # batches that the script had held

    def __iter__(self) -> "_Batches":
        return self

    def __len__(self) -> int:
        return len(self._watch.loader)

    @property
    def is_unread(self) -> bool:
        return not self.taken and not self._again

    @property
    def held(self) -> list[StateDict]:
        """Return the random states in which the script asked for what it has not trained on."""
        unanswered = 1 if self.is_over else 0
        return self._states[: max(0, len(self._states) - unanswered)]

    def note_ask(self, *, keeps_state: bool) -> None:
        self._asked += 1
        if not keeps_state:
            return
        self._states.append(self._again[0][0] if self._again else random_states())
        if len(self._states) > _MOST_HELD:
            raise ConfigError(
                f'"reads_ahead" is true, and the script asked for {len(self._states)} batches '
                "without a forward pass; read the loader of training for training alone"
            )

    def note_forward(self) -> bool:
        """Take one as trained on; return whether as many as show what a script does now are."""
        new = self._asked - self._asked_then
        if not new:
            return False
        self._asked_then = self._asked
        del self._states[:1]
        if len(self.gaps) == _FORWARDS:
            return False
        self.gaps.append(new)
        return len(self.gaps) == _FORWARDS

    def hold(self, states: Sequence[StateDict]) -> None:
        """Read batches in these random states, to give them before all others."""
        for state in states:
            restore_random_states(state)
            self._again += [(state, batch) for batch in islice(self._batches, 1)]

    def __next__(self) -> Any:
        if self.is_over:  # a prefetcher may ask once more
            raise StopIteration
        self._watch.note_fetch(self)
        try:
            batch = self._again.pop(0)[1] if self._again else next(self._batches)
        except StopIteration:
            self.is_over = True
            self._watch.on_over()
            raise
        except Exception:
            self.taken += 1  # such as a damaged sample, after which the script reads on
            raise
        self.taken += 1
        self._watch.on_batch()
        return batch

    # It is this object that the script holds, so the position moves into it.
    def take_over(self, other: "_Batches") -> None:
        self.number, self.taken, self.is_over = other.number, other.taken, other.is_over
        # Of its own class.
        self._batches, self._again = other._batches, other._again  # noqa: SLF001
        self._states = []

    def skip(self) -> bool:
        """Give a batch away, or a failure to make it; false if there is none."""
        batch = None
        with suppress(Exception):  # the script's data fail as they did then
            batch = next(self._batches, _OVER)
        self.taken += batch is not _OVER
        return batch is not _OVER


def reads_ahead(loader: object) -> bool:
    """Return whether it is no DataLoader, but passes for the one that it reads, as Accelerate's do.

    What such a one says of its position leaves out what was drawn for the batch ahead.
    """
    return isinstance(loader, KINDS) and not issubclass(type(loader), KINDS)


def watch(loader: object) -> LoaderWatch:
    """Return the loader's watch; one is made if it has none."""
    found: LoaderWatch | None = loader.__dict__.get(_WATCH)
    return found or LoaderWatch(loader)


@cache
def _watched(kind: type) -> type:
    """`kind`, but whose iterators are its watch's."""

    def begin(self: object) -> _Batches:
        found: LoaderWatch = self.__dict__[_WATCH]
        return found.begin()

    names = {"__iter__": begin, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)


def is_watchs(position: object) -> bool:
    """Return whether a position is one that a watch gave, and not a loader itself."""
    return isinstance(position, Mapping) and {"began", "taken"} <= position.keys()


def counts_of(part: object) -> StateDict:
    """Return what a sampler seeds an epoch's order with, such as the epoch's number."""
    return {name: getattr(part, name, None) for name in _COUNTS}


def put_counts(part: object, counts: StateView) -> None:
    """Put back what `counts_of` gave."""
    for name in _COUNTS:
        if counts.get(name) is not None:
            setattr(part, name, counts[name])


def samplers_in(source: object) -> dict[str, object]:
    """Return the samplers of a source that is no loader, such as torchdata's nodes.

    By where they are found. That position may leave out the epoch that a sampler was told.
    """
    return {where: part for where, part in reached([source]) if isinstance(part, Sampler)}


def of_loader(loader: Any) -> list[Any]:
    """Yield what may draw for a loader from a generator of its own."""
    names = ("dataset", "collate_fn")
    return [getattr(loader, name, None) for name in names] + _parts(loader)[1:]


def _parts(loader: Any) -> list[Any]:
    """Return the loader and its samplers, each once, in a fixed order."""
    found = {id(loader): loader}
    waiting = [loader]
    while waiting:
        part = waiting.pop(0)
        for name in ("sampler", "batch_sampler", "data_sampler"):
            inner = getattr(part, name, None)
            if inner is not None and id(inner) not in found:
                found[id(inner)] = inner
                waiting.append(inner)
    return [*found.values()]
