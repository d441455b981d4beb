"""Values of which a test says what it is about, and no more: all other fields are neutral."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from gemini_lab.log.events import UNSAID

Value = TypeVar("Value")

NAMED = {"rank": 0, "epoch": 1, "recovery": 1, "world_size": 1}
"""Fields that begin at one, and those of a worker, which its session would fill in."""


def made(kind: type[Value], **said: Any) -> Value:
    """Make an event, a message or another value; fill in what is not said and has no default."""
    return kind(**{**_neutral(kind), **said})


@cache
def _neutral(kind: type) -> dict[str, Any]:
    """Return the neutral values of the fields that a value of this kind must be given."""
    hints = get_type_hints(kind)
    known = msgspec.inspect.type_info(kind).fields
    needed = [one.name for one in known if one.required or one.default == UNSAID]
    return {name: _of(name, hints[name]) for name in needed}


def _of(name: str, hint: Any) -> Any:
    if name in NAMED or name.endswith("_bytes"):
        return NAMED.get(name, 1)
    if get_origin(hint) in {Union, UnionType}:
        return None if NoneType in get_args(hint) else _of(name, get_args(hint)[0])
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    plain = get_origin(hint) or hint
    if isinstance(plain, type):
        for base, value in ((Mapping, {}), (str, ""), (tuple, ()), (Sequence, [])):
            if issubclass(plain, base):
                return value
        with suppress(TypeError):
            return plain()
    return None
