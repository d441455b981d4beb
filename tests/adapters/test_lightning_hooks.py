"""Lightning's Trainer: what is refused before `fit()`, and when the loss is computed."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Trainer, callbacks
from lightning.pytorch.strategies import ModelParallelStrategy

from gemini_lab.adapters.lightning import (
    LightningHooks,
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
        ({"reload_dataloaders_every_n_epochs": 2}, "makes its loaders again.*set it to 0"),
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


REFUSED = {
    "BackboneFinetuning": (callbacks.BackboneFinetuning, "adds weights.*give the optimizer all"),
    "BatchSizeFinder": (callbacks.BatchSizeFinder, r"trains inside of fit\(\).*script of its own"),
    "LearningRateFinder": (callbacks.LearningRateFinder, r"trains inside of fit.*Tuner.lr_find"),
    "ModelPruning": (lambda: callbacks.ModelPruning("l1_unstructured"), "adds masks.*before fit"),
    "SpikeDetection": (callbacks.SpikeDetection, "cannot load its own state.*`load_state_dict`"),
    "StochasticWeightAveraging": (
        lambda: callbacks.StochasticWeightAveraging(0.1),
        "replaces the schedule.*use WeightAveraging",
    ),
    "a subclass": (
        type("Thawing", (callbacks.BaseFinetuning,), {}),
        "the callback Thawing cannot be protected: it adds weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_whose_changes_would_not_come_back_is_refused_by_name(name):
    """Before `fit()`; and where the module or a Tuner brings it, before it trains."""
    make, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        require_lightning(Trainer(**QUIET, callbacks=[make()]))
    trainer = Trainer(**QUIET)
    hooks = LightningHooks(trainer, start=None, remark=print)
    hooks.setup(trainer, None, stage="fit")
    trainer.callbacks.append(make())
    with pytest.raises(UnsupportedError, match=words):
        hooks.setup(trainer, None, stage="fit")


def test_every_callback_that_lightning_ships_stands_in_the_guides_table():
    guide = (Path(__file__).parents[2] / "docs/reference/libraries.md").read_text(encoding="utf-8")
    assert [name for name in callbacks.__all__ if f"`{name}`" not in guide] == ["Callback"]


def test_lightnings_spike_detection_cannot_load_what_it_gives():
    """If this fails, it need not be refused any more."""
    with pytest.raises(AttributeError):
        callbacks.SpikeDetection().load_state_dict(callbacks.SpikeDetection().state_dict())


def test_an_optimizer_that_calls_its_closure_again_computes_again():
    """As sharpness-aware minimization does; what was computed before the step is its first pass."""
    passes = []

    class Twice(torch.optim.SGD):
        def step(self, closure):
            assert closure() == 1
            assert closure() == 2
            super().step()

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = Twice([weight], lr=0.5)

    def closure():
        passes.append(None)
        return len(passes)

    _compute_before_the_step(optimizer)
    assert optimizer.step(closure=closure) is None
    assert len(passes) == 2


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
