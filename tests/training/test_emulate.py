"""Emulated accelerator time changes no number."""

import pytest
import torch
from torch import nn

from gemini_lab.errors import ConfigError
from gemini_lab.training.emulate import SlowLayers


def losses(*, slowed: bool) -> tuple[list[float], list[float]]:
    """Losses of a small training, and the times that were slept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    slept: list[float] = []
    slow = None
    if slowed:
        slow = SlowLayers([model[0], model[3]], forward_s=1.0, backward_s=2.0, sleep=slept.append)
    seen = []
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    if slow is not None:
        slow.remove()
    return seen, slept


def test_slow_layers_leave_the_losses_bit_identical_and_take_their_time() -> None:
    plain, _ = losses(slowed=False)
    slowed, slept = losses(slowed=True)
    assert slowed == plain
    assert slept == [1.0, 1.0, 2.0, 2.0] * 3


def test_removed_hooks_are_gone() -> None:
    layer = nn.Linear(2, 2)
    with SlowLayers([layer], forward_s=0.001) as slow:
        assert len(layer._forward_hooks) == 1
        assert slow.backward_s == 0.002
        assert "1 layers, 1 ms forward and 2 ms backward" in slow.condition
    assert len(layer._forward_hooks) == 0


def test_no_layers_or_negative_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one layer"):
        SlowLayers([], forward_s=0.1)
    with pytest.raises(ConfigError, match="times of 0 or more"):
        SlowLayers([nn.Linear(1, 1)], forward_s=-0.1)
