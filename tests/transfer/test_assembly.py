"""A worker's replicator by its settings: what is sent, when training waits, and what is told."""

import threading

import pytest
import torch
import torch.distributed as dist
from deepspeed.comm import comm

from gemini_lab.log.events import Collectives, Event, VersionComplete
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.settings import SCHEDULED, SCHEMES, Settings
from gemini_lab.transfer.assembly import open_replicator
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.route import BackgroundRoute
from gemini_lab.transfer.version import Asked, OutgoingVersion, Peers, Wire

STATE = torch.arange(100, dtype=torch.uint8)
VERSION = OutgoingVersion(version=4, pieces=[(0, STATE)], payload_bytes=100)


class Backend:
    """Stands for DeepSpeed's comm object."""

    def all_reduce(self, tensor) -> int:
        return tensor.numel()


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    made = Backend()
    monkeypatch.setattr(comm, "cdb", made)
    return made


@pytest.fixture
def said():
    return []


@pytest.fixture
def slab():
    made = Slab.create([SlotSpec(0, 100)], chunk_bytes=32)
    yield made
    made.close()


@pytest.fixture
def group():
    return CheckpointGroup(dist.HashStore(), rank=0, world_size=1)


@pytest.fixture
def replicator(slab, said, group):
    made = []

    def make(*, emit=said.append, **settings):
        made.append(
            open_replicator(
                Settings(replicas=1, **settings),
                group,
                slab,
                Peers(rank=0),
                shard_bytes=[100],
                link=None,
                node_of=lambda rank: rank,
                device=torch.device("cpu"),
                emit=emit,
                asked=Asked,
                differences=None,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def versions_in(slab) -> list[int]:
    return [copy.version for copy in slab.copies()]


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - set(SCHEDULED)))
def test_without_a_plan_every_version_is_sent_or_none(replicator, scheme) -> None:
    one = replicator(scheme=scheme)
    assert [one.end_iteration(version) for version in (1, 2)] == [scheme != "none"] * 2
    assert one.is_sent(2) == (scheme == "none")


def test_in_the_background_training_goes_on_while_a_version_travels(replicator, slab, said) -> None:
    may_end = threading.Event()

    def wait(event: Event) -> None:
        if isinstance(event, VersionComplete):
            assert may_end.wait(30)
        said.append(event)

    one = replicator(scheme="background", emit=wait)
    one.send(VERSION)
    assert said == []
    may_end.set()
    one.wait()
    assert versions_in(slab) == [4]
    assert isinstance(said[0], VersionComplete)


def test_under_blocking_a_version_is_whole_before_training_goes_on(replicator, slab) -> None:
    one = replicator(scheme="blocking")
    one.send(VERSION)
    assert versions_in(slab) == [4]
    assert one.is_sent(4)


def test_what_is_sent_when_training_is_over_needs_no_group_of_the_scripts(
    replicator, slab, group
) -> None:
    """A script that destroys its process groups at its end takes NCCL's along."""

    class ScriptsRoute(BackgroundRoute):
        def exchange(self, *_):
            raise RuntimeError("the script has destroyed its process groups")

    one = replicator(scheme="background")
    one.follow(ScriptsRoute(Wire(group=group), Peers(rank=0)))
    one.end_training()
    one.send(VERSION)
    one.finish()
    assert versions_in(slab) == [4]


def test_the_collectives_of_each_iteration_are_told(replicator, backend, said) -> None:
    one = replicator(scheme="background")
    one.end_iteration(1)
    assert said == []  # what came before the first iteration is none
    backend.all_reduce(torch.zeros(2))
    assert one.collectives == 1
    one.wait()
    one.end_iteration(2)
    (event,) = said
    assert isinstance(event, Collectives)
    assert (event.iteration, event.kinds, event.order) == (2, (("all_reduce", 8),), (0,))
    (call,) = event.calls()
    assert 0 <= call.start_s <= call.end_s


def test_collectives_are_not_told_if_the_settings_say_so(replicator, backend, said) -> None:
    one = replicator(scheme="background", log_collectives=False)
    one.end_iteration(1)
    backend.all_reduce(torch.zeros(2))
    one.end_iteration(2)
    assert said == []


def test_detached_it_leaves_trainings_collectives_to_the_next_replicator(
    replicator, backend
) -> None:
    one = replicator(scheme="background")
    assert one.stop(5.0)
    one.detach()
    assert vars(backend) == {}


def test_at_its_end_what_is_under_way_is_whole_and_what_broke_is_raised(replicator, slab) -> None:
    one = replicator(scheme="background")
    one.send(VERSION)
    one.finish()
    assert versions_in(slab) == [4]

    def break_down(_: Event) -> None:
        raise OSError("the disk is gone")

    broken = replicator(scheme="background", log_collectives=False, emit=break_down)
    broken.send(OutgoingVersion(version=5, pieces=[(0, STATE)], payload_bytes=100))
    with pytest.raises(RuntimeError, match="a peer may be gone"):
        broken.finish()
