"""What a script carries from one iteration to the next by itself, and no version has.

Counters, best values, sums, histories and generators of the script's own: in variables that its
loop reads before it writes them, in those that functions keep for themselves, and in attributes of
its objects. They show in no loss until much later, so they are looked at twice, and named where
they have changed.
"""

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any, Final
from weakref import ProxyTypes, ref

import numpy as np
import torch

from gemini_lab.engine.own_code import is_own_file, is_own_type, variables_around
from gemini_lab.engine.state.keepsakes import GENERATORS
from gemini_lab.engine.state.unsaid import is_metric
from gemini_lab.engine.state.value_digest import (
    CONTAINERS,
    DEEPEST,
    NUMBERS,
    digest,
    is_kind,
)
from gemini_lab.engine.unkept.liveness import (
    Attributes,
    attributes_in,
    expressions_in,
    given_arguments,
    live_names,
    loop_targets,
)

_MANY: Final = 64  # objects of one class: more of them are data
_LARGE: Final = 1_000  # values of one dict: more of them are data
_SETS: Final = (set, frozenset)
"""Of an optimizer's own attributes these are not kept: nothing says in what order they give."""
_CLOCKS: Final = (time.time, time.perf_counter, time.monotonic)
_ASKS_FOR_LOCALS: Final = frozenset({"dir", "eval", "exec", "locals", "vars"})

Where = int | str
"""Who holds a value: the number of an object, or the variables that lead to it."""
_Found = tuple[Where, str, object]
"""A value, with who holds it, and its name for people, which others may have as well."""


@dataclass(frozen=True, slots=True)
class _Checksums:
    """Of a value, and of what it is without a clock's values in it."""

    exact: int
    without_times: int


@dataclass(frozen=True, slots=True)
class _Looked:
    """A value, and what it is like."""

    value: object
    checksums: _Checksums


