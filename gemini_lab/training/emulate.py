"""Conditions that a training script may emulate, with or without a lab.

On a CPU, computing competes with copying for the same cores. A layer that sleeps leaves them free,
as an accelerator does, so that iterations and idle spans get an accelerator's proportions. No
number of the training changes.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import nn

from gemini_lab.engine import session
from gemini_lab.errors import ConfigError
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.link import LinkPacer, own_link


class SlowLayers:
    """Hooks that make the given layers take longer, until `remove` or the end of a `with` block.

    The time is added in the forward pass, after the layer has computed, and in the backward pass,
    before it computes its gradients. A layer whose forward pass is repeated, as activation
    recomputation does, takes its time each time.

    Raises:
        ConfigError: There are no layers, or a time is negative.
    """

    def __init__(
        self,
        # The modules, such as a model's blocks; each must return a tensor or a tuple.
        layers: Iterable[nn.Module],
        *,
        forward_s: float,  # what each adds to the forward pass
        # What each adds to the backward pass; without it, twice `forward_s`, the usual proportion
        # of work.
        backward_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,  # waits that many seconds
    ) -> None:
        chosen = list(layers)
        self._sleep = sleep
        self.forward_s = forward_s
        self.backward_s = 2 * forward_s if backward_s is None else backward_s
        if not chosen or min(self.forward_s, self.backward_s) < 0:
            raise ConfigError(
                f"cannot slow {len(chosen)} layers by {self.forward_s} s and {self.backward_s} s; "
                "name at least one layer and times of 0 or more"
            )
        self._handles = [layer.register_forward_hook(self._after_forward) for layer in chosen]

    @property
    def condition(self) -> str:
        """Return the condition to state in every result that was made with it."""
        return (
            f"emulated accelerator time: {len(self._handles)} layers, {self.forward_s * 1e3:g} ms "
            f"forward and {self.backward_s * 1e3:g} ms backward each"
        )

    def _after_forward(self, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        self._sleep(self.forward_s)
        outputs = output if isinstance(output, (tuple, list)) else [output]
        for one in outputs:
            if isinstance(one, torch.Tensor) and one.requires_grad:
                one.register_hook(self._before_backward)  # type: ignore[no-untyped-call]
                return

    def _before_backward(self, _gradient: torch.Tensor) -> None:
        self._sleep(self.backward_s)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def emulate(
    layers: Iterable[nn.Module],
    *,
    layer_s: float = 0.0,  # what each adds to its forward pass; twice that to its backward pass
    link_bytes_per_s: float | None = None,  # of this rank, as if it were alone on a node
) -> None:
    """Give layers an accelerator's time, and this rank a link; call it after DeepSpeed started.

    In a lab the link is the lab's to give (the setting `link_bytes_per_s`), as checkpoints share
    it; there it is left alone here.
    """
    if layer_s > 0:
        SlowLayers(layers, forward_s=layer_s)
    if link_bytes_per_s is not None and session.current is None:
        pacer = LinkPacer(own_link(link_bytes_per_s))
        CommHook(pace=pacer, recording=False).attach()
