"""Generators that data sets, samplers and collate functions have of their own, read and put back.

They draw for a loader and for nobody else, so where a loader is, they are. What the workers of a
loader draw from their copies begins anew with each epoch, and these here stand still.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from torch import nn

from gemini_lab.engine.own_code import is_own_type, variables_around
from gemini_lab.engine.state.user_state import GENERATORS, keepsakes

_DEEPEST: Final = 5
_OF_DATA: Final = ("torch.utils.data", "torchdata.nodes")
"""Packages whose objects are made of a script's, for data."""
_MANY: Final = 64  # elements of a container, which are data where they are more


def read_generators(parts: Iterable[object]) -> dict[str, Any]:
    """Their states, each by where it was found."""
    return {where: one.read() for where, one in keepsakes(_found(parts)).items()}


def put_generators(parts: Iterable[object], states: Mapping[str, Any]) -> None:
    """Put back what `read_generators` gave; one that is made later is left to be made."""
    for where, one in keepsakes(_found(parts)).items():
        if where in states:
            one.put(states[where])


def own_generators(parts: Iterable[object]) -> list[object]:
    """The generators themselves."""
    return [*_found(parts).values()]


def reached(parts: Iterable[object]) -> Iterator[tuple[str, Any]]:
    """All that they are made of, as far as it is the script's own or torch's for data: by where."""
    seen = set[int]()
    for number, part in enumerate(parts):
        yield from _inside(part, str(number), seen, 0)


def _found(parts: Iterable[object]) -> dict[str, object]:
    return {where: one for where, one in reached(parts) if isinstance(one, GENERATORS)}


def _inside(thing: Any, where: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if id(thing) in seen or depth > _DEEPEST:
        return
    seen.add(id(thing))
    yield where, thing
    if not isinstance(thing, GENERATORS):
        for name, value in _held(thing):
            yield from _inside(value, f"{where}.{name}", seen, depth + 1)


def _held(thing: Any) -> Iterator[tuple[object, object]]:
    """Yield a thing's parts, as far as they are the script's own, or torch's for data.

    As it is at this moment: a thread of the data's may change it while its parts are looked at.
    """
    kind = type(thing)
    if kind in (list, tuple, dict):
        if len(thing) <= _MANY:
            yield from [*thing.items()] if kind is dict else enumerate([*thing])
    elif kind is FunctionType:
        yield from variables_around(thing).items()
    elif kind is MethodType:
        yield "self", thing.__self__
    elif kind is partial:
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif is_own_type(kind) or kind.__module__.startswith(_OF_DATA):
        yield from [*getattr(thing, "__dict__", {}).items()]
    elif isinstance(thing, nn.Sequential):
        yield from enumerate(thing)
