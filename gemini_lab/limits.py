"""Limits of what comes from outside: settings, types, and lengths of texts.

How large a number may be `units.most_of` says by its name, for settings and for all else.
"""

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeVar, get_args, get_type_hints

import msgspec

from gemini_lab.errors import LONGEST, ConfigError, kind_of, shortened, shown
from gemini_lab.units import LARGEST, LONGEST_S, check_number, is_number, most_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Refuse = Callable[[str, Any], str | None]
"""From a setting's name and value, what is to be said against it; `None`: it is as it has to be."""

MOST_CHARACTERS: Final = 1 << 16
"""Of a text from outside that is a setting, a name or a path."""
MOST_FILE_BYTES: Final = 16 << 20
"""Of a file that a person wrote by hand, or that a program wrote for one."""
END_BYTES: Final = 1 << 20
"""Of a log, what is looked at for its last lines."""
MOST_LINES: Final = 120
"""Of what a worker printed last, which are kept for the report of its end."""
LINE: Final = 1_000
"""Characters of one of them."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A whole number in a message: a decoder refuses what no process of a lab would say."""
Told = Annotated[str, msgspec.Meta(extra={"most": LONGEST})]
"""A text in a message or an event that another library, a script or a person wrote.

`cut_told` shortens it when the message is made, so that no sender has to think of it."""
Printed = Annotated[str, msgspec.Meta(extra={"most": MOST_LINES * LINE})]
"""The same of what a process printed last: its lines."""
PrintedLine = Annotated[str, msgspec.Meta(extra={"most": LINE})]
"""One of them; in a tuple all of them."""


def above_zero(default: Value) -> Value:
    """Declare a number above zero."""
    return _limited(
        default,
        lambda name, value: (
            None if value > 0 else f"{name} must be above zero (got {shown(value)})"
        ),
    )


def above_zero_or_none(default: Value) -> Value:
    """Declare a number above zero, or `None`."""
    return _limited(
        default,
        lambda name, value: (
            None
            if value is None or value > 0
            else f"{name} must be above zero, or null for none (got {shown(value)})"
        ),
    )


def zero_or_more(default: Value) -> Value:
    """Declare a number that is not below zero."""
    return _limited(
        default,
        lambda name, value: (
            None if value >= 0 else f"{name} must be 0 or more (got {shown(value)})"
        ),
    )


def zero_or_more_or_none(default: Value) -> Value:
    """Declare a number that is not below zero, or `None`."""
    return _limited(
        default,
        lambda name, value: (
            None
            if value is None or value >= 0
            else f"{name} must be 0 or more, or null for none (got {shown(value)})"
        ),
    )


def share(default: float) -> float:
    """Declare a share of a whole: above 0 and at most 1."""
    return _limited(
        default,
        lambda name, value: (
            None if 0 < value <= 1 else f"{name} must be above 0 and at most 1 (got {shown(value)})"
        ),
    )


def one_of(default: str, choices: tuple[str, ...]) -> str:
    """One of some words."""
    return _limited(
        default,
        lambda name, value: (
            None if value in choices else f"{name} must be one of {choices} (got {shown(value)})"
        ),
    )


def named(default: str, known: tuple[str, ...]) -> str:
    """Declare one of a setting's names."""
    return _limited(
        default,
        lambda name, value: (
            None if value in known else f"there is no {name} {shown(value)}; choose from {known}"
        ),
    )


def module_names(default: str | None) -> str | None:
    """Names of modules, with commas between them, or none at all."""
    return _limited(
        default,
        lambda name, value: (
            None
            if value is None
            or all(part.isidentifier() for one in split_names(value) for part in one.split("."))
            else f"{name} must be names of modules with commas between them (got {shown(value)})"
        ),
    )


def split_names(text: str) -> list[str]:
    """Return the names in a text that has commas between them."""
    return [name for part in text.split(",") if (name := part.strip())]


def _limited(default: Value, refuse: Refuse) -> Value:
    return field(default=default, metadata={"refuse": refuse})


def require_limits(settings: "DataclassInstance") -> None:
    """Refuse a value of another type than its setting's, or beyond its limit.

    Raises:
        ConfigError: There is one.
    """
    for name, hint, refuse in _limits_of(type(settings)):
        value = getattr(settings, name)
        require_type(name, value, hint)
        if said := _beyond(name, value):
            raise ConfigError(said)
        if refuse is not None and (said := refuse(name, value)):
            raise ConfigError(said)


@cache
def _limits_of(kind: "type[DataclassInstance]") -> tuple[tuple[str, Any, Refuse | None], ...]:
    """Return each setting's name and type, and what refuses its values."""
    hints = get_type_hints(kind)
    return tuple((one.name, hints[one.name], one.metadata.get("refuse")) for one in fields(kind))


def _beyond(name: str, value: object) -> str | None:
    """Return what is to be said against a value of any setting that is far too large."""
    if isinstance(value, str):
        return why_no_text(name, value) if value else f"{name} is empty; leave it out"
    if is_number(value) and not -LARGEST <= value <= most_of(name):
        return f"{name} must be at most {most_of(name):,.0f}, and finite (got {shown(value)})"
    return None


