"""Values and generators of data sets, samplers and collate functions: read, and put back.

Values are such as the epoch that a data set is told, how far a stream has come, or an order that a
sampler shuffles in place. What a loader gives follows from them, so they are kept as they were when
its iterator was made, and as they are. Only what has changed since the start is kept: what a
process finds at its start belongs to it alone, as do descriptors and the like. What is large, or no
plain value, is not kept, and is named if it has changed.

Generators draw for a loader and for nobody else, so where a loader is, they are. What the workers
of a loader draw from their copies begins anew with each epoch, and these here stand still.
"""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils.data import Sampler

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.optimizer_state import in_place, refilled
from gemini_lab.engine.own_code import is_own_type, variables_around
from gemini_lab.engine.random_states import GENERATORS, read_generator
from gemini_lab.engine.state.user_state import OF_PROCESS, keepsakes
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import decode, encode

_DEEPEST_PART: Final = 8  # a transform in a Compose in a Compose of a data set
_OF_DATA: Final = ("torch.utils.data", "torchdata.nodes")
"""Packages whose objects are made of a script's, for data."""
_MOST_ELEMENTS: Final = 64  # elements of a container, which are data where they are more


def read_generators(parts: Iterable[object]) -> StateDict:
    """Return their states, each by where it was found."""
    return {where: one.read() for where, one in keepsakes(_found(parts)).items()}


def put_generators(parts: Iterable[object], states: StateView) -> None:
    """Put back what `read_generators` gave; one that is made later is left to be made."""
    for where, one in keepsakes(_found(parts)).items():
        if where in states:
            one.put(states[where])


def own_generators(parts: Iterable[object]) -> list[object]:
    """Return the generators themselves."""
    return [*_found(parts).values()]


