"""The small part of a version: what an iteration changes beside the weights' own tensors."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from gemini_lab.engine.random_states import restore_random_states
from gemini_lab.engine.script_state import ScriptState
from gemini_lab.engine.zero import Partitions
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import decode, encode

_COUNTERS: Final = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_DRAWN: Final = "drawn"  # bytes of their own: captured at another moment than the rest


def capture(partitions: Partitions, script: ScriptState, drawn: bytes) -> dict[str, Any]:
    """The small state as it is now: plain values and small tensors, for the codec.

    Args:
        partitions: The engine's.
        script: What the script handed over.
        drawn: What `script.capture_drawn` gave when the iteration ended.
    """
    engine = partitions.engine
    scheduler = engine.lr_scheduler
    return {
        "counters": {name: getattr(engine, name) for name in _COUNTERS},
        "optimizer": _optimizer(partitions),
        "scheduler": None if scheduler is None else dict(scheduler.state_dict()),
        "buffers": dict(persistent_buffers(engine.module)),
        "made": script.made(),
        _DRAWN: drawn,
    }


def unfold(small: dict[str, Any]) -> dict[str, Any]:
    """A decoded small state with all its parts side by side, as versions of 0.1.0 have them."""
    return {"made": {}, "also": {}, **small, **decode(small.get(_DRAWN, encode({})))}


def restore(
    small: Mapping[str, Any], partitions: Partitions, script: ScriptState, *, with_data: bool = True
) -> None:
    """Put back what `capture` gave; the optimizer's tensors were put back before.

    Args:
        small: As `unfold` gave it.
        partitions: The engine's.
        script: What the script handed over.
        with_data: Whether the positions in the data are put back as well.
    """
    engine = partitions.engine
    _restore_optimizer(partitions, small["optimizer"])
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(small["scheduler"])
    with torch.no_grad():
        for name, buffer in persistent_buffers(engine.module):
            buffer.copy_(small["buffers"][name])
    if with_data:
        script.put_data(small["data"])
    script.put(small)
    for name in _COUNTERS:
        setattr(engine, name, small["counters"][name])
    restore_random_states(small["random"])


def persistent_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that belong to a model's state, such as the statistics of batch norms."""
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            if name not in child._non_persistent_buffers_set:  # noqa: SLF001 - torch asks it so too
                yield f"{prefix}.{name}" if prefix else name, buffer


def _optimizer(partitions: Partitions) -> dict[str, Any]:
    zero, base = partitions.zero, partitions.base
    autocast_scaler = getattr(zero, "torch_autocast_gradscaler", None)
    return {
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in base.param_groups
        ],
        "scalars": [_scalars(partitions, index) for index in range(len(partitions.masters()))],
        "overflow": bool(getattr(zero, "overflow", False)),
        "loss_scaler": _numbers(getattr(zero, "loss_scaler", None)),
        "external_loss_scale": getattr(zero, "external_loss_scale", None),
        "autocast_scaler": None if autocast_scaler is None else autocast_scaler.state_dict(),
    }


def _scalars(partitions: Partitions, index: int) -> dict[str, Any]:
    """What the optimizer keeps for a partition beside its large tensors, such as a step count."""
    master, moments = partitions.masters()[index], partitions.moments(index)
    state = partitions.base.state.get(master, {})
    scalars = {key: value for key, value in state.items() if key not in moments}
    for key, value in scalars.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            raise UnsupportedError(
                f"{type(partitions.base).__name__} keeps a tensor {key!r} of {value.numel()} "
                f"elements that it is not known for (known: {[*moments]}); use DeepSpeed's or "
                "torch's own Adam, AdamW or SGD"
            )
    return scalars


def _restore_optimizer(partitions: Partitions, saved: Mapping[str, Any]) -> None:
    zero, base = partitions.zero, partitions.base
    for group, values in zip(base.param_groups, saved["groups"], strict=True):
        for key, value in values.items():
            group[key] = _beside(group.get(key), value)
    for index, scalars in enumerate(saved["scalars"]):
        _restore_scalars(partitions, index, scalars)
    if hasattr(zero, "overflow"):
        zero.overflow = saved["overflow"]
    if saved["loss_scaler"] is not None:
        vars(zero.loss_scaler).update(saved["loss_scaler"])
    if saved["external_loss_scale"] is not None:
        zero.override_loss_scale(saved["external_loss_scale"])
    if saved["autocast_scaler"] is not None:
        zero.torch_autocast_gradscaler.load_state_dict(saved["autocast_scaler"])


def _restore_scalars(partitions: Partitions, index: int, scalars: Mapping[str, Any]) -> None:
    """What `_scalars` gave, and nothing else beside the large tensors."""
    states, master = partitions.base.state, partitions.masters()[index]
    group, moments = partitions.group_of(index), partitions.moments(index)
    on_device = group.get("capturable") or group.get("fused")
    state = {key: value for key, value in states.pop(master, {}).items() if key in moments}
    for key, value in scalars.items():
        is_moved = on_device and isinstance(value, torch.Tensor)
        state[key] = value.to(master.device) if is_moved else value
    if state:  # an optimizer begins anew where it finds none
        states[master] = state


def _beside(current: Any, value: Any) -> Any:
    """`value`, on the device of the tensor that it replaces."""
    both = isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)
    return value.to(current.device) if both else value


def _numbers(thing: Any) -> dict[str, Any] | None:
    """The numbers among an object's attributes: all that a loss scaler changes are such."""
    if thing is None:
        return None
    kept = (bool, int, float, type(None))
    return {key: value for key, value in vars(thing).items() if isinstance(value, kept)}
