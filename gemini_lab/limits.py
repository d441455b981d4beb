"""What a setting may be: a limit that stands beside its default, and its type."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from gemini_lab.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Refuse = Callable[[str, Any], str | None]
"""From a setting's name and value, what is to be said against it; `None`: it is as it has to be."""


def above_zero(default: Value) -> Value:
    """A number above zero."""
    return _limited(
        default,
        lambda name, value: None if value > 0 else f"{name} must be above zero (got {value})",
    )


def above_zero_or_none(default: Value) -> Value:
    """A number above zero, or none at all."""
    return _limited(
        default,
        lambda name, value: (
            None
            if value is None or value > 0
            else f"{name} must be above zero, or null for none (got {value})"
        ),
    )


def zero_or_more(default: Value) -> Value:
    """A number that is not below zero."""
    return _limited(
        default,
        lambda name, value: None if value >= 0 else f"{name} must be 0 or more (got {value})",
    )


def share(default: float) -> float:
    """A part of a whole, and something of it."""
    return _limited(
        default,
        lambda name, value: (
            None if 0 < value <= 1 else f"{name} must be above 0 and at most 1 (got {value})"
        ),
    )


def one_of(default: str, choices: tuple[str, ...]) -> str:
    """One of some words."""
    return _limited(
        default,
        lambda name, value: (
            None if value in choices else f"{name} must be one of {choices} (got {value!r})"
        ),
    )


def named(default: str, known: tuple[str, ...]) -> str:
    """The name of one of some things of the setting's kind."""
    return _limited(
        default,
        lambda name, value: (
            None if value in known else f"there is no {name} {value!r}; choose from {known}"
        ),
    )


def _limited(default: Value, refuse: Refuse) -> Value:
    return field(default=default, metadata={"refuse": refuse})


def require_limits(settings: "DataclassInstance") -> None:
    """Refuse a value beyond its limit.

    Raises:
        ConfigError: There is one.
    """
    for each in fields(settings):
        refuse: Refuse | None = each.metadata.get("refuse")
        if refuse is not None and (said := refuse(each.name, getattr(settings, each.name))):
            raise ConfigError(said)


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
            f"the gemini setting {name}={value!r} has the wrong type; it has to be {words}"
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
