"""Which versions leave, and when a job is profiled: the same on all ranks, by marks alone."""

import pytest

from gemini_lab.profiler.observe import SKIP, IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord
from gemini_lab.settings import Settings
from gemini_lab.transfer.conductor import PATIENCE, Conductor

PROFILED = 2


class Group:
    """Stands for the checkpoints' process group."""

    rank, world_size = 0, 2


class Transfer:
    """Stands for what moves versions."""

    route = None
    marks: tuple[int, ...] = ()


class Seam:
    """Gives iterations with as many collectives as `calls` says next, for ever the last."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def begin_iteration(self) -> IterationRecord:
        count = self.calls.pop(0) if len(self.calls) > 1 else self.calls[0]
        record = CollectiveRecord(name="all_reduce", size_bytes=8, start_s=0.1, end_s=0.2)
        return IterationRecord(collectives=(record,) * count, iteration_s=1.0, update_s=0.9)

    def expect(self, profile) -> None:
        pass


@pytest.fixture
def notes():
    return []


def conductor(notes, *, calls: list[int]) -> tuple[Conductor, Transfer]:
    transfer = Transfer()
    made = Conductor(
        settings=Settings(scheme="gemini", profile_iterations=PROFILED), group=Group(),
        transfer=transfer, seam=Seam(calls), sizes=[8, 8], sends_to=[1], receives_from={1: 1},
        emit=lambda event: notes.append(event.text),
    )  # fmt: skip
    return made, transfer


def test_every_version_is_sent_until_profiling_begins_and_then_every_second(notes) -> None:
    one, _ = conductor(notes, calls=[1])
    sent = [version for version in range(1, SKIP + 6) if one.end_iteration(version)]
    assert sent == [*range(1, SKIP + 1), SKIP + 2, SKIP + 4]
    assert one.next_version == SKIP + 6


def test_a_profile_is_made_of_iterations_without_traffic_only(notes) -> None:
    one, _ = conductor(notes, calls=[1])
    marks = []
    for version in range(1, SKIP + 2 * PROFILED + 1):
        marks.append(one.mark)
        one.end_iteration(version)
    assert not any(marks)
    assert one.mark != 0


def test_ranks_with_different_collectives_stay_in_the_background(notes) -> None:
    one, transfer = conductor(notes, calls=[1])
    for version in range(1, 30):
        one.end_iteration(version)
        transfer.marks = (one.mark, one.mark and one.mark + 1)
    assert any("differ from each other" in note for note in notes)
    assert all(one.end_iteration(version) for version in range(30, 36))


def test_a_job_that_never_repeats_is_given_up_and_every_version_is_sent(notes) -> None:
    one, transfer = conductor(notes, calls=list(range(1, 60)))
    transfer.marks = (0, 0)
    enough = SKIP + 2 * PATIENCE * PROFILED + 3
    for version in range(1, enough):
        one.end_iteration(version)
    assert any("do not repeat" in note for note in notes)
    assert all(one.end_iteration(version) for version in range(enough, enough + 6))
