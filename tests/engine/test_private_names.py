"""A version of a package that lacks what is read of it: refused at the start, by name."""

from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gemini_lab.engine.frameworks import torch_engine
from gemini_lab.engine.frameworks.ddp_buckets import BucketOrder
from gemini_lab.engine.frameworks.tensors import whole_weights
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.private_names import require
from gemini_lab.errors import UnsupportedError


class Group:
    """Somebody else's."""

    kept, _kept = 1, None


def test_what_is_there_is_no_matter_whatever_it_is():
    require(Group(), "kept", "_kept", package="torch")


@pytest.mark.parametrize("thing", [Group(), Group])
def test_what_is_missing_is_named_with_the_version(thing):
    with pytest.raises(UnsupportedError) as caught:
        require(thing, "_left", "kept", "_lost", package="torch")
    said = str(caught.value)
    assert said.startswith(f"torch {version('torch')} has no _left, _lost in Group, and")
    assert "install a version that was tried" in said


def test_another_ddp_is_refused_before_it_trains():
    ddp = SimpleNamespace(_module_parameters=[], find_unused_parameters=True, reducer=None)
    with pytest.raises(UnsupportedError, match=r"_comm_hooks.*in SimpleNamespace"):
        BucketOrder(ddp)


def test_a_torch_that_calls_its_steps_otherwise_is_refused(monkeypatch):
    """A step that calls another one would count twice, and nobody would notice."""
    model = nn.Linear(1, 1)
    monkeypatch.setattr(torch_engine, "_STEP", "renamed")
    with pytest.raises(UnsupportedError, match=r"no renamed in Optimizer\.profile_hook_step"):
        TorchEngine(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Sharded(nn.Module):
    """After `fully_shard`, as far as is looked at."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def _get_fsdp_state(self):
        return self.state


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda group: SimpleNamespace(_fsdp_param_groups=[group, group]), 2),
        (lambda group: SimpleNamespace(_fsdp_param_group=group), 1),
        (lambda _: SimpleNamespace(_fsdp_param_group=None), 0),
        (lambda _: SimpleNamespace(_fsdp_param_groups=[]), 0),
    ],
    ids=["some groups", "one, as older versions have it", "none then", "none"],
)
def test_whole_weights_are_found_where_each_torch_has_them(monkeypatch, make, found):
    weight = SimpleNamespace(_unsharded_param=torch.ones(1))
    monkeypatch.setattr(
        "gemini_lab.engine.frameworks.tensors.is_fsdp2", lambda one: isinstance(one, Sharded)
    )
    model = Sharded(make(SimpleNamespace(fsdp_params=[weight, SimpleNamespace()])))
    assert len([*whole_weights(model)]) == found