def why_no_text(name: str, value: object, *, most: int = MOST_CHARACTERS) -> str | None:
    """Return what is to be said against a text that a person gave; None where it will do."""
    if not isinstance(value, str):
        return f"{name} is {kind_of(value)}; give text"
    if len(value) > most:
        return f"{name} has {len(value):,} characters, and may have {most:,} (got {shown(value)})"
    if said := _why_no_utf8(name, value):
        return said
    if not value.isprintable():
        return (
            f"{name} has characters that no terminal shows, such as a line's end (got "
            f"{shown(value)}); leave them out"
        )
    return None


def _why_no_utf8(name: str, value: str) -> str | None:
    if value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value):
        return None
    reads = sys.getfilesystemencoding()
    way_out = "rename it" if reads == "utf-8" else f"set PYTHONUTF8=1 (this Python reads {reads})"
    return f"{name} {shown(value)} is no text in UTF-8; {way_out}"


def require_utf8(name: str, value: str) -> None:
    """Refuse a text that messages and logs cannot say, because its bytes are no UTF-8.

    Raises:
        ConfigError: It is such a text, as this Python reads it.
    """
    if said := _why_no_utf8(name, value):
        raise ConfigError(said)


def require_text(name: str, value: object, *, most: int = MOST_CHARACTERS) -> None:
    """Refuse what is no text in one line.

    Raises:
        ConfigError: It is none.
    """
    if said := why_no_text(name, value, most=most):
        raise ConfigError(said)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that a user named, or that others can write to.

    Raises:
        OSError: It cannot be read.
        ConfigError: It is no regular file, or so large that the user meant another one.
    """
    with open_file(path) as file:
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(
            f"{path} has more than {MOST_FILE_BYTES:,} bytes, which no such file has; name another"
        )
    return data


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it; a FIFO or a device might never end, or never begin.

    Raises:
        OSError: It cannot be read.
        ConfigError: It is something else.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - `Path.open` has no opener
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ConfigError(
        f"{path} is no regular file, and reading it might never end; save its content to a file, "
        "and name that"
    )


def _open_at_once(path: str, flags: int) -> int:
    # Without O_NONBLOCK a FIFO opens only when another process writes to it.
    return os.open(path, flags | os.O_NONBLOCK)


def read_file(path: Path) -> str:
    """Return what a file says, as `read_bytes` reads it.

    Raises:
        UnicodeDecodeError: It is no text.
    """
    return read_bytes(path).decode()


def read_end(path: Path, begin: int = 0) -> str:
    """Return the end of a log, which may have grown to any size.

    Args:
        path: The log.
        begin: What stands before this place is left out in any case.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - END_BYTES))
        return file.read(END_BYTES).decode(errors="replace")


def seconds(text: str) -> float:
    """Parse seconds; the `type` of a command line's option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is no time; give seconds, from 0 to {LONGEST_S:,.0f}"
        )
    return value


def whole(name: str, *, least: float = 0) -> Callable[[str], int]:
    """Return what reads a whole number of this name, as an option's `type`.

    Args:
        name: By which `units.most_of` knows how large it may be.
        least: The smallest that it may be.
    """

    def read(text: str) -> int:
        try:
            value = int(text)
            check_number(name, value, least=least, is_whole=True)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except ValueError:  # also of more digits than Python reads
            raise argparse.ArgumentTypeError(f"{shown(text)} is no whole number") from None
        return value

    return read


def cut_told(message: msgspec.Struct) -> None:
    """Shorten the texts from outside in a message or an event; it is their `__post_init__`."""
    for name, most in told_in(type(message)):
        value = getattr(message, name)
        if isinstance(value, tuple):
            cut: object = tuple(shortened(line, most) for line in value[-MOST_LINES:])
        else:
            cut = shortened(value, most)
        if cut is not value:
            msgspec.structs.force_setattr(message, name, cut)


@cache
def told_in(kind: type[msgspec.Struct]) -> tuple[tuple[str, int], ...]:
    """Return a kind's fields with texts from outside, by their annotations, and their limits."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: most for name, hint in hints.items() for most in _limits_in(hint)}
    return tuple(found.items())


def _limits_in(hint: object) -> Iterator[int]:
    for part in (hint, *get_args(hint)):
        for mark in getattr(part, "__metadata__", ()):
            if isinstance(mark, msgspec.Meta) and mark.extra and "most" in mark.extra:
                yield mark.extra["most"]


def require_type(name: str, value: object, hint: Any) -> None:
    """Refuse a value of another type than its setting's, before it is used for anything.

    Raises:
        ConfigError: It is of another one.
    """
    allowed = get_args(hint) or (hint,)
    fits = any(
        isinstance(value, _ACCEPTED[kind]) and (kind is bool or not isinstance(value, bool))
        for kind in allowed
    )
    if not fits:
        words = " or ".join(_WORDS[kind] for kind in allowed)
        raise ConfigError(
            f"the gemini setting {name}={shown(value)} has the wrong type; it has to be {words}"
        )


_ACCEPTED: Final[Mapping[type, type]] = {
    int: Integral,
    float: Real,
    str: str,
    bool: bool,
    NoneType: NoneType,
}
_WORDS: Final[Mapping[type, str]] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
}
