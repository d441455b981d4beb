"""What a base optimizer keeps for a flat partition of ZeRO's, whichever optimizer it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from gemini_lab.engine.frameworks.optimizer_state import require_none_beside, require_plain
from gemini_lab.engine.frameworks.stand_in import state_for
from gemini_lab.errors import UnsupportedError

STAND_IN_NUMEL: Final = 61
"""Elements of the stand-in: no partition's worth of memory is taken to look at a form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateForm:
    """The form of one partition's state.

    Attributes:
        large: Tensors of the partition's own shape: their types by name, in order.
        devices: Where tensors of one element are kept, by name.
    """

    large: dict[str, torch.dtype]
    devices: dict[str, torch.device]


def state_form(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], master: torch.Tensor
) -> StateForm:
    """The form of the state that `optimizer` keeps, or will keep, for a partition of that group.

    Raises:
        UnsupportedError: It keeps what is neither of the partition's shape nor small.
    """
    require_none_beside(optimizer, trained=(master,))
    state, shape = optimizer.state.get(master), master.shape
    if not state:
        twin = master.detach()[:STAND_IN_NUMEL].requires_grad_(master.requires_grad)
        state, shape = state_for(optimizer, group, twin), twin.shape
    large, devices = {}, {}
    for name in sorted(state, key=str):
        value = state[name]
        if not isinstance(value, torch.Tensor):
            require_plain(optimizer, name, value)
        elif value.shape == shape:
            large[name] = value.dtype
        elif value.numel() == 1:
            devices[name] = value.device
        else:
            raise _of_another_shape(optimizer, name, value)
    return StateForm(large=large, devices=devices)


def scalars_of(
    optimizer: torch.optim.Optimizer, master: torch.Tensor, form: StateForm
) -> dict[str, Any]:
    """What the optimizer keeps for a partition beside its large tensors, such as a step count.

    Raises:
        UnsupportedError: There is a large tensor that was not foreseen.
    """
    state: Mapping[str, Any] = optimizer.state.get(master, {})
    scalars = {name: value for name, value in state.items() if name not in form.large}
    for name, value in scalars.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            raise UnsupportedError(
                f"the optimizer {type(optimizer).__name__} made a tensor {name!r} of "
                f"{value.numel()} elements that it had not made at its first step; use one that "
                "makes all of its state then"
            )
    return scalars


def put_scalars(
    optimizer: torch.optim.Optimizer,
    master: torch.Tensor,
    form: StateForm,
    scalars: Mapping[str, Any],
) -> None:
    """What `scalars_of` gave, and nothing else beside the large tensors."""
    before = optimizer.state.pop(master, {})
    state = {name: value for name, value in before.items() if name in form.large}
    for name, value in scalars.items():
        is_tensor = isinstance(value, torch.Tensor)
        state[name] = value.to(form.devices.get(name, value.device)) if is_tensor else value
    if state:  # an optimizer begins anew where it finds none
        optimizer.state[master] = state


def _of_another_shape(
    optimizer: torch.optim.Optimizer, name: str, value: torch.Tensor
) -> UnsupportedError:
    return UnsupportedError(
        f"the optimizer {type(optimizer).__name__} keeps {name!r} in the shape "
        f"{[*value.shape]} for a flat partition of ZeRO's, which is neither the partition's nor "
        "one number; use one that keeps state element by element, or plain PyTorch with "
        "fully_shard"
    )
