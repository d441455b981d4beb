"""Lightning's Trainer: what is refused before `fit()`, and when the loss is computed."""

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

from gemini_lab.adapters.lightning import (
    _compute_before_the_step,
    protect_lightning,
    require_lightning,
)
from gemini_lab.errors import UnsupportedError

QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "ddp"}, None),
        ({"strategy": ModelParallelStrategy()}, None),
        ({"reload_dataloaders_every_n_epochs": 2}, "makes its loaders anew.*set it to 0"),
    ],
    ids=["DDP", "FSDP2", "reloading"],
)
def test_a_trainer_is_taken_or_refused_with_the_way_out(options, words):
    trainer = Trainer(**QUIET, **options)
    if words is None:
        require_lightning(trainer)
        return
    with pytest.raises(UnsupportedError, match=words):
        require_lightning(trainer)


def test_a_strategy_that_is_untried_is_refused_by_its_name():
    trainer = Trainer(**QUIET)
    trainer.strategy.__class__ = type("DeepSpeedStrategy", (type(trainer.strategy),), {})
    with pytest.raises(UnsupportedError, match=r"uses DeepSpeedStrategy.*ModelParallelStrategy"):
        require_lightning(trainer)


def test_outside_a_lab_a_trainer_is_left_alone_and_that_is_said():
    trainer = Trainer(**QUIET)
    before = [*trainer.callbacks]
    with pytest.warns(UserWarning, match="not started by `gemini-lab run`"):
        protect_lightning(trainer)
    assert trainer.callbacks == before


def test_the_loss_is_computed_before_the_step_begins():
    """A version has the whole forward and backward pass to leave in."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    order = []
    optimizer.register_step_pre_hook(lambda *_: order.append("step"))

    def closure():
        order.append("loss")
        loss = (weight * 2).sum()
        loss.backward()
        return loss

    _compute_before_the_step(optimizer)
    with torch.no_grad():
        assert optimizer.step(closure=closure) == 4
    assert order == ["loss", "step"]
    assert weight.tolist() == [0, 0]
