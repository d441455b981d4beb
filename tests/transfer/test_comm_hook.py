"""The seam: what it counts, when it lets chunks pass, and that it leaves nothing behind."""

# ruff: noqa: ARG002, FBT001, FBT002  (the backend's own signatures)

import threading
import time
from typing import Any

import pytest
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.observe import IterationRecord, Profiler
from gemini_lab.profiler.profile import Profile
from gemini_lab.transfer.collective_calls import DeviceClock
from gemini_lab.transfer.comm_hook import CommSeam

WORD = torch.zeros(2)  # 8 bytes


class Handle:
    """An asynchronous collective that ends when it is waited for."""

    waited = False

    def wait(self) -> str:
        self.waited = True
        return "result"


class Backend:
    """Stands for DeepSpeed's comm object."""

    during: Any = None

    def all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False):
        if self.during is not None:
            self.during()
        return Handle() if async_op else None

    def reduce_scatter_tensor(self, output_tensor: Any, input_tensor: Any, op: Any = None):
        return None

    def all_gather(self, tensor_list: Any, tensor: Any, group: Any = None):
        return None

    def barrier(self, group: Any = None):
        raise ValueError("no peer")


@pytest.fixture
def seam():
    seam = CommSeam(Backend()).attach()
    yield seam
    seam.detach()


def run_iteration(seam: CommSeam, *, calls: int = 2) -> IterationRecord | None:
    """`calls` all-reduces, the last of them in the update."""
    for _ in range(calls - 1):
        seam._backend.all_reduce(WORD)
    seam.begin_update()
    seam._backend.all_reduce(WORD)
    return seam.begin_iteration()


def profile_of(seam: CommSeam, *, calls: int = 2) -> Profile:
    profiler = Profiler(iterations=1, skip=0)
    seam.begin_iteration()
    record = run_iteration(seam, calls=calls)
    assert record is not None
    profile = profiler.observe(record)
    assert isinstance(profile, Profile)
    return profile