class ScriptValues:
    """Looks at what no version has, and keeps nothing of it alive.

    Args:
        kept: What the script handed over, or what was taken along: versions are made of it.
        living: Gives the objects of this process.
        clocks: Tell the time that a script may keep, such as when it began.
    """

    def __init__(
        self,
        kept: Sequence[object],
        living: Callable[[], Iterable[object]] = gc.get_objects,
        *,
        clocks: Sequence[Callable[[], float]] = _CLOCKS,
    ) -> None:
        twofold = [*_held_twice(kept)]  # before it is held here as well
        self._twofold = {id(one): _reference(one) or one for one in twofold}
        self._kept = kept
        self._known: dict[int, object] = {}  # filled while it is looked, so that no place is stale
        optimizers = [one for one in _inside(kept) if is_kind(one, torch.optim.Optimizer)]
        self._optimizers = [ref(one) for one in optimizers]
        self._living = living
        self._clocks = [(clock, clock()) for clock in clocks]
        self._objects: list[ref[object]] | None = None
        self._before: dict[tuple[str, Where], _Checksums] = {}
        self._named: set[str] = set()
        self._tensors: dict[int, ref[object]] = {}  # parts of what was named

    def changed(
        self, frames: Sequence[FrameType], *, epoch: int | None = None
    ) -> tuple[list[str], list[str]]:
        """What has changed since this was first asked, each once.

        Args:
            frames: Of the script's loop, which is at its top, and of who called that.
            epoch: What the outer of its loops was given last: a version has it.

        Returns:
            What no version has; and what a version has, but is known to the script by another name.
        """
        if self._objects is None:
            self._objects = self._own_objects()
        self._known = {id(one): one for one in _inside(self._kept)}
        found = self._look(frames, epoch)
        self._known = {}
        changed = {
            label
            for (label, where), one in found.items()
            if self._differs(label, where, one.checksums)
        }
        new = sorted(changed - self._named)
        self._named |= changed
        inside = _inside(one.value for (label, _), one in found.items() if label in new)
        self._tensors |= {id(one): ref(one) for one in inside if is_kind(one, torch.Tensor)}
        twofold = {label for (label, _), one in found.items() if self._is_twofold(one.value)}
        return [one for one in new if one not in twofold], [one for one in new if one in twofold]

    def has_named(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is part of what this has named."""
        named = self._tensors.get(id(tensor))
        return named is not None and named() is tensor

    def _differs(self, label: str, where: Where, now: _Checksums) -> bool:
        """Whether a value has changed since it was first seen there, and not in its times alone."""
        before = self._before.setdefault((label, where), now)
        return now.exact != before.exact and now.without_times != before.without_times

    def _look(
        self, frames: Sequence[FrameType], epoch: int | None
    ) -> dict[tuple[str, Where], _Looked]:
        """What may be carried now, by its name and its holder."""
        found, seen = dict[tuple[str, Where], _Looked](), dict[int, object]()
        for where, label, value in self._values(frames, epoch):
            if not is_kind(value, NUMBERS):
                if id(value) in seen or (self._has(value) and not self._is_twofold(value)):
                    continue
                seen[id(value)] = value
            if (seen_as := self._look_at(value)) is not None:
                found.setdefault((label, where), _Looked(value=value, checksums=seen_as))
        return found

    def _own_objects(self) -> list[ref[object]]:
        """Functions of the script, and objects of its classes."""
        living = list(self._living())
        try:
            many = Counter(map(id, map(type, living)))  # by `id`: a class need not have a hash
            kinds = {id(kind): kind for kind in map(type, living)}
            own = {each for each in kinds if many[each] <= _MANY and is_own_type(kinds[each])}
            found = (one for one in living if id(type(one)) in own or _is_own_function(one))
            return [made for made in map(_reference, found) if made]
        finally:
            living.clear()  # who holds this frame, such as a profiler, may be among them

    def _values(self, frames: Sequence[FrameType], epoch: int | None) -> Iterator[_Found]:
        """All that may be carried."""
        for frame in frames:
            yield from _variables(frame, epoch)
        under_way = {frame.f_code: frame.f_lasti for frame in frames}
        held = ((number, one()) for number, one in enumerate(self._objects or ()))
        objects = {number: one for number, one in held if one is not None}
        functions = {
            number: one
            for number, one in objects.items()
            if isinstance(one, FunctionType) and _is_called(one)
        }
        own = (one for one in functions.values() if one.__name__ != "__init__")
        code = {one.__code__: None for one in own} | under_way
        code |= {inner: None for outer in [*code] for inner in expressions_in(outer)}
        found = {one: attributes_in(one, at) for one, at in code.items()}
        read = frozenset[str]().union(*(one.read for one in found.values()))
        changed = frozenset[str]().union(*(one.changed for one in found.values()))
        handed_on = _handed_on(frames, [*functions.values()], found)
        for number, function in functions.items():
            if function.__code__ in found:
                kept = _of_function(function, found[function.__code__].outer, handed_on)
                yield from ((number, name, value) for name, value in kept)
        for number, one in objects.items():
            is_kept = self._has(one)
            if isinstance(one, FunctionType) or (is_kept and _says_all(one)):
                continue
            but = ", which its state_dict leaves out" if is_kept else ""
            kept = _of_object(one, read, changed)
            yield from ((number, f"{name}{but}", value) for name, value in kept)
        for number, optimizer in enumerate(one() for one in self._optimizers):
            for name, value in _attributes(optimizer):
                if is_kind(value, _SETS):
                    yield number, f"{name!r} of a {type(optimizer).__name__}", value

    def _has(self, value: object) -> bool:
        """Whether a version has this."""
        return id(value) in self._known

    def _is_twofold(self, value: object) -> bool:
        held = self._twofold.get(id(value))
        return (held() if isinstance(held, ref) else held) is value

    def _look_at(self, value: Any) -> _Checksums | None:
        """None of a clock's value.

        A number may be taken for a time later on, when a clock has come that far.
        """
        exact = digest(value, is_known=self._has)
        without_times = digest(value, is_known=self._has, is_left_out=self._is_a_time)
        if exact is None or without_times is None:
            return None
        return _Checksums(exact=exact, without_times=without_times)

    def _is_a_time(self, value: Any) -> bool:
        """Whether a clock has said so since this was made."""
        if not is_kind(value, float):
            return False
        return any(began_s - 60 <= value <= clock() for clock, began_s in self._clocks)


def script_frames() -> list[FrameType]:
    """Frames of the script's own code that are being carried out on this thread."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - `inspect` asks it so too
    found = []
    while frame is not None:
        if is_own_file(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def _variables(frame: FrameType, epoch: int | None, within: str = "") -> Iterator[_Found]:
    """What code carries in its variables, and in those of generators that these hold."""
    code = frame.f_code
    of = "" if code.co_name == "<module>" else f" of {code.co_qualname}()"
    targets, given = loop_targets(code), given_arguments(code)
    for name, value in _live_values(frame).items():
        if type(value) is int and value == epoch and name in targets:
            continue
        if is_kind(value, NUMBERS) and name in given:
            continue
        where = f"{within}/{name}"
        yield where, f"{name!r}{of}", value
        inner = value.gi_frame if isinstance(value, GeneratorType) else None
        if inner is not None and is_own_file(inner.f_code.co_filename):
            yield from _variables(inner, epoch, where)


def _live_values(frame: FrameType) -> dict[str, object]:
    """Variables that are read before they are written, with their values.

    Before Python 3.13 a function's frame keeps a dict of all that it was asked for, and with it a
    batch, outputs and a loss for the rest of the run: it is emptied, but where the function may
    have the dict itself.
    """
    return _values_of(frame, live_names(frame.f_code, frame.f_lasti))


def _values_of(frame: FrameType, names: Iterable[str]) -> dict[str, object]:
    code, values = frame.f_code, frame.f_locals
    found = {name: values[name] for name in names if name in values}
    is_a_copy = code.co_flags & CO_OPTIMIZED and isinstance(values, dict)
    if is_a_copy and _ASKS_FOR_LOCALS.isdisjoint(code.co_names):
        values.clear()
    return found


def _handed_on(
    frames: Sequence[FrameType],
    functions: Sequence[FunctionType],
    found: Mapping[CodeType, Attributes],
) -> set[int]:
    """Containers to which one piece of code adds items, and whose items another one reads."""
    seen = [(found[o.__code__], variables_around(o)) for o in functions if o.__code__ in found]
    for frame in frames:
        does = found[frame.f_code]
        names = {name for name, _ in does.items_read | does.items_added}
        seen.append((does, _seen_by(frame, names)))
    read, added = set[tuple[int, object]](), set[tuple[int, object]]()
    for does, values in seen:
        places = {name: id(value) for name, value in values.items() if _is_container(value)}
        read |= {(places[name], item) for name, item in does.items_read if name in places}
        added |= {(places[name], item) for name, item in does.items_added if name in places}
    return {place for place, _ in read & added}


def _seen_by(frame: FrameType, names: Iterable[str]) -> dict[str, object]:
    """Its own variables of these names, and its module's."""
    globals_ = {name: frame.f_globals[name] for name in names if name in frame.f_globals}
    return globals_ | _values_of(frame, names)


def _is_container(value: object) -> bool:
    return is_kind(value, (*CONTAINERS, np.ndarray))


def _is_own_function(thing: object) -> bool:
    return type(thing) is FunctionType and is_own_file(thing.__code__.co_filename)


def _reference(thing: object) -> ref[object] | None:
    try:
        return ref(thing)
    except TypeError:
        return None


def _of_function(
    function: FunctionType, written: frozenset[str], handed_on: Container[int]
) -> Iterator[tuple[str, object]]:
    """What a function keeps: variables around it that it writes or hands on, and generators."""
    for name, value in variables_around(function).items():
        if name in written or id(value) in handed_on or is_kind(value, GENERATORS):
            yield f"{name!r} of {function.__qualname__}()", value


def _of_object(
    thing: Any, read: frozenset[str], changed: frozenset[str]
) -> Iterator[tuple[str, object]]:
    """Attributes that the script's code reads and changes, and generators."""
    kinds: tuple[type, ...] = (*CONTAINERS, np.ndarray, torch.Tensor)
    if isinstance(thing, torch.nn.Module):  # whose tensors are looked at by themselves
        kinds = kinds[:-1]
    for name, value in _attributes(thing):
        is_held = name in read and is_kind(value, kinds)
        if name in changed or is_held or is_kind(value, GENERATORS):
            yield f"{name!r} of a {type(thing).__name__}", value


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    """As they are at this moment: another thread of the script's may make some meanwhile."""
    return [*getattr(thing, "__dict__", {}).items()]


def _is_called(function: FunctionType) -> bool:
    """Whether it is no module's code, which is carried out once."""
    return function.__code__.co_name != "<module>"


def _inside(things: Iterable[Any], depth: int = 0) -> Iterator[object]:
    """These, and what they hold; but not what functions hold, which no `state_dict` says."""
    for thing in things:
        if is_kind(thing, (*NUMBERS, *ProxyTypes)):
            continue
        yield thing
        if depth >= DEEPEST or is_kind(thing, (torch.Tensor, np.ndarray, FunctionType)):
            continue
        if is_kind(thing, dict):
            yield from _inside([*islice(thing.values(), _LARGE)], depth + 1)
        elif type(thing) in CONTAINERS:
            yield from _inside([*islice(thing, _MANY)], depth + 1)
        elif isinstance(held := getattr(thing, "__dict__", None), dict):
            parts = [*held.values()]
            if is_kind(thing, torch.optim.Optimizer):
                parts = [one for one in parts if not is_kind(one, _SETS)]
            elif not _says_all(thing):
                own = (held["_parameters"], held["_buffers"])
                loose = [one for one in parts if is_kind(one, torch.Tensor)]
                parts = [*thing.children(), *own, *loose]
            yield from _inside(parts, depth + 1)


def _says_all(thing: Any) -> bool:
    """Whether what it holds is taken to be in its state: all but for modules with torch's own."""
    kind = type(thing)
    if not isinstance(thing, torch.nn.Module) or is_metric(thing):
        return True
    names = ("state_dict", "get_extra_state")
    return any(getattr(kind, name) is not getattr(torch.nn.Module, name) for name in names)


def _held_twice(kept: Iterable[Any]) -> Iterator[object]:
    """What dicts that were handed over hold, and somebody else holds as well."""
    alone = {"it": [1]}
    (fewest,) = (sys.getrefcount(one) for one in alone.values())
    for thing in kept:
        if is_kind(thing, dict):
            for value in thing.values():
                is_changed_in_place = is_kind(value, (list, dict, set, np.ndarray, torch.Tensor))
                if is_changed_in_place and sys.getrefcount(value) > fewest:
                    yield value
