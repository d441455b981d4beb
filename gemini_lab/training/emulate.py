"""Conditions that a training script may emulate, with or without a lab."""

from collections.abc import Iterable

from torch import nn

from gemini_lab.engine import session
from gemini_lab.training.accelerator import SlowLayers
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.link import GLOO, LinkPacer, own_link


def emulate(
    layers: Iterable[nn.Module], *, layer_s: float = 0.0, link_bytes_per_s: float | None = None
) -> None:
    """Give layers an accelerator's time, and this rank a link; call it after DeepSpeed started.

    In a lab the link is the lab's to give (the setting `link_bytes_per_s`), as checkpoints share
    it; there it is left alone here.

    Args:
        layers: Those that take longer.
        layer_s: What each adds to its forward pass; twice that to its backward pass.
        link_bytes_per_s: Rate of this rank's link, as if it were alone on a node.
    """
    if layer_s > 0:
        SlowLayers(layers, forward_s=layer_s)
    if link_bytes_per_s is not None and session.current is None:
        pacer = LinkPacer(own_link(link_bytes_per_s), shares=GLOO)
        CommHook(pace=pacer, recording=False).attach()