def reached(parts: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Yield the script's own parts of these, and torch's for data, each by where it is."""
    seen = set[int]()
    for number, part in enumerate(parts):
        yield from _inside(part, str(number), seen, 0)


def _found(parts: Iterable[object]) -> dict[str, object]:
    return {where: one for where, one in reached(parts) if isinstance(one, GENERATORS)}


def _inside(thing: object, where: str, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if id(thing) in seen or depth > _DEEPEST_PART:
        return
    seen.add(id(thing))
    yield where, thing
    if not isinstance(thing, GENERATORS):
        for name, value in _parts_in(thing):
            yield from _inside(value, f"{where}.{name}", seen, depth + 1)


def _parts_in(thing: Any) -> Iterator[tuple[object, object]]:
    """Yield a thing's parts, as far as they are the script's own, or torch's for data.

    As it is at this moment: a thread of the data's may change it while its parts are looked at.
    """
    kind = type(thing)
    if kind in (list, tuple, dict):
        if len(thing) <= _MOST_ELEMENTS:
            yield from [*thing.items()] if kind is dict else enumerate([*thing])
    elif kind is FunctionType:
        yield from variables_around(thing).items()
        yield from [*enumerate(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).items()]
    elif kind is MethodType:
        yield "self", thing.__self__
    elif kind is partial:
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif is_own_type(kind) or kind.__module__.startswith(_OF_DATA):
        yield from [*getattr(thing, "__dict__", {}).items()]
        if is_own_type(kind):
            yield from _beside_attributes(thing)
    elif isinstance(thing, nn.Sequential):
        yield from enumerate(thing)


def _beside_attributes(thing: Any) -> Iterator[tuple[str, object]]:
    """Yield generators in slots of a thing, and in attributes that its class has for all."""
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        named = {slots: None} if isinstance(slots, str) else dict.fromkeys(slots)
        held = {**vars(kind), **{name: getattr(thing, name, None) for name in named}}
        yield from [(name, one) for name, one in held.items() if isinstance(one, GENERATORS)]


Values = StateDict
"""Plain values, each by where it was found."""
_EPOCHS: Final = frozenset({"epoch", "_epoch"})
"""What is read of data sets that others wrote and that are told an epoch."""
_OF_SAMPLERS: Final = frozenset({"indices", "weights"})
"""What scripts change in torch's samplers, such as how often a sample is drawn."""
_SCALARS: Final = (bool, int, float, type(None), np.generic)
_MANY: Final = 1_000  # values in one attribute: more are data
_CHARACTERS: Final = 16  # of a text weigh as much as a number
_ROOM_BYTES: Final = 64 * 2**10  # for all that is kept of one loader
_NUMBERS: Final = (bool, int, float, complex, str, type(None), np.generic)
_CONTAINERS: Final = (list, tuple, set, dict, deque)
_DEEPEST: Final = 4
_ENDS: Final = 8  # elements of a container that are looked at, from each of its ends
_MOST_OF_SET: Final = 1_000  # elements of a set: of more of them only the number counts
_SAMPLE: Final = 256


class DataValues:
    """The values of a loader's parts, compared with those at its making."""

    def __init__(self, parts: Callable[[], Iterable[object]]) -> None:
        self._parts = parts
        self._began_with = {where for where, _ in reached(parts())}
        self._first = {one.where: one.encoded for one in self._plain()}
        self._digests_first = {one.where: seen for one, seen in self._digests()}
        self._iterators_first = {one.where: one.value for one in self._iterators()}

    def changed(self) -> Values:
        """Return plain values that are others than at first."""
        found, left_bytes = Values(), _ROOM_BYTES
        for one in self._plain():
            if self._first.get(one.where) != one.encoded and len(one.encoded) <= left_bytes:
                found[one.where] = decode(one.encoded)  # the data go on changing it
                left_bytes -= len(one.encoded)
        return found

    def put(self, changed: Values) -> None:
        """Put these into the parts, and their first plain values elsewhere."""
        things, plain = dict(reached(self._parts())), [*self._plain()]
        held = {one.where: one.encoded for one in plain}
        wanted = self._first | {where: encode(value) for where, value in changed.items()}
        filled = {id(one.value) for one in plain if wanted.get(one.where) == one.encoded}
        for where in held.keys() | changed.keys():
            of, _, name = where.rpartition(".")
            if where not in wanted:
                if of in self._began_with:
                    vars(things[of]).pop(name, None)
            elif of in things and held.get(where) != wanted[where]:
                _put(things[of], name, decode(wanted[where]), filled)

    def unkept(
        self, *, is_known: Callable[[object], bool], keeps_plain: bool, reads_here: bool
    ) -> list[str]:
        """Return changes that `changed` leaves out, for users.

        Args:
            is_known: Whether a version has all of a thing by another way.
            keeps_plain: Whether it has what `changed` gives.
            reads_here: Whether samples are made in this process, by these very parts.
        """
        kept = self.changed()
        found = [
            one
            for one in self._plain()
            if self._first.get(one.where) != one.encoded
            and (one.where not in kept or not (keeps_plain or one.name in _EPOCHS))
        ]
        found += [
            one for one, seen in self._digests() if self._digests_first.get(one.where) != seen
        ]
        if reads_here:
            first = self._iterators_first
            found += [one for one in self._iterators() if first.get(one.where) is one.value]
        return sorted({str(one) for one in found if not is_known(one.thing)})

    def _plain(self) -> Iterator["_Attribute"]:
        for one in self._attributes():
            is_of_process = type(one.value) is int and OF_PROCESS.search(one.name)
            if _weight(one.value) <= _MANY and not is_of_process:
                with suppress(UnsupportedError):  # such as an array of dates
                    yield replace(one, encoded=encode(one.value))

    def _digests(self) -> Iterator[tuple["_Attribute", int]]:
        """Yield checksums of containers, arrays and tensors that are large, or not plain."""
        plain = {one.where for one in self._plain()}
        for one in self._attributes():
            is_one = _is_kind(one.value, (*_CONTAINERS, np.ndarray, torch.Tensor))
            seen = digest(one.value) if is_one and one.where not in plain else None
            if seen is not None:
                yield one, seen

    def _iterators(self) -> Iterator["_Attribute"]:
        """Yield iterators, which cannot be asked how far they are; a file is opened again."""
        for one in self._attributes():
            if hasattr(type(one.value), "__next__") and not isinstance(one.value, io.IOBase):
                yield one

    def _attributes(self) -> Iterator["_Attribute"]:
        for where, thing in reached(self._parts()):
            for name, value in _held(thing).items():
                yield _Attribute(f"{where}.{name}", thing, name, value)


@dataclass(frozen=True, slots=True)
class _Attribute:
    """A value, who has it, by what name, and where that was found; a plain one as bytes, too."""

    where: str
    thing: object
    name: str
    value: object
    encoded: bytes = b""

    def __str__(self) -> str:
        return f"{self.name!r} of a {type(self.thing).__name__}"


def _held(thing: object) -> Values:
    """Return attributes of a thing that may change, as they are at this moment."""
    kind, attributes = type(thing), dict(getattr(thing, "__dict__", {}))
    if is_own_type(kind):
        return attributes
    names = _EPOCHS if hasattr(kind, "set_epoch") else frozenset[str]()
    names = names | _OF_SAMPLERS if issubclass(kind, Sampler) else names
    return {name: attributes[name] for name in names & attributes.keys()}


def _weight(value: Any, left: int = _MANY) -> int:
    """Return about how many plain values this is; more than `_MANY` if too many, or none."""
    if isinstance(value, (str, bytes)):
        return 1 + len(value) // _CHARACTERS
    if isinstance(value, _SCALARS):
        return 1
    if isinstance(value, np.ndarray) and value.dtype != object:
        return int(value.size)
    if type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad:
        return value.numel()
    if type(value) not in (list, tuple, dict, deque) or len(value) > left:
        return _MANY + 1
    found = 1
    for one in [*value, *(value.values() if type(value) is dict else ())]:
        found += _weight(one, left - found)
        if found > left:
            return _MANY + 1
    return found


def _put(thing: object, name: str, wanted: Any, filled: set[int]) -> None:
    """Set a thing's value by name; in place, as others may hold it, or workers share its memory."""
    held = vars(thing).get(name)
    if isinstance(held, torch.Tensor) and not isinstance(wanted, torch.Tensor) and name in _EPOCHS:
        held.fill_(wanted)  # an older version has the number alone
    else:
        vars(thing)[name] = refilled(held, wanted, filled, in_place)


def _is_kind(value: object, kinds: tuple[type, ...] | type) -> bool:
    """Return whether its own type is such; a weak proxy answers for what may be gone."""
    return issubclass(type(value), kinds)


def digest(value: object) -> int | None:
    """Return a checksum of a value; `None` if it has no plain values or a thread changes it."""

    def look(one: Any, depth: int) -> int | None:
        if _is_kind(one, _CONTAINERS) and depth < _DEEPEST:
            parts = [*one.items()] if _is_kind(one, dict) else [*one]
            chosen = parts[:_ENDS] + parts[-_ENDS:]
            if _is_kind(one, set):  # equal sets give theirs in any order: all, or none
                chosen = parts if len(parts) <= _MOST_OF_SET else []
            looked = [look(part, depth + 1) for part in chosen]
            if _is_kind(one, set):
                looked.sort(key=str)
            return xxhash.xxh3_64_intdigest(repr((len(parts), looked)).encode())
        plain = _plain_bytes(one)
        return None if plain is None else xxhash.xxh3_64_intdigest(plain)

    try:
        return look(value, 0)
    except RuntimeError:
        return None


def _plain_bytes(value: Any) -> bytes | None:
    """Return the bytes of a value without parts, or the first ones; versions have weights."""
    if _is_kind(value, _NUMBERS):
        return repr(value).encode()
    if _is_kind(value, GENERATORS):
        return encode(read_generator(value))
    if _is_kind(value, np.ndarray) and value.dtype != object:
        return bytes(value.reshape(-1)[:_SAMPLE].tobytes())
    if type(value) is torch.Tensor and not (value.is_leaf and value.requires_grad):
        sample = value.detach().flatten()[:_SAMPLE].clone().cpu()
        return bytes(sample.view(torch.uint8).numpy().tobytes())
    return None
