"""What a Trainer's subclass counts in attributes of its own, as TRL's sum up what they log next."""

import dis
import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, Final

from transformers import Trainer

from gemini_lab.shard.codec import encode
from gemini_lab.units import KIB, format_bytes

ROOM_BYTES: Final = 256 * KIB
"""Of all of them together, beside the history and what else is small."""
_VALUES: Final = (type(None), bool, int, float, str)
_LISTS: Final = (list, deque)  # which are put back as they are; tuples are values
_DICTS: Final = (dict, defaultdict)


class OwnCounts:
    """Numbers, texts, and lists and dicts of these, that changed since training began; for `also`.

    What transformers' own class assigns is its adapter's to know. What did not change is what the
    script makes it again, which may be of this very machine, so it is left alone.

    Args:
        trainer: As the script made it.
        remark: Told once what is too large to be kept.
    """

    def __init__(self, trainer: Any, remark: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._remark = remark
        self._too_large: set[str] = set()
        self._librarys = frozenset(assigned_by(Trainer))
        self._first = dict(self._plain_ones())

    def state_dict(self) -> dict[str, Any]:
        """Those that changed, by name; all of them fit in the room, the smallest ones first."""
        changed = {
            name: value
            for name, value in self._plain_ones()
            if name not in self._first or value != self._first[name]
        }
        room_bytes, kept = ROOM_BYTES, {}
        for name, taken in sorted(
            ((name, len(encode(value))) for name, value in changed.items()), key=lambda one: one[1]
        ):
            room_bytes -= taken
            if room_bytes >= 0:
                kept[name] = changed[name]
            elif name not in self._too_large:
                self._too_large.add(name)
                self._remark(
                    f"the Trainer's attribute {name} has grown beyond {format_bytes(ROOM_BYTES)}, "
                    "and will not come back after a failure; what is logged of it may differ then"
                )
        return kept

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave, into the lists and dicts that are there."""
        for name, value in kept.items():
            setattr(self._trainer, name, _put(getattr(self._trainer, name, None), value))

    def _plain_ones(self) -> Iterator[tuple[str, Any]]:
        """Attributes that are not the library's, as copies."""
        for name, value in vars(self._trainer).items():
            if name not in self._librarys and _is_plain(value):
                yield name, _copied(value)


def _is_plain(value: object) -> bool:
    """Whether it is of numbers and texts alone; a subclass of a type may have more than these."""
    kind = type(value)
    if kind in _DICTS:
        assert isinstance(value, dict)
        return all(type(key) in _VALUES for key in value) and all(map(_is_plain, value.values()))
    if kind in (*_LISTS, tuple):
        assert isinstance(value, (list, deque, tuple))
        return all(map(_is_plain, value))
    return kind in _VALUES


def _copied(value: Any) -> Any:
    """The same in lists and dicts of its own, which is what a version can hold."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, _LISTS):
        return [_copied(one) for one in value]
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value


def _put(there: Any, value: Any) -> Any:
    """`value`, in the dicts and lists that are `there`: they have makers and lengths of theirs."""
    if isinstance(there, _DICTS) and isinstance(value, dict):
        inner = {key: _put(there.get(key), one) for key, one in value.items()}
        there.clear()
        there.update(inner)
        return there
    if isinstance(there, _LISTS) and isinstance(value, list):
        there.clear()
        there.extend(value)
        return there
    return value


def assigned_by(kind: type) -> Iterator[str]:
    """Names of the attributes that a class's own code assigns, of whatever object."""
    for owner in kind.__mro__:
        for member in vars(owner).values():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if code is not None:
                yield from _assigned_in(code)


def _assigned_in(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            yield str(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _assigned_in(inner)
