"""A machine that computes wrong, for real: bits that turn in a worker's own tensors.

A flaw is where a broken machine would be wrong: in a gradient as it is computed, in what a layer
gives on, or in what an optimizer's step leaves. It does the same to whatever is computed here, the
work of another rank included.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

import torch

from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.frameworks.stepping import uncompiled
from gemini_lab.recovery.messages import Flawed

_WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_largest(tensor: torch.Tensor) -> None:
    """Flip, in its own memory, the highest bit of the mantissa of a tensor's largest number.

    So the number becomes another one of the same size, and no NaN.
    """
    data = local_part(tensor).data  # apart from autograd's count of writes: nobody is told
    place = tuple(int(i) for i in torch.unravel_index(data.abs().argmax(), data.shape))
    mantissa_bits = round(-torch.log2(torch.tensor(torch.finfo(data.dtype).eps)).item())
    words = data.view(_WORDS[data.element_size()])
    words[place] = words[place] ^ (1 << (mantissa_bits - 1))


class Flaw:
    """One flaw of a worker's machine; called after the optimizer's steps, where it is there."""

    def __init__(self, framework: Framework, order: Flawed) -> None:
        self._order = order
        self._is_spent = False
        self._install(framework)

    def _install(self, framework: Framework) -> None:
        chosen = random.Random(self._order.seed)
        match self._order.where:
            case "gradient":
                weights = framework.contributing()
                # Without vectors, of which a part may be without effect.
                large = [one for one in weights if len(getattr(one, "ds_shape", one.shape)) > 1]
                weight: Any = chosen.choice(large or [*weights])
                weight.register_hook(self._in_gradient)
            case "activation":
                parts = framework.module.modules()
                layers = [one for one in parts if any(True for _ in one.parameters(recurse=False))]
                chosen.choice(layers).register_forward_hook(uncompiled(self._in_activation))
            case "optimizer":
                optimizer: Any = framework.optimizer
                handle = optimizer.register_step_post_hook(uncompiled(self.__call__))
                # torch runs hooks in order of registration; the flaw strikes before others look.
                optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # noqa: SLF001

    def _in_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._is_due():
            gradient = gradient.clone()
            flip_largest(gradient)
        return gradient

    def _in_activation(self, module: object, args: object, output: object) -> None:
        del module, args
        is_number = isinstance(output, torch.Tensor) and output.is_floating_point()
        if is_number and torch.is_grad_enabled() and self._is_due():
            assert isinstance(output, torch.Tensor)
            flip_largest(output)

    def __call__(self, optimizer: Any, *_: object) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        found = [one for one in weights if local_part(one).numel()]
        if found and self._is_due():
            flip_largest(found[0])

    def _is_due(self) -> bool:
        """Return whether a bit is to turn now; one that turns once does not turn again."""
        if self._is_spent:
            return False
        self._is_spent = not self._order.is_lasting
        return True


class Flaws:
    """The injected flaws of a worker's machine, as its agent reports them."""

    def __init__(self, framework: Framework, orders: Sequence[Flawed]) -> None:
        self._framework, self._orders = framework, orders
        self._installed: list[Flaw] = []

    def install(self) -> None:
        """Activate flaws injected since the last iteration."""
        for order in self._orders[len(self._installed) :]:
            if order.where == "gradient" and not self._framework.contributing():
                return  # under FSDP2 there is none before the model has computed
            self._installed.append(Flaw(self._framework, order))
