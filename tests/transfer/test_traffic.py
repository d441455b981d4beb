"""A worker's traffic by its scheme: what is sent, when training waits, and what is told."""

import pytest
import torch

from gemini_lab.log.events import Collectives
from gemini_lab.settings import SCHEDULED, SCHEMES, Settings
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.traffic import CheckpointTraffic
from gemini_lab.transfer.version import OutgoingVersion

VERSION = OutgoingVersion(version=4, pieces=[], payload_bytes=0)


class Mover:
    """Takes down what it is asked for."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def send(self, version: OutgoingVersion) -> None:
        self.told.append(f"send {version.version}")

    def wait(self) -> float:
        self.told.append("wait")
        return 0.25

    def follow(self, route) -> None:
        self.told.append(f"follow {route}")

    def close(self) -> None:
        self.told.append("close")


class Backend:
    """Stands for DeepSpeed's comm object."""

    def all_reduce(self, tensor) -> int:
        return tensor.numel()


@pytest.fixture
def replicator():
    return Mover()


@pytest.fixture
def backend():
    return Backend()


@pytest.fixture
def said():
    return []


@pytest.fixture
def traffic(replicator, backend, said):
    def make(**settings) -> CheckpointTraffic:
        hook = CommHook(backend).attach()
        return CheckpointTraffic(
            Settings(**settings), replicator, hook=hook, controller=None, emit=said.append
        )

    return make


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - set(SCHEDULED)))
def test_without_a_plan_every_version_is_sent_or_none(traffic, scheme) -> None:
    one = traffic(scheme=scheme)
    assert [one.end_iteration(version) for version in (1, 2)] == [scheme != "none"] * 2
    assert one.is_sent(2) == (scheme == "none")


def test_in_the_background_training_goes_on_while_a_version_travels(traffic, replicator) -> None:
    traffic(scheme="background").send(VERSION)
    assert replicator.told == ["send 4"]


def test_what_is_sent_when_training_is_over_needs_no_group_of_the_scripts(
    traffic, replicator
) -> None:
    """A script that destroys its process groups at its end takes NCCL's along."""
    one = traffic(scheme="gemini")
    one.end_training()
    one.send(VERSION)
    assert replicator.told == ["wait", "follow None", "send 4"]


def test_under_blocking_a_version_is_whole_before_training_goes_on(traffic, replicator) -> None:
    one = traffic(scheme="blocking")
    one.send(VERSION)
    assert replicator.told == ["send 4", "wait"]
    assert one.is_sent(4)


def test_the_collectives_of_each_iteration_are_told(traffic, backend, said) -> None:
    one = traffic()
    one.end_iteration(1)
    assert said == []  # what came before the first iteration is none
    backend.all_reduce(torch.zeros(2))
    assert one.wait() == 0.25
    one.end_iteration(2)
    (event,) = said
    assert isinstance(event, Collectives)
    assert (event.iteration, event.kinds, event.order) == (2, (("all_reduce", 8),), (0,))
    (call,) = event.calls()
    assert 0 <= call.start_s <= call.end_s


def test_collectives_are_not_told_where_the_settings_say_so(traffic, said) -> None:
    one = traffic(log_collectives=False)
    one.end_iteration(1)
    one.end_iteration(2)
    assert said == []


def test_at_its_end_traffic_finishes_what_is_under_way(traffic, replicator) -> None:
    traffic().close()
    assert replicator.told == ["wait", "close"]
