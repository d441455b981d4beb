"""Answers as plain data, and back: nothing in a text can run when it is read.

Numbers, texts, lists and dictionaries go as they are, arrays and generators as lists, and values of
this package by the fields that make them. All else becomes something of which only the type's name
is known.
"""

import dataclasses
import importlib
import itertools
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Final

import msgspec

PACKAGE: Final = "gemini_lab"
ANSWERS: Final = "gemini_lab_course.own_root.deciding"
"""The only module of the course whose values are answers: what a root agent says."""
DEEPEST: Final = 40
"""Of values within values."""
LONGEST: Final = 1 << 20
"""Of what can be gone through, such as a generator."""
LONGEST_NAME: Final = 40


class OtherError(ValueError):
    """A text that no answer's is."""


def to_plain(value: object, *, depth: int = 0) -> object:
    """A value in JSON's own forms."""
    if depth > DEEPEST:
        return {"other": "value that has itself in it"}
    match value:
        case None | bool() | str():
            return value if value is None else _exactly(value)
        case Integral():
            return int(value)
        case Real():
            return _number(float(value))
        case dict():
            pairs = [
                (to_plain(key, depth=depth + 1), to_plain(each, depth=depth + 1))
                for key, each in value.items()
            ]
            return {"dict": pairs}
        case _ if _is_ours(type(value)):
            given = {
                name: to_plain(getattr(value, name), depth=depth + 1) for name in _fields(value)
            }
            return {"made": f"{type(value).__module__}:{type(value).__qualname__}", "of": given}
        case list() | tuple() | set() | frozenset():
            kind = next(k for k in (list, tuple, set, frozenset) if isinstance(value, k))
            return {kind.__name__: [to_plain(each, depth=depth + 1) for each in value]}
        case Iterable() if not isinstance(value, Mapping):  # an array, a range, a generator
            listed = list(itertools.islice(value, LONGEST))
            return {"list": [to_plain(each, depth=depth + 1) for each in listed]}
    return {"other": type(value).__name__[:LONGEST_NAME]}


def _exactly(value: bool | str) -> bool | str:  # noqa: FBT001 - a value, and no switch
    """Without what a subclass may add."""
    return bool(value) if isinstance(value, bool) else str.__str__(value)


def _number(value: float) -> object:
    return value if math.isfinite(value) else {"float": str(value)}


def from_plain(plain: object) -> object:
    """The value that `to_plain` told.

    Raises:
        OtherError: It is no such text.
    """
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((kind, given),) = plain.items()
        return _of_kind(str(kind), given)
    if plain.keys() != {"made", "of"}:
        raise OtherError("a value of no known kind")
    kind = _class(str(plain["made"]))
    fields = {str(name): from_plain(each) for name, each in plain["of"].items()}
    try:
        return kind(**fields)
    except Exception as error:  # noqa: BLE001 - whatever its own checks raise
        raise OtherError(f"it is no {kind.__name__}: {error}") from None


def _of_kind(kind: str, given: object) -> object:
    if kind == "other":
        name = "".join(each for each in str(given) if each.isprintable())[:LONGEST_NAME]
        return type(name or "thing", (), {})()
    if kind == "float":
        return float(str(given))
    if not isinstance(given, list):
        raise OtherError("a value of no known kind")
    if kind == "dict":
        return {from_plain(key): from_plain(each) for key, each in given}
    makers: Mapping[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in makers:
        raise OtherError("a value of no known kind")
    made: object = makers[kind](from_plain(each) for each in given)
    return made


def _class(name: str) -> type:
    """A class of this package that is made of fields."""
    module, _, qualname = name.partition(":")
    if not _has_answers(module) or not qualname.isidentifier():
        raise OtherError(f"{name} is no value of this package")
    try:
        kind = getattr(importlib.import_module(module), qualname)
    except (ImportError, AttributeError):
        raise OtherError(f"{name} is no value of this package") from None
    if not isinstance(kind, type) or not _is_ours(kind):
        raise OtherError(f"{name} is no value of this package")
    return kind


def _is_ours(kind: type) -> bool:
    has_fields = (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    return has_fields and _has_answers(kind.__module__)


def _has_answers(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE or module == ANSWERS


def _fields(value: object) -> list[str]:
    """What it is made of."""
    if dataclasses.is_dataclass(value):
        return [each.name for each in dataclasses.fields(value) if each.init]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return list(getattr(value, "_fields", ()))
