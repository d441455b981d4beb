"""From marks that agree to a schedule that all ranks follow, and back: what a controller does."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from gemini_lab.log import events
from gemini_lab.pipeliner.online import OnlinePlanner
from gemini_lab.profiler.observe import SKIP, IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord
from gemini_lab.settings import Settings
from gemini_lab.transfer.device_route import DeviceRoute
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.schedule_controller import ScheduleController
from gemini_lab.transfer.scheduled_route import ScheduledRoute
from gemini_lab.transfer.version import Peers, Wire
from gemini_lab.units import KIB

from .fake_lanes import GlooLanes

PROFILED = 2
WORLD = 2
CALLS = [(0.05, 0.1), (0.15, 0.2), (0.45, 0.5)]
"""Start and end of the collectives of an iteration of a second."""


class Mover:
    """Stands for what moves versions: keeps the route and the marks."""

    def __init__(self) -> None:
        self.route = None
        self.marks: tuple[int, ...] = ()

    def follow(self, route) -> None:
        if self.route is not None:
            self.route.close()
        self.route = route

    def take_marks(self) -> tuple[int, ...]:
        marks, self.marks = self.marks, ()
        return marks


class Seam:
    """Takes down which profile is to be followed, and who stands at the gate."""

    def __init__(self) -> None:
        self.expected: list = []
        self.gate = None

    def expect(self, profile, *, gate=None) -> None:
        self.expected.append(profile)
        self.gate = gate

    def wait_for_span(self, span) -> None:
        pass


def iteration(calls: list[tuple[float, float]], iteration_s: float) -> IterationRecord:
    collectives = [
        CollectiveRecord(name="all_gather", size_bytes=8, start_s=start_s, end_s=end_s)
        for start_s, end_s in calls
    ]
    return IterationRecord(
        collectives=tuple(collectives), iteration_s=iteration_s, update_s=iteration_s - 0.1
    )


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
        self.events: list[events.Event] = []
        self.hook, self.replicator = Seam(), Mover()
        self.planner = OnlinePlanner(world_size=WORLD, iterations=PROFILED)
        self.group = group
        self.controller = ScheduleController(
            self.planner,
            Settings(profile_iterations=PROFILED, **settings),
            wire=Wire(group=group, lanes=lanes),
            peers=Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1}),
            shard_bytes=sizes,
            replicator=self.replicator,
            hook=self.hook,
            emit=self.events.append,
        )
        self.sent: list[int] = []
        self.version = 0
        self.train(iteration(calls, 1.0 + 0.2 * rank), SKIP + 2 * PROFILED + 7)

    def train(
        self, record: IterationRecord, iterations: int, *, bare: IterationRecord | None = None
    ) -> None:
        """So many iterations that look like `record`, or like `bare` where no version travels."""
        for _ in range(iterations):
            is_bare = bare is not None and self.version not in self.sent
            self.version += 1
            if self.controller.end_iteration(self.version, bare if is_bare else record):
                self.sent.append(self.version)
                marks = self.group.all_gather([self.planner.mark])
                self.replicator.marks = tuple(mark for (mark,) in marks)

    def told(self, kind: type[events.Event]) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def together(work) -> list:
    """What `work` gives for each rank, all of them at the same time."""
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(work, range(WORLD)))


def ranks(*, sizes: list[int], calls=CALLS, on_device: bool = False, **settings) -> list[Rank]:
    store = dist.HashStore()
    return together(lambda number: Rank(store, number, sizes, calls, settings, on_device=on_device))


def test_ranks_plan_with_one_profile_though_each_saw_another() -> None:
    both = ranks(sizes=[8 * KIB, 8 * KIB], scheme="gemini")
    schedules = [one.controller.schedule for one in both]
    assert schedules[0] == schedules[1]
    assert schedules[0].iteration_s == pytest.approx(1.1)
    assert both[0].hook.expected == both[1].hook.expected
    assert len(both[0].hook.expected) == 1


def test_every_byte_of_every_shard_is_planned_by_its_own_size() -> None:
    sizes = [8 * KIB, 3 * KIB]
    both = ranks(sizes=sizes, scheme="gemini", buffer_bytes=4 * KIB)
    for one, size_bytes in zip(both, sizes, strict=True):
        assert one.controller.schedule.sent_bytes == size_bytes
        assert isinstance(one.replicator.route, ScheduledRoute)


def test_the_plan_is_told_once_with_all_that_it_was_made_from() -> None:
    first, second = ranks(sizes=[8, 8], scheme="gemini")
    (told,) = first.told(events.Profiled)
    assert second.told(events.Profiled) == []
    assert told.schedule.fingerprint == first.controller.schedule.fingerprint
    assert len(told.profile.collectives) == 3
    assert told.calibration.bandwidth_bytes_per_s > 0


def test_once_planned_every_version_is_sent_again() -> None:
    for one in ranks(sizes=[8, 8], scheme="gemini"):
        assert one.sent[-3:] == list(range(one.sent[-1] - 2, one.sent[-1] + 1))
        assert one.planner.next_version == one.sent[-1] + 1


def test_on_a_device_chunks_go_its_own_way_and_the_plan_is_made_for_its_wire_and_bus() -> None:
    both = ranks(sizes=[8 * KIB] * 2, scheme="gemini", on_device=True)
    for one in both:
        assert isinstance(one.replicator.route, DeviceRoute)
        assert one.hook.gate is one.replicator.route
    assert both[0].controller.schedule == both[1].controller.schedule
    (told,) = both[0].told(events.Profiled)
    assert told.calibration.copy_bytes_per_s > 0


def test_a_scheme_that_its_buffer_refuses_leaves_all_ranks_in_the_background() -> None:
    both = ranks(sizes=[64 * KIB] * 2, scheme="naive", buffer_bytes=KIB, sub_buffers=1)
    for one in both:
        assert one.controller.schedule is None
        assert one.replicator.route is None
        assert one.sent[-3:] == list(range(one.sent[-1] - 2, one.sent[-1] + 1))
    (note,) = both[0].told(events.Note)
    assert "the scheme was refused" in note.text
    assert both[1].told(events.Note) == []


def test_a_job_without_idle_time_sends_all_before_the_update_and_says_its_cost() -> None:
    both = ranks(sizes=[8 * KIB] * 2, calls=[(0.0, 0.5), (0.5, 1.3)], scheme="gemini")
    for one in both:
        schedule = one.controller.schedule
        assert schedule.leftover == schedule.chunks
        assert schedule.delay_s > 0
    assert any("do not fit" in note.text for note in both[0].told(events.Note))


@pytest.mark.parametrize("on_device", [False, True], ids=["on CPUs", "on a device"])
def test_when_the_collectives_change_all_leave_the_plan_the_seam_and_the_route(on_device) -> None:
    both = ranks(sizes=[8 * KIB] * 2, scheme="gemini", on_device=on_device)
    changed = iteration([*CALLS, (0.6, 0.7)], 1.1)
    together(lambda number: both[number].train(changed, 2))
    for rank, one in enumerate(both):
        assert one.controller.schedule is None
        assert one.replicator.route is None
        assert one.hook.expected[-1] is None
        assert one.hook.gate is None
        assert any(f"rank {rank}: " in note.text for note in one.told(events.Note))
    assert any("is profiled again" in note.text for note in both[0].told(events.Note))


def test_when_idle_spans_drift_all_plan_anew_and_the_log_says_by_how_much() -> None:
    both = ranks(sizes=[8 * KIB] * 2, scheme="gemini")
    then = both[0].controller.schedule
    shorter = iteration([(0.05, 0.1), (0.15, 0.2), (0.21, 0.8)], 1.1)
    together(lambda number: both[number].train(iteration(CALLS, 1.1), 10))
    together(lambda number: both[number].train(shorter, 60))
    for rank, one in enumerate(both):
        assert any(
            f"rank {rank}: idle time before the update was" in note.text
            for note in one.told(events.Note)
        )
        assert one.controller.schedule != then
        assert len(one.hook.expected) == 3
    assert both[0].controller.schedule == both[1].controller.schedule
    assert len(both[0].told(events.Profiled)) == 2


@pytest.mark.parametrize("bare_s", [1.1, 1.4])
def test_chunks_that_are_felt_count_with_what_they_cost_unless_it_was_the_machine(bare_s) -> None:
    both = ranks(sizes=[8 * KIB] * 2, scheme="gemini", max_overhead=0.1)
    bare = iteration(CALLS, bare_s)
    together(lambda number: both[number].train(iteration(CALLS, 1.4), 60, bare=bare))
    notes = [note.text for one in both for note in one.told(events.Note)]
    felt = "iterations that carry a version take 1.4 s where 1.1 s were planned"
    assert any(felt in note for note in notes)
    was_it = bare_s == 1.1
    assert any("they cost an iteration 300 ms more than" in note for note in notes) == was_it
    for one in both:
        schedule = one.controller.schedule
        assert schedule.iteration_s == pytest.approx(bare_s)
        assert schedule.predicted_iteration_s == pytest.approx(1.4, abs=1e-3)
        assert schedule.every_iterations == (3 if was_it else 1)
