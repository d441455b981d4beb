"""What an Accelerator trains: found in it, as it is called, or refused with the way out."""

import copy
import gc
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("accelerate")

import accelerate
from accelerate import Accelerator
from accelerate.utils import DistributedType, ProjectConfiguration

from gemini_lab.adapters.accelerate import _Count, left_out, trained_by
from gemini_lab.engine.made_objects import follow_constructors
from gemini_lab.errors import ConfigError, UnsupportedError

follow_constructors()


def prepared(*models, **more):
    """An Accelerator, as far as is looked at."""
    optimizers = [
        SimpleNamespace(optimizer=torch.optim.SGD(one.parameters(), lr=0.1)) for one in models
    ]
    known = {"_models": [*models], "_optimizers": optimizers, "parallelism_config": None}
    unread = dict.fromkeys(("_custom_objects", "_dataloaders", "_schedulers", "distributed_type"))
    return SimpleNamespace(**{**known, **unread, **more})


def test_a_model_is_taken_with_its_own_optimizer_and_settings():
    model = nn.Linear(2, 1)
    accelerator = prepared(model)
    engine = trained_by(accelerator, settings={"replicas": 2}, step=7)
    assert engine.module is model
    assert engine.optimizer is accelerator._optimizers[0].optimizer
    assert (engine.settings, engine.global_steps) == ({"replicas": 2}, 7)


def test_a_model_that_was_wrapped_after_it_was_listed_is_taken_as_it_is_called():
    model = nn.Linear(2, 1)
    compiled = torch.compile(model)
    assert trained_by(prepared(model)).module is compiled


class OptimizedModule(nn.Module):
    """What `torch.compile` makes of a model, by its name; some are held by themselves alone."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod, self._itself = model, [self]


def test_what_was_wrapped_around_it_before_and_is_gone_is_not_taken():
    """As where a cell is run again: the collector may not have come yet."""
    model = nn.Linear(2, 1)
    left = OptimizedModule(model)
    gc.collect()
    gc.disable()
    try:
        del left
        compiled = OptimizedModule(model)
        assert trained_by(prepared(model)).module is compiled
    finally:
        gc.enable()


def test_a_wrapper_that_could_not_be_made_is_none():
    """Its error's traceback may still have it."""
    model = nn.Linear(2, 1)
    left = object.__new__(DistributedDataParallel)
    assert trained_by(prepared(model)).module is model
    assert vars(left) == {}


@pytest.mark.parametrize(
    ("accelerator", "words"),
    [
        (prepared(), "prepared 0 models and 0 optimizers.*after accelerator.prepare"),
        (prepared(nn.Linear(1, 1), nn.Linear(1, 1)), "2 models and 2 optimizers.*of one module"),
        (
            prepared(nn.Linear(1, 1), parallelism_config=SimpleNamespace(sp_size=2)),
            "sp_size=2.*use cp_size or tp_size",
        ),
    ],
    ids=["none", "two", "sequence parallel"],
)
def test_what_is_not_one_model_shared_as_data_is_refused(accelerator, words):
    with pytest.raises(UnsupportedError, match=words):
        trained_by(accelerator)


def test_an_accelerator_that_keeps_them_elsewhere_is_refused():
    with pytest.raises(UnsupportedError, match=r"accelerate .* has no .*parallelism_config in"):
        trained_by(SimpleNamespace(_models=[], _optimizers=[]))


def test_settings_beside_deepspeeds_own_are_refused():
    zero = SimpleNamespace(engine=object())
    with pytest.raises(ConfigError, match='write them into the "gemini" block'):
        trained_by(prepared(deepspeed_engine_wrapped=zero), settings={"replicas": 2})
    assert trained_by(prepared(deepspeed_engine_wrapped=zero)) is zero.engine


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ("true", "MULTI_CPU", 1),
        ("True", "NO", 1),
        ("true", "FSDP", 0),
        ("true", "DEEPSPEED", 0),
        ("false", "MULTI_CPU", 0),
    ],
)
def test_fsdp_that_was_asked_for_and_is_left_out_is_said(asked, kind, told):
    accelerator = prepared(distributed_type=DistributedType(kind))
    texts = [*left_out(accelerator, {"ACCELERATE_USE_FSDP": asked})]
    assert len(texts) == told
    assert all("leaves it out on CPUs" in text for text in texts)


def test_named_checkpoints_go_on_after_those_that_a_lost_iteration_saved(tmp_path):
    """Accelerate refuses a folder that is there, and a restart would save into it again."""
    configuration = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)

    def started():
        return Accelerator(cpu=True, project_config=copy.copy(configuration))

    accelerator = started()
    accelerator.save_state()
    kept = _Count(accelerator).state_dict()
    accelerator.save_state()  # after the version, which is what comes back
    again = started()
    _Count(again).load_state_dict(kept)
    again.save_state()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("tracking.py", r"^class (\w+Tracker)\b"), ("hooks.py", r"^class (\w+)\(ModelHook\)")],
)
def test_every_tracker_and_hook_that_accelerate_ships_stands_in_the_guides_table(file, pattern):
    guide = (Path(__file__).parents[2] / "docs/reference/libraries.md").read_text(encoding="utf-8")
    text = (Path(accelerate.__file__).parent / file).read_text(encoding="utf-8")
    shipped = re.findall(pattern, text, re.MULTILINE)
    assert len(shipped) > 3
    assert [name for name in shipped if f"`{name}`" not in guide] == []


def test_a_scripts_own_optimizer_around_another_one_is_not_taken_for_accelerates():
    """Its slow weights would be lost without a word."""

    class Outer(torch.optim.SGD):
        pass

    model = nn.Linear(2, 2)
    outer = Outer(model.parameters(), lr=0.1)
    outer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = prepared(model)
    accelerator._optimizers = [outer]
    assert trained_by(accelerator).optimizer is outer  # and refused where its state is laid out
