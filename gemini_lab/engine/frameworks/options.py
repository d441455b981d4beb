"""Options and counts of optimizers and loss scalers: taken, and put back."""

import copy
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import encode

_PLAIN: Final = (bool, int, float, str, type(None), np.generic)
_MAPPINGS: Final = (dict, OrderedDict)
_MANY: Final = 1_000  # values of one attribute: more of them are a history
_NO_VALUES: Final = frozenset({"state", "param_groups", "defaults", "opt_id"})
"""Attributes that are kept otherwise, or are the handle of a library's object."""
_HOOKS: Final = "_optimizer_"
"""How the names of torch's own attributes for hooks begin."""


def beside(current: Any, value: Any) -> Any:
    """`value`, on the device of the tensor that it replaces; or that, if it is the same."""
    if not (isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)):
        return value
    value = value.to(current.device)
    is_same = current.dtype == value.dtype and encode(current) == encode(value)
    return current if is_same else value


def in_place(current: Any, value: Any) -> Any:
    """`value`, in the tensor that it replaces, which others may hold; on its device otherwise."""
    if not (isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)):
        return value
    if (current.shape, current.dtype) != (value.shape, value.dtype):
        return beside(current, value)
    with torch.no_grad():
        return current.copy_(value)


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of an optimizer's parameter groups."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def put_group_options(
    optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]]
) -> None:
    """Put back what `group_options` gave; a script may hold the tensor of a learning rate."""
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key, value in values.items():
            group[key] = in_place(group.get(key), value)


def require_both(what: str, *, stored: object, current: object) -> None:
    """Refuse something that only one of the version and the script has.

    Raises:
        ConfigError: Only one has it.
    """
    if (stored is None) != (current is None):
        where = ("the script", "the version")[:: 1 if stored is None else -1]
        raise ConfigError(f"{where[0]} has {what}, {where[1]} has none; start the script as it was")


def own_values(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Attributes of an optimizer: numbers, texts, and copies of containers of these."""
    return {
        name: copied(value)
        for name, value in vars(optimizer).items()
        if name not in _NO_VALUES and not name.startswith(_HOOKS) and _is_plain(value)
    }


def beside_weights(optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any]]:
    """Return an optimizer's state under keys that are no weights, such as a common count."""
    state: Mapping[Any, Any] = optimizer.state
    return [(key, one) for key, one in state.items() if not isinstance(key, torch.Tensor)]


def put_beside_weights(optimizer: torch.optim.Optimizer, values: Sequence[tuple[Any, Any]]) -> None:
    """Put back what `beside_weights` gave, and nothing else there."""
    for key, _ in beside_weights(optimizer):
        del optimizer.state[key]
    optimizer.state.update(values)


def copied(value: Any) -> Any:
    """A container that may be changed in the place of this one; what it holds is the same."""
    if type(value) in _MAPPINGS:
        return type(value)((key, copied(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(copied(one) for one in value)
    is_changed_in_place = isinstance(value, (set, deque, np.ndarray))
    return copy.copy(value) if is_changed_in_place else value


def _is_plain(value: object) -> bool:
    """Whether it is numbers and texts, and not very many."""
    found = [*islice(_leaves(value), _MANY + 1)]
    return len(found) <= _MANY and all(isinstance(one, _PLAIN) for one in found)


def _leaves(value: Any) -> Iterator[object]:
    if type(value) in _MAPPINGS:
        value = [one for pair in value.items() for one in pair]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        value = [*value.flat[: _MANY + 1]]
    if type(value) not in (list, tuple, deque):
        yield value
        return
    for one in value:
        yield from _leaves(one)


def numbers(thing: Any) -> dict[str, Any] | None:
    """The numbers among an object's attributes: all that a loss scaler changes are such."""
    if thing is None:
        return None
    kept = (bool, int, float, type(None))
    return {key: value for key, value in vars(thing).items() if isinstance(value, kept)}
