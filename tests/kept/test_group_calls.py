"""What training's groups are asked for: passed on, or refused by name."""

import inspect
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from gemini_lab.errors import UnsupportedError
from gemini_lab.kept.groups import (
    COLLECTIVES,
    StandingGroup,
    StandingGroups,
    obstacle,
    unknown_calls,
)

MINUTE = timedelta(seconds=60)
needs_a_refusing_backend = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


class Later:
    """A group of some later torch."""

    BackendType, size = int, 3

    def allreduce(self): ...

    def rank(self): ...

    def teleport(self): ...

    def _inner(self): ...


def test_a_call_that_nobody_knows_is_unknown():
    assert unknown_calls(Later) == ["teleport"]


def test_what_torchs_own_functions_call_is_known():
    """Their source has all of it, whatever else they do."""
    unknown = unknown_calls()
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all_single", "barrier"):
        source = inspect.getsource(getattr(dist, name))
        assert not [one for one in unknown if f"group.{one}(" in source], name


@needs_a_refusing_backend
def test_each_of_them_is_passed_on_and_the_unknown_are_refused():
    groups = StandingGroups(kept=[0])
    group = StandingGroup(groups, dist.HashStore(), 0, 2, MINUTE)
    groups.break_off()
    assert all(getattr(group, name)([]).wait() for name in COLLECTIVES)
    for name in unknown_calls():
        with pytest.raises(UnsupportedError, match=rf"ProcessGroup\.{name} of PyTorch"):
            getattr(group, name)()
    assert hasattr(dist.ProcessGroup, "split_group") == ("split_group" in unknown_calls())


@needs_a_refusing_backend
def test_what_a_later_torch_tells_a_gloo_group_beside_is_told_to_the_real_one(monkeypatch):
    groups = StandingGroups(kept=[0])
    monkeypatch.setattr(c10d, "ProcessGroupGloo", c10d.ProcessGroupGloo)
    groups.install()
    group = c10d.ProcessGroupGloo(dist.HashStore(), 0, 2, timeout=MINUTE, enable_anything=False)
    assert group.size() == 2
    with pytest.raises(TypeError, match="enable_anything"):  # of a Gloo group that has none
        group.connect(dist.HashStore())


@pytest.fixture
def world():
    """A process group of this process alone, as torch makes it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_a_job_whose_group_is_another_is_known():
    flaw = StandingGroups().flaw
    assert flaw == "its process group is torch's ProcessGroup (gloo), and no Gloo group"


def test_before_a_job_has_a_group_there_is_no_flaw():
    assert StandingGroups().flaw == ""
