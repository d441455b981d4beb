"""An optimizer's step as plain data, and the same step made again out of it elsewhere.

The state after a step is a function of the state before it, the gradient, and some numbers: the
rate of the schedule, decay, the count of steps. So who has the state before needs the gradient
alone, clipped and reduced as the optimizer got it, which is a third of what Adam keeps. Nothing
here computes an update itself: the very class of the optimizer does, and with it the same kernels,
on tensors of the same length, with as many threads, because where vectors end and single elements
begin is a matter of these and decides about last bits. On equal CPUs the bits are equal; on others
they may not be, and whoever makes a version so has to compare it with its owner's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import torch

from gemini_lab.engine.frameworks.blocks import Run
from gemini_lab.errors import UnsupportedError
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.shard.codec import decode_framed, encode_framed

TORCH_KINDS: Final[Mapping[str, type[torch.optim.Optimizer]]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
}
LIBRARY_KINDS: Final = ("DeepSpeedCPUAdam", "FusedAdam")
"""DeepSpeed's, whose library for CPUs remembers the steps that it went through."""
_MODES: Final = ("adam_w_mode", "fp32_optimizer_states")
"""What such an optimizer is made with, by the names that it keeps it under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step did to one tensor of weights, but for the gradient's own elements.

    Attributes:
        tensors: The optimizer's large tensors by its names for them, the weights among them.
        present: Which of them there were before the step: an optimizer makes its own in its first.
        gradient: As the optimizer got it, or in the narrower type in which it was reduced.
        scale: By what the optimizer got a narrower one multiplied.
        scalars: What it kept beside them before the step, such as the count of steps.
        options: Of its parameter group, in this step.
    """

    tensors: Mapping[str, Run]
    present: tuple[str, ...]
    gradient: Run
    scalars: Mapping[str, Any]
    options: Mapping[str, Any]
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of an optimizer, as plain data.

    Attributes:
        kind: The optimizer's class.
        modes: What it was made with, where that is not an option.
        threads: How many compute it.
        updates: In the order in which they were made.
        powers_since: Of a library's: the first step of those taken without a gap before this one.
        small: The small state of the version that it led to.
        small_room_bytes: Room for that in the shard's payload, which begins with it.
    """

    kind: str
    modes: Mapping[str, Any]
    threads: int
    updates: Sequence[Update]
    powers_since: int
    small: bytes
    small_room_bytes: int

    def encode(self) -> bytes:
        """As bytes, which say their own length."""
        return encode_framed(asdict(self))

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        """What `encode` gave, from where `data` begins.

        Raises:
            IntegrityError: It cannot be read.
        """
        values = decode_framed(data.data)
        return cls(**values | {"updates": [_update(one) for one in values["updates"]]})


def _update(values: Mapping[str, Any]) -> Update:
    tensors = {name: Run(**run) for name, run in values["tensors"].items()}
    return Update(**{**values, "tensors": tensors, "gradient": Run(**values["gradient"])})


def modes_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the optimizer was made with, where that is no option of its groups."""
    return {name: getattr(optimizer, name) for name in _MODES if hasattr(optimizer, name)}


def require_repeatable(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose steps nobody else makes again to the bit.

    Raises:
        UnsupportedError: It is one; says what to do instead.
    """
    kind = type(optimizer)
    is_torch = TORCH_KINDS.get(kind.__name__) is kind
    is_library = kind.__name__ in LIBRARY_KINDS and kind.__module__.startswith("deepspeed.")
    if not (is_torch or is_library):
        raise UnsupportedError(
            f'"replicate": "gradients" has peers make the steps of {kind.__module__}.'
            f"{kind.__qualname__} again, and only torch's own {', '.join(TORCH_KINDS)} and "
            f"DeepSpeed's {' and '.join(LIBRARY_KINDS)} are known to come out the same; use one of "
            'these, or leave it out: "replicate": "copies" is for any optimizer'
        )
    on = {weight.device.type for group in optimizer.param_groups for weight in group["params"]}
    if on - {"cpu"}:
        raise UnsupportedError(
            f'"replicate": "gradients" has CPUs make an optimizer\'s steps again, and this one '
            f"computes on {', '.join(sorted(on))}, whose last bits are others; leave it out: "
            '"replicate": "copies" is for any device'
        )
