"""A user's own placement planner: its arguments, and the answers that it may give."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Final

from gemini_lab.errors import ConfigError, kind_of
from gemini_lab.placement.planner import Placement

Planner = Callable[..., object]
"""Takes `nodes`, `replicas` or both; gives what `read_placement` takes."""
Holders = tuple[tuple[int, ...], ...]
"""For each shard the positions that keep it, owner first."""
_FORM: Final = (
    "the answer has to be a Placement, or for each shard the nodes that keep it, as in "
    "((0, 1), (1, 0))"
)


def by_name(function: Callable[..., object]) -> Callable[[Mapping[str, object]], object]:
    """Wrap a function so that it is called with only the arguments that it takes."""
    parameters = _parameters(function)
    if parameters is None:
        return lambda arguments: function(**arguments)
    own, needed = takes(function), [each.name for each in parameters if _is_needed(each)]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)

    def call(arguments: Mapping[str, object]) -> object:
        if unknown := [name for name in needed if name not in arguments]:
            raise TypeError(
                f"it wants `{unknown[0]}`, and is called with {', '.join(arguments)}, by name"
            )
        return function(**{n: given for n, given in arguments.items() if takes_all or n in own})

    return call


def takes(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of a function's keyword arguments, as far as its signature says."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(each.name for each in _parameters(function) or () if each.kind in named)


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins do not say
        return None


def _is_needed(parameter: inspect.Parameter) -> bool:
    is_many = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    return parameter.default is parameter.empty and not is_many


def read_placement(answer: object) -> Placement | Holders:
    """Read a planner's answer: a placement, or the holders of each shard.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(answer, Placement):
        return answer
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise ConfigError(f"{_FORM}, and it is {kind_of(answer)}")
    return tuple(map(_positions, answer))


def _positions(kept: object) -> tuple[int, ...]:
    """Return the holders of one shard as plain integers."""
    if not isinstance(kept, Iterable):
        raise ConfigError(f"{_FORM}, and it has {kind_of(kept)} in it")
    positions = tuple(kept)
    for each in positions:
        if not isinstance(each, Integral):
            raise ConfigError(f"{_FORM}, and it has {kind_of(each)} in it")
    return tuple(map(int, positions))


def placed_by(planner: Planner, *, nodes: int, replicas: int) -> Placement:
    """Call a planner for this many nodes and replicas.

    Raises:
        ConfigError: That is no placement of as many nodes.
        Exception: Whatever the planner raises.
    """
    answer = by_name(planner)({"nodes": nodes, "replicas": replicas})
    found = read_placement(answer)
    if isinstance(found, Placement):
        return found
    return Placement(nodes=nodes, replicas=replicas, strategy="own", groups=(), holders=found)
