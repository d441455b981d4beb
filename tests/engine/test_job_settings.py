"""What a job is told to do, as far as its framework can do it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.setup import read_settings
from gemini_lab.engine.state.engine_state import framework_of
from gemini_lab.errors import ConfigError
from gemini_lab.job import Job
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.seats import Seats


def plain(**settings):
    model = nn.Linear(1, 1)
    return framework_of(TorchEngine(model, torch.optim.SGD(model.parameters()), settings=settings))


def order(nodes=2, **told):
    return JobOrder(
        number=1,
        run=1,
        job=Job(script="train.py"),
        seats=Seats(nodes=nodes),
        defaults={"replicas": 3},
        settings=told,
    )


def test_the_launcher_is_heard_before_the_script_and_that_before_the_labs_defaults():
    remarks = []
    assert read_settings(plain(), order(), remarks.append).replicas == 3
    assert read_settings(plain(replicas=4), order(), remarks.append).replicas == 4
    assert read_settings(plain(replicas=4), order(replicas=5), remarks.append).replicas == 5
    assert remarks == []


def test_without_sight_of_collectives_versions_leave_at_once_and_the_settings_say_so():
    remarks = []
    settings = read_settings(plain(scheme="gemini"), order(), remarks.append)
    assert (settings.scheme, settings.log_collectives) == ("background", False)
    assert remarks[0].startswith("the scheme 'gemini' needs to see training's collectives")
    assert read_settings(plain(scheme="blocking"), order(), remarks.append).scheme == "blocking"
    assert len(remarks) == 1


def test_a_folder_for_persistent_versions_is_the_same_wherever_script_and_agents_are(
    tmp_path, monkeypatch
):
    """A script that changes its folder would look for them where no agent writes them."""
    told = order()
    home = told.job.cwd
    monkeypatch.chdir(tmp_path)
    settings = read_settings(plain(persistent_url="run/tier"), told, [].append)
    assert settings.persistent_url == f"{home}/run/tier"
    for url in ("/net/run", "s3://bucket/run", "s3:/slip", "~/run"):
        assert read_settings(plain(persistent_url=url), told, [].append).persistent_url == url


def test_a_link_that_nobody_could_pace_is_refused():
    with pytest.raises(ConfigError, match="link_bytes_per_s paces training's collectives"):
        read_settings(plain(link_bytes_per_s="1 MB/s"), order(), [].append)


@pytest.mark.parametrize(
    ("nodes", "told", "is_logged"),
    [
        (64, {}, True),
        (65, {}, False),
        (65, {"log_collectives": True}, True),
        (2, {"log_collectives": False}, False),
    ],
)
def test_the_log_of_many_ranks_leaves_their_collectives_out_unless_they_are_asked_for(
    nodes, told, is_logged
):
    job = SimpleNamespace(engine=None, settings=dict, uneven="", unrepeatable="")
    assert read_settings(job, order(nodes, **told), [].append).log_collectives is is_logged


@pytest.mark.parametrize("asked", [{"verify_every": 10}, {"replicate": "gradients"}])
def test_ranks_that_hold_different_models_compute_nothing_for_one_another(asked):
    framework = plain(**asked)
    read_settings(framework, order(), [].append)
    framework.uneven = "its ranks are stages"
    with pytest.raises(ConfigError, match="in this job none could: its ranks are stages; leave"):
        read_settings(framework, order(), [].append)


def test_ranks_with_collectives_of_their_own_have_versions_leave_at_once():
    job, remarks = (
        SimpleNamespace(engine=None, settings=dict, uneven="experts differ", unrepeatable=""),
        [],
    )
    assert read_settings(job, order(scheme="gemini"), remarks.append).scheme == "background"
    assert "one sequence of collectives on all ranks, and experts differ" in remarks[0]
