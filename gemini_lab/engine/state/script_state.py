"""The script's own part of the small state: where its data stand, and what it named."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from gemini_lab.engine.contract import StateDict, Stateful, StateView
from gemini_lab.engine.frameworks.ddp_buckets import BucketOrder
from gemini_lab.engine.private_names import require
from gemini_lab.engine.random_states import random_states
from gemini_lab.engine.state.data_values import (
    own_generators,
    put_generators,
    read_generators,
)
from gemini_lab.engine.state.loaders import (
    KINDS,
    LoaderWatch,
    counts_of,
    is_watchs,
    of_loader,
    put_counts,
    reads_ahead,
    samplers_in,
    watch,
)
from gemini_lab.engine.state.rehearsal import named
from gemini_lab.engine.state.user_state import OwnValues, keepsakes, refill
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import encode
from gemini_lab.units import MIB


class ScriptState:
    """The script's state in a version, beside the engine's: read, and put back in place.

    Raises:
        ConfigError: Something has no state that could be kept, or its iterator was made too early.
        UnsupportedError: It has one that cannot be kept.
    """

    def __init__(
        self,
        *,
        data: Sequence[object] = (),
        client_state: StateDict | None = None,
        also: Mapping[str, object] | None = None,
    ) -> None:
        # Names schedules of the optimizer that were made since protection began.
        self.late_schedules: Callable[[], Sequence[str]] = tuple
        # Names other weights that changed since protection began, each once.
        self.bystanders: Callable[[], Sequence[str]] = tuple
        # In attributes of the model's parts, if there is a model.
        self.values: OwnValues | None = None
        # In which DDP adds up the gradients of other models than the engine's.
        self.orders: Sequence[BucketOrder] = ()
        self.client_state = client_state
        self.things: Sequence[object] = [*(also or {}).values()]  # what the script has named
        self._named = {id(one) for one in self.things}  # the script holds them
        self._told = set[str]()  # of what the data change
        self.keepsakes = keepsakes(also or {})
        loaders = [source for source in data if isinstance(source, KINDS)]
        for loader in loaders:
            _require_no_iterator(loader)
        # The watches of those of `data` that are loaders, in their order.
        self.watches: list[LoaderWatch] = [watch(loader) for loader in loaders]
        # Says where each of `data` stands, in their order.
        self.sources: Sequence[Any] = [_position(source) for source in data]
        self._placed = set[int]()  # those that a version's position was put into

    @property
    def _loaders(self) -> list[Any]:
        """Loaders that say their position themselves.

        A watch has the generators of its loader's data in its position.
        """
        return [source for source in self.sources if isinstance(source, KINDS)]

    @property
    def _others(self) -> list[Any]:
        return [one for one in self.sources if not isinstance(one, (LoaderWatch, *KINDS))]

    def read_again(self, source: Any) -> None:
        """From now on, come to a loader's positions by reading its batches again."""
        self.sources = [watch(one) if one is source else one for one in self.sources]

    def read_ahead(self) -> None:
        """From now on, take a loader to stand where training does, not where the script reads.

        Raises:
            ConfigError: A source of `data` is no loader.
        """
        for one in self._others:
            raise ConfigError(
                f'"reads_ahead" is true, and data= has a {type(one).__name__}, whose batches '
                "gemini_lab cannot count; give the DataLoader that the script reads"
            )
        for loader in self._loaders:
            self.read_again(loader)
        for one in self.watches:
            one.is_ahead = True

    @property
    def room_bytes(self) -> int:
        """Return the room for large things that were handed over, in whole MiB."""
        held = sum(one.room_bytes for one in self.keepsakes.values())
        held += 0 if self.client_state is None else len(encode(self.client_state))
        held += 0 if self.values is None else self.values.room_bytes
        return -(-held // MIB) * MIB

    def positions(self) -> list[Any]:
        """Return the data's positions; to ask may draw random numbers."""
        return [{} if self._is_unread(one) else one.state_dict() for one in self.sources]

    def _is_unread(self, source: object) -> bool:
        """Return whether it is a loader of torchdata's that has no place in its data yet.

        To ask it where it stands would make its iterator, in the order of now, and not in that of
        the epoch which the script may set before it reads. One whose order is drawn is asked: what
        it draws from was seeded when it was made.
        """
        if not isinstance(source, KINDS) or id(source) in self._placed:
            return False
        packages = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
        if "torchdata" not in packages or watch(source).has_begun:
            return False
        is_by_epoch = isinstance(getattr(source, "sampler", None), DistributedSampler)
        return is_by_epoch and not own_generators(of_loader(source))

    def data_changes(self) -> list[str]:
        """Return what the loaders' data have changed and no version has, each once."""
        found = {
            change
            for one in self.watches
            for change in one.values.unkept(
                is_known=partial(self._has_all_of, by_itself=one not in self.sources),
                keeps_plain=one in self.sources,
                reads_here=one.has_begun and not getattr(one.loader, "num_workers", 0),
            )
        }
        new = sorted(found - self._told)
        self._told |= found
        return new

    def _has_all_of(self, thing: object, *, by_itself: bool) -> bool:
        return id(thing) in self._named or (by_itself and hasattr(thing, "state_dict"))

    def drawn(self) -> StateDict:
        """Return what changes at any time, so that only the loop's top assigns it to an iteration.

        Positions in the data, random states, and the script's own dicts and generators.
        """
        # `random` below must be what is left after them.
        positions = self.positions()  # first: they may draw
        seeds: list[Any] = [watch(one).counts() for one in self._loaders]
        seeds += [
            {where: counts_of(part) for where, part in samplers_in(one).items()}
            for one in self._others
        ]
        return {"data": positions, "seeds": seeds, **self.others()}

    def others(self) -> StateDict:
        """Return the same without positions in the data: to ask for it changes nothing."""
        return {
            "client": self.client_state,
            "also": {name: one.read() for name, one in self.keepsakes.items() if not one.is_made},
            "own": [read_generators(of_loader(one)) for one in self._loaders],
            "random": random_states(),
        }

    def made(self) -> StateDict:
        """Return what updates make: schedules, averaged weights."""
        return {name: one.read() for name, one in self.keepsakes.items() if one.is_made}

    def require_fit(self, small: StateView) -> None:
        """Refuse a version whose script handed over other things."""
        if len(small["data"]) != len(self.sources):
            raise ConfigError(
                f"the version has the positions of {len(small['data'])} data sources, the script "
                f"gives {len(self.sources)}; give `data=` as it was"
            )
        stored = {*small["also"], *small["made"]}
        if stored != {*self.keepsakes}:
            raise ConfigError(
                f"the version keeps {sorted(stored)} of the script's own, the script names "
                f"{sorted(self.keepsakes)}; give `also=` as it was"
            )

    def can_move_back(self, positions: Sequence[Any]) -> bool:
        """Return whether training can go on from these positions with the iterators that it has."""
        return len(positions) == len(self.sources) and all(
            position is not None and source.can_move_back(position)
            if isinstance(source, LoaderWatch)
            else not isinstance(source, KINDS)  # such as torchdata's, which tell no iterator
            for source, position in zip(self.sources, positions, strict=True)
        )

    def put_data(
        self,
        # As `positions` gave them; None for a source that is to stay where it is.
        positions: Sequence[Any],
        *,
        # Of what says its position itself, what its samplers seed an epoch's order with: a position
        # is a place in it. First of loaders, then of the others, of which an older version has
        # none.
        seeds: Sequence[Any] = (),
        in_place: bool = False,  # whether the iterators that the script has already are to go there
    ) -> None:
        """Go to these positions in the data; random numbers may be drawn for it."""
        for source, position in zip([*self.sources], positions, strict=True):
            if isinstance(source, KINDS) and is_watchs(position):
                self.read_again(source)
        for loader, counts in zip(self._loaders, seeds, strict=False):
            watch(loader).put_counts(counts)
        for other, counts in zip(self._others, seeds[len(self._loaders) :], strict=False):
            for where, part in samplers_in(other).items():
                put_counts(part, counts.get(where, {}))
        for source, position in zip(self.sources, positions, strict=True):
            if in_place and isinstance(source, LoaderWatch):
                source.move_back(position)
            elif position is not None:  # it begins anew otherwise
                source.load_state_dict(position)
                self._placed |= {id(source)} if position else set()
            if not self._is_unread(source):
                # torchdata makes its iterator when it is asked, and seeds workers from torch's
                # generator.
                source.state_dict()  # what it builds, and draws, comes before the random states

    def put_data_again(self, positions: Sequence[Any]) -> None:
        """Go to these positions once more, where loaders were read since they were put there.

        What says its position itself stays as it is: nobody sees who reads it.
        """
        for source, position in zip(self.sources, positions, strict=True):
            if isinstance(source, LoaderWatch) and position is not None:
                source.load_again(position)

    def put_orders(self, orders: Sequence[Sequence[int]]) -> None:
        """Restore DDP's buckets of other models; all ranks together."""
        for order, indices in zip(self.orders, orders, strict=False):
            order.rehearse(indices)

    def put(self, small: StateView) -> None:
        """Put back everything else, but for the random states that all share."""
        if self.client_state is not None:
            refill(self.client_state, small["client"])
        for name, state in {**small["also"], **small["made"]}.items():
            with named(f"also={{{name!r}: ...}}"):
                self.keepsakes[name].put(state)
        for loader, own in zip(self._loaders, small.get("own", []), strict=False):
            put_generators(of_loader(loader), own)


def _position(source: Any) -> Stateful:
    """Return where `source` stands: it says so itself, or its watch does."""
    if reads_ahead(source):
        return watch(source)
    if not (hasattr(source, "state_dict") and hasattr(source, "load_state_dict")):
        if isinstance(source, KINDS):
            return watch(source)
        attributes = getattr(source, "__dict__", {}).items()
        inside = [name for name, value in attributes if isinstance(value, KINDS)]
        itself = (
            f"the DataLoader inside (its `.{inside[0]}`)" if inside else "the DataLoader itself"
        )
        raise ConfigError(
            f"data= was given a {type(source).__name__}; give {itself}, not an iterator or a data "
            "set, or an object with `state_dict` and `load_state_dict`"
        )
    stateful: Stateful = source
    return stateful


def _require_no_iterator(loader: Any) -> None:
    """Refuse a loader that keeps an iterator already, where that can be seen."""
    if isinstance(loader, DataLoader):
        require(loader, "_iterator", package="torch")
    if getattr(loader, "_iterator", None) is None:
        return
    if reads_ahead(loader):
        raise UnsupportedError(
            f"the {type(loader).__name__} in data= reads a StatefulDataLoader, whose iterator it "
            "made at once; leave use_stateful_dataloader out, as the position in a plain "
            "DataLoader comes back as well"
        )
    raise ConfigError(
        f"an iterator of the {type(loader).__name__} in data= was made before `protect`, and "
        "a position only reaches iterators made after it; call iter(loader) after `protect`"
    )
