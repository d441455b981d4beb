"""From marks that agree to a schedule that all ranks follow: the conductor plans."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from gemini_lab.log.events import AnyEvent, Event, Note, Profiled
from gemini_lab.profiler.observe import SKIP, IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord
from gemini_lab.settings import Settings
from gemini_lab.transfer.conductor import Conductor
from gemini_lab.transfer.device import DeviceRoute
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.units import KIB

from .fake_lanes import GlooLanes

PROFILED = 2
WORLD = 2
CALLS = [(0.05, 0.1), (0.15, 0.2), (0.45, 0.5)]
"""Start and end of the collectives of an iteration of a second."""


class Transfer:
    """Stands for what moves versions: keeps the route and the marks."""

    route = None
    marks: tuple[int, ...] = ()


class Seam:
    """Gives the same iteration for ever, and takes down which profile is to be followed."""

    def __init__(self, iteration_s: float, calls: list[tuple[float, float]]) -> None:
        self.iteration_s, self.calls = iteration_s, calls
        self.expected: list = []

    def begin_iteration(self) -> IterationRecord:
        return IterationRecord(
            collectives=tuple(
                CollectiveRecord(name="all_gather", size_bytes=8, start_s=start_s, end_s=end_s)
                for start_s, end_s in self.calls
            ),
            iteration_s=self.iteration_s,
            update_s=self.iteration_s - 0.1,
        )

    def expect(self, profile) -> None:
        self.expected.append(profile)


class Rank:
    """One rank of a job that trains until its versions follow a plan, or for good do not."""

    def __init__(
        self, store, rank: int, sizes: list[int], calls, settings: dict, *, on_device: bool
    ) -> None:
        group = CheckpointGroup(store, rank=rank, world_size=WORLD, timeout_s=60)
        lanes = None
        if on_device:
            wire = dist.PrefixStore("wire", store)
            lanes = GlooLanes(CheckpointGroup(wire, rank=rank, world_size=WORLD, timeout_s=60))
        self.events: list[AnyEvent] = []
        self.seam, self.transfer = Seam(1.0 + 0.2 * rank, calls), Transfer()
        self.conductor = Conductor(
            settings=Settings(profile_iterations=PROFILED, **settings), group=group,
            transfer=self.transfer, seam=self.seam, sizes=sizes, sends_to=[1 - rank],
            receives_from={1 - rank: 1}, emit=self.events.append,
            lanes=lanes,
        )  # fmt: skip
        self.sent: list[int] = []
        for version in range(1, SKIP + 2 * PROFILED + 8):
            if self.conductor.end_iteration(version):
                self.sent.append(version)
                marks = group.all_gather([self.conductor.mark])
                self.transfer.marks = tuple(mark for (mark,) in marks)
        if self.transfer.route is not None:
            self.transfer.route.close()

    def told(self, kind: type[Event]) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def ranks(*, sizes: list[int], calls=CALLS, on_device: bool = False, **settings) -> list[Rank]:
    store = dist.HashStore()

    def rank(number: int) -> Rank:
        return Rank(store, number, sizes, calls, settings, on_device=on_device)

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(rank, range(WORLD)))


def test_ranks_plan_with_one_profile_though_each_saw_another() -> None:
    both = ranks(sizes=[8 * KIB, 8 * KIB], scheme="gemini")
    schedules = [one.conductor.schedule for one in both]
    assert schedules[0] == schedules[1]
    assert schedules[0].iteration_s == pytest.approx(1.1)
    assert both[0].seam.expected == both[1].seam.expected
    assert len(both[0].seam.expected) == 1


def test_every_byte_of_every_shard_is_planned_by_its_own_size() -> None:
    sizes = [8 * KIB, 3 * KIB]
    both = ranks(sizes=sizes, scheme="gemini", buffer_bytes=4 * KIB)
    for one, size_bytes in zip(both, sizes, strict=True):
        assert one.conductor.schedule.sent_bytes == size_bytes
        assert one.transfer.route is not None


def test_the_plan_is_told_once_with_all_that_it_was_made_from() -> None:
    first, second = ranks(sizes=[8, 8], scheme="gemini")
    (told,) = first.told(Profiled)
    assert second.told(Profiled) == []
    assert told.schedule.fingerprint == first.conductor.schedule.fingerprint
    assert len(told.profile.collectives) == 3
    assert told.calibration.bandwidth_bytes_per_s > 0


def test_once_planned_every_version_is_sent_again() -> None:
    for one in ranks(sizes=[8, 8], scheme="gemini"):
        assert one.sent[-3:] == list(range(one.sent[-1] - 2, one.sent[-1] + 1))
        assert one.conductor.next_version == one.sent[-1] + 1


def test_on_a_device_chunks_go_its_own_way_and_the_plan_is_made_for_its_wire_and_bus() -> None:
    both = ranks(sizes=[8 * KIB] * 2, scheme="gemini", on_device=True)
    for one in both:
        assert isinstance(one.transfer.route, DeviceRoute)
        assert one.seam.gate is one.transfer.route
    assert both[0].conductor.schedule == both[1].conductor.schedule
    (told,) = both[0].told(Profiled)
    assert told.calibration.copy_bytes_per_s > 0


def test_a_scheme_that_its_buffer_refuses_leaves_all_ranks_in_the_background() -> None:
    both = ranks(sizes=[64 * KIB] * 2, scheme="naive", buffer_bytes=KIB, sub_buffers=1)
    for one in both:
        assert one.conductor.schedule is None
        assert one.transfer.route is None
        assert one.sent[-3:] == list(range(one.sent[-1] - 2, one.sent[-1] + 1))
    (note,) = both[0].told(Note)
    assert "the scheme was refused" in note.text
    assert both[1].told(Note) == []


def test_a_job_without_idle_time_sends_all_before_the_update_and_says_its_cost() -> None:
    both = ranks(sizes=[8 * KIB] * 2, calls=[(0.0, 0.5), (0.5, 1.3)], scheme="gemini")
    for one in both:
        schedule = one.conductor.schedule
        assert schedule.leftover == schedule.chunks
        assert schedule.delay_s > 0
    assert any("do not fit" in note.text for note in both[0].told(Note))
