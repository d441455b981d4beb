"""A placement planner of somebody's own: how it is asked, and what its answers may be."""

import inspect
from collections.abc import Callable, Mapping

from gemini_lab.errors import ConfigError, kind_of
from gemini_lab.placement.planner import Placement

Planner = Callable[..., object]
"""Takes `nodes`, `replicas` or both; gives what `read_placement` takes."""
Holders = tuple[tuple[int, ...], ...]
"""For each shard the positions that keep it, owner first."""


def by_name(function: Callable[..., object]) -> Callable[[Mapping[str, object]], object]:
    """A function that is called with those of some arguments that it takes."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins do not say
        return lambda arguments: function(**arguments)
    own = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)

    def call(arguments: Mapping[str, object]) -> object:
        return function(**{n: given for n, given in arguments.items() if takes_all or n in own})

    return call


def read_placement(answer: object) -> Placement | Holders:
    """A planner's answer: a placement; or, for each shard, who keeps it.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(answer, Placement):
        return answer
    try:
        holders = tuple(tuple(kept) for kept in answer)  # type: ignore[attr-defined]
    except TypeError:
        holders = None
    whole = holders is not None and all(type(p) is int for kept in holders for p in kept)
    if holders is None or not whole:
        raise ConfigError(
            "the answer has to be a Placement, or for each shard the nodes that keep it, as in "
            f"((0, 1), (1, 0)), and it is {kind_of(answer)}"
        )
    return holders


def placed_by(planner: Planner, *, nodes: int, replicas: int) -> Placement:
    """What a planner makes of so many nodes and replicas.

    Raises:
        ConfigError: That is no placement of as many nodes.
        Exception: Whatever the planner raises.
    """
    answer = by_name(planner)({"nodes": nodes, "replicas": replicas})
    found = read_placement(answer)
    if isinstance(found, Placement):
        return found
    return Placement(nodes=nodes, replicas=replicas, strategy="own", groups=(), holders=found)
