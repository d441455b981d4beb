"""What makes an update, compared before another number of ranks goes on from a version."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import ConfigError


def state(batch=None):
    """One rank's, that reads so many samples at a time, or from nothing that is known."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = []
    if batch is not None:
        samples = torch.zeros(48, 3)
        sampler = DistributedSampler(samples, num_replicas=1, rank=0)
        data = [DataLoader(samples, batch, sampler=sampler)]
    engine = TorchEngine(model, optimizer, settings={}, step=0)
    return EngineState(engine, script=ScriptState(data=data))


def recast(then, now, *, keep_batch=True):
    smalls = [then.capture_small()]
    return now.recast([then.layout], smalls, may_restart=True, keep_batch=keep_batch)


def test_another_global_batch_is_refused_and_says_both():
    with pytest.raises(ConfigError, match="the global batch would be 6 samples, and was 4"):
        recast(state(4), state(6))


def test_the_same_global_batch_goes_on_and_another_one_where_that_is_allowed():
    _, told = recast(state(4), state(4))
    assert not any("how many samples" in text for text in told)
    recast(state(4), state(6), keep_batch=False)


def test_where_nobody_knows_the_global_batch_that_is_said():
    _, told = recast(state(), state())
    assert any("how many samples make an update is not known" in text for text in told)


def test_what_a_version_was_made_of_is_kept_when_it_is_cut_anew():
    small, _ = recast(state(4), state(4))
    with pytest.raises(ConfigError, match="was 4"):
        state(8).recast([state(4).layout], [small], may_restart=True, keep_batch=True)