def test_every_collective_is_recorded_with_its_full_size(seam: CommSeam) -> None:
    assert seam.begin_iteration() is None
    backend = seam._backend
    backend.all_reduce(WORD)
    backend.reduce_scatter_tensor(WORD, torch.zeros(4))
    backend.all_gather(tensor_list=[WORD, WORD, WORD], tensor=WORD)
    record = seam.begin_iteration()
    assert record is not None
    assert record.sequence == [("all_reduce", 8), ("reduce_scatter_tensor", 16), ("all_gather", 24)]
    assert record.update_s == record.iteration_s
    times = [t for c in record.collectives for t in (c.start_s, c.end_s)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= record.iteration_s


def test_the_update_is_marked_within_the_iteration(seam: CommSeam) -> None:
    seam.begin_iteration()
    record = run_iteration(seam)
    assert record is not None
    first, second = record.collectives
    assert first.end_s <= record.update_s <= second.start_s
    assert not seam.is_updating


def test_what_is_apart_from_an_iteration_is_not_recorded_and_deviates_from_no_profile(
    seam: CommSeam,
) -> None:
    seam.expect(profile_of(seam))
    seam.begin_iteration()
    seam._backend.all_reduce(WORD)
    with seam.apart():
        seam._backend.reduce_scatter_tensor(WORD, torch.zeros(4))
    assert (seam.calls, seam.deviation, seam.in_flight) == (1, "", False)
    seam.begin_update()
    seam._backend.all_reduce(WORD)
    assert not seam.deviation
    record = seam.begin_iteration()
    assert record is not None
    assert [name for name, _ in record.sequence] == ["all_reduce", "all_reduce"]


def test_detached_the_backend_is_as_it_was() -> None:
    backend = Backend()
    seam = CommSeam(backend).attach()
    with pytest.raises(ConfigError, match="already watched"):
        CommSeam(backend).attach()
    seam.detach()
    assert vars(backend) == {}
    CommSeam(backend).attach().detach()


def test_an_asynchronous_collective_is_in_flight_until_it_is_waited_for(seam: CommSeam) -> None:
    seam.begin_iteration()
    handle = seam._backend.all_reduce(WORD, None, None, True)
    assert seam.in_flight
    assert handle.wait() == "result"
    assert handle.waited
    assert not seam.in_flight


def test_a_synchronous_collective_is_in_flight_while_it_runs(seam: CommSeam) -> None:
    seen = []
    seam._backend.during = lambda: seen.append((seam.in_flight, seam.calls))
    seam._backend.all_reduce(WORD)
    assert seen == [(True, 1)]
    assert not seam.in_flight


def test_a_collective_that_fails_is_no_longer_in_flight(seam: CommSeam) -> None:
    with pytest.raises(ValueError, match="no peer"):
        seam._backend.barrier()
    assert not seam.in_flight


def test_a_chunk_leaves_in_its_span_or_later_and_never_beside_a_collective(seam: CommSeam) -> None:
    profile = profile_of(seam)
    before, after = (n for n, s in enumerate(profile.idle_spans) if s.before_update)
    seam.expect(profile)
    backend = seam._backend
    assert seam.may_send(before)
    assert not seam.may_send(after)
    assert not seam.may_send(None)
    handle = backend.all_reduce(WORD, async_op=True)
    assert not seam.may_send(before)
    handle.wait()
    assert seam.may_send(before)
    assert seam.may_send(after)
    assert seam.may_send(None)
    seam.begin_update()
    backend.all_reduce(WORD, async_op=True)
    assert seam.may_send(after)


def test_a_sender_waits_for_its_span_and_gives_up_in_time(seam: CommSeam) -> None:
    profile = profile_of(seam)
    seam.expect(profile)
    assert not seam.wait_to_send(None, timeout_s=0.01)
    answers: list[bool] = []
    sender = threading.Thread(
        target=lambda: answers.append(seam.wait_to_send(None, timeout_s=30.0))
    )
    sender.start()
    seam._backend.all_reduce(WORD)
    sender.join(timeout=20)
    assert answers == [True]


@pytest.mark.parametrize("waits_for_peers", [False, True])
def test_a_chunk_leaves_when_training_stands_still(
    seam: CommSeam, *, waits_for_peers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank evaluates, and the others wait for it in a collective."""
    monkeypatch.setattr("gemini_lab.transfer.comm_hook._STILL_S", 0.3)
    seam.expect(profile_of(seam, calls=4))
    seam._backend.all_reduce(WORD, async_op=waits_for_peers)
    assert not seam.wait_to_send(None, timeout_s=0.05)
    assert seam.wait_to_send(None, timeout_s=30.0)


def test_collectives_before_its_span_leave_a_sender_asleep(
    seam: CommSeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    seam.expect(profile_of(seam, calls=6))
    looks: list[bool] = []

    def may_send(span: int | None) -> bool:
        looks.append(CommSeam.may_send(seam, span))
        return looks[-1]

    monkeypatch.setattr(seam, "may_send", may_send)
    sender = threading.Thread(target=lambda: seam.wait_to_send(None, timeout_s=30.0))
    sender.start()
    for _ in range(5):
        time.sleep(0.05)  # it would look meanwhile
        seam._backend.all_reduce(WORD)
    sender.join(timeout=20)
    assert looks == [False, True]


def test_a_change_in_mid_iteration_is_said_once_and_frees_the_sender(seam: CommSeam) -> None:
    profile = profile_of(seam)
    seam.expect(profile)
    run_iteration(seam)
    assert seam.deviation == ""
    seam._backend.all_reduce(torch.zeros(3))
    said = seam.deviation
    seam._backend.all_reduce(torch.zeros(4))
    assert seam.deviation == said
    assert "collective 0 is all_reduce of 12 B" in said
    assert seam.may_send(len(profile.idle_spans) - 1)
    seam.begin_iteration()
    assert seam.deviation == ""


def test_a_collective_too_many_is_a_change(seam: CommSeam) -> None:
    seam.expect(profile_of(seam))
    for _ in range(2):
        seam._backend.all_reduce(WORD)
    assert seam.deviation == ""
    seam._backend.all_reduce(WORD)
    assert seam.deviation.startswith("3 collectives")


def test_without_recording_calls_are_counted_and_compared_only(seam: CommSeam) -> None:
    profile = profile_of(seam)
    backend = Backend()
    counting = CommSeam(backend, recording=False).attach()
    counting.expect(profile)
    assert run_iteration(counting) is None
    assert run_iteration(counting) is None
    for _ in range(3):
        backend.all_reduce(WORD)
    assert counting.calls == 3
    assert counting.deviation.startswith("3 collectives")


def test_a_paced_collective_ends_when_the_link_has_carried_it() -> None:
    asked: list[tuple[str, int]] = []

    def pace(name: str, size_bytes: int, _group: Any) -> float:
        import time

        asked.append((name, size_bytes))
        return time.monotonic() + 0.05

    backend = Backend()
    seam = CommSeam(backend, pace=pace).attach()
    seam.begin_iteration()
    backend.all_reduce(WORD)
    handle = backend.all_reduce(WORD, async_op=True)
    assert seam.in_flight
    handle.wait()
    record = seam.begin_iteration()
    seam.detach()
    assert asked == [("all_reduce", 8)] * 2
    assert record is not None
    assert all(c.end_s - c.start_s >= 0.05 for c in record.collectives)


class Gate:
    """Takes down what it is told, and what was in flight then."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def before_call(self) -> None:
        self.told.append("before")

    def after_call(self, calls: int, work: Any) -> None:
        self.told.append((calls, type(work)))

    def before_update(self) -> None:
        self.told.append("update")


def test_a_gate_stands_between_the_calls_of_an_iteration(seam: CommSeam) -> None:
    gate = Gate()
    seam.expect(profile_of(seam), gate=gate)
    seam._backend.all_reduce(WORD)
    seam._backend.all_reduce(WORD, async_op=True).wait()
    seam.begin_update()
    seam.begin_iteration()
    seam._backend.all_reduce(WORD)
    first = ["before", (1, type(None)), "before", (2, Handle), "update"]
    assert gate.told == [*first, "before", (1, type(None))]
    with pytest.raises(ValueError, match="no peer"):
        seam._backend.barrier()
    assert gate.told[len(first) + 2 :] == ["before"]
    seam.expect(None)
    seam._backend.all_reduce(WORD)
    assert gate.told[len(first) + 3 :] == []


def test_a_paced_link_is_refused_on_cuda() -> None:
    with pytest.raises(ConfigError, match="CPU backends only"):
        CommSeam(Backend(), clock=DeviceClock(), pace=lambda *_: 0.0)


def test_gloo_handles_end_on_their_own(tmp_path) -> None:
    """A real backend: the end is noticed without anyone waiting for the handle."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:

        class Gloo:
            def all_reduce(self, tensor: Any, group: Any = None, async_op: bool = False):
                return dist.all_reduce(tensor, group=group, async_op=async_op)

        backend = Gloo()
        seam = CommSeam(backend).attach()
        seam.begin_iteration()
        handle = backend.all_reduce(WORD.clone(), async_op=True)
        assert seam.wait_to_send(0, timeout_s=30.0)
        handle.wait()
        seam.detach()
    finally:
        dist.destroy_process_group()
