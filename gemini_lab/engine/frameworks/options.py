"""What optimizers and loss scalers have beside tensors: options and counts, taken and put back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemini_lab.errors import ConfigError


def beside(current: Any, value: Any) -> Any:
    """`value`, on the device of the tensor that it replaces."""
    both = isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)
    return value.to(current.device) if both else value


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What an optimizer's parameter groups have beside their parameters."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def put_group_options(
    optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]]
) -> None:
    """Put back what `group_options` gave."""
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key, value in values.items():
            group[key] = beside(group.get(key), value)


def require_both(what: str, *, stored: object, current: object) -> None:
    """Refuse something that only one of the version and the script has.

    Raises:
        ConfigError: Only one has it.
    """
    if (stored is None) != (current is None):
        where = ("the script", "the version")[:: 1 if stored is None else -1]
        raise ConfigError(f"{where[0]} has {what}, {where[1]} has none; start the script as it was")


def own_numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's attributes that are numbers, but for the handle of a library's object."""
    return {name: value for name, value in (numbers(optimizer) or {}).items() if name != "opt_id"}


def numbers(thing: Any) -> dict[str, Any] | None:
    """The numbers among an object's attributes: all that a loss scaler changes are such."""
    if thing is None:
        return None
    kept = (bool, int, float, type(None))
    return {key: value for key, value in vars(thing).items() if isinstance(value, kept)}
