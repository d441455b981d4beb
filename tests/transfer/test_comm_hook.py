"""The hook: what it counts, when it lets chunks pass, and that it leaves nothing behind."""

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
from gemini_lab.transfer.comm_hook import CommHook

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
def hook():
    hook = CommHook(Backend()).attach()
    yield hook
    hook.detach()


def run_iteration(hook: CommHook, *, calls: int = 2) -> IterationRecord | None:
    """`calls` all-reduces, the last of them in the update."""
    for _ in range(calls - 1):
        hook._backend.all_reduce(WORD)
    hook.begin_update()
    hook._backend.all_reduce(WORD)
    return hook.begin_iteration()


def profile_of(hook: CommHook, *, calls: int = 2) -> Profile:
    profiler = Profiler(iterations=1, skip=0)
    hook.begin_iteration()
    record = run_iteration(hook, calls=calls)
    assert record is not None
    profile = profiler.observe(record)
    assert isinstance(profile, Profile)
    return profile


def test_every_collective_is_recorded_with_its_full_size(hook: CommHook) -> None:
    assert hook.begin_iteration() is None
    backend = hook._backend
    backend.all_reduce(WORD)
    backend.reduce_scatter_tensor(WORD, torch.zeros(4))
    backend.all_gather(tensor_list=[WORD, WORD, WORD], tensor=WORD)
    record = hook.begin_iteration()
    assert record is not None
    assert record.sequence == [("all_reduce", 8), ("reduce_scatter_tensor", 16), ("all_gather", 24)]
    assert record.update_s == record.iteration_s
    times = [t for c in record.collectives for t in (c.start_s, c.end_s)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= record.iteration_s


def test_the_update_is_marked_within_the_iteration(hook: CommHook) -> None:
    hook.begin_iteration()
    record = run_iteration(hook)
    assert record is not None
    first, second = record.collectives
    assert first.end_s <= record.update_s <= second.start_s
    assert not hook.is_updating


def test_what_is_apart_from_an_iteration_is_not_recorded_and_deviates_from_no_profile(
    hook: CommHook,
) -> None:
    hook.expect(profile_of(hook))
    hook.begin_iteration()
    hook._backend.all_reduce(WORD)
    with hook.apart():
        hook._backend.reduce_scatter_tensor(WORD, torch.zeros(4))
    assert (hook.calls, hook.deviation, hook.in_flight) == (1, "", False)
    hook.begin_update()
    hook._backend.all_reduce(WORD)
    assert not hook.deviation
    record = hook.begin_iteration()
    assert record is not None
    assert [name for name, _ in record.sequence] == ["all_reduce", "all_reduce"]


def test_detached_the_backend_is_as_it_was() -> None:
    backend = Backend()
    hook = CommHook(backend).attach()
    with pytest.raises(ConfigError, match="already watched"):
        CommHook(backend).attach()
    hook.detach()
    assert vars(backend) == {}
    CommHook(backend).attach().detach()


def test_an_asynchronous_collective_is_in_flight_until_it_is_waited_for(hook: CommHook) -> None:
    hook.begin_iteration()
    handle = hook._backend.all_reduce(WORD, None, None, True)
    assert hook.in_flight
    assert handle.wait() == "result"
    assert handle.waited
    assert not hook.in_flight


def test_a_synchronous_collective_is_in_flight_while_it_runs(hook: CommHook) -> None:
    seen = []
    hook._backend.during = lambda: seen.append((hook.in_flight, hook.calls))
    hook._backend.all_reduce(WORD)
    assert seen == [(True, 1)]
    assert not hook.in_flight


def test_a_collective_that_fails_is_no_longer_in_flight(hook: CommHook) -> None:
    with pytest.raises(ValueError, match="no peer"):
        hook._backend.barrier()
    assert not hook.in_flight


def test_a_chunk_leaves_in_its_span_or_later_and_never_beside_a_collective(hook: CommHook) -> None:
    profile = profile_of(hook)
    before, after = (n for n, s in enumerate(profile.idle_spans) if s.before_update)
    hook.expect(profile)
    backend = hook._backend
    assert hook.may_send(before)
    assert not hook.may_send(after)
    assert not hook.may_send(None)
    handle = backend.all_reduce(WORD, async_op=True)
    assert not hook.may_send(before)
    handle.wait()
    assert hook.may_send(before)
    assert hook.may_send(after)
    assert hook.may_send(None)
    hook.begin_update()
    backend.all_reduce(WORD, async_op=True)
    assert hook.may_send(after)


def test_a_sender_waits_for_its_span_and_gives_up_in_time(hook: CommHook) -> None:
    profile = profile_of(hook)
    hook.expect(profile)
    assert not hook.wait_to_send(None, timeout_s=0.01)
    answers: list[bool] = []
    sender = threading.Thread(
        target=lambda: answers.append(hook.wait_to_send(None, timeout_s=30.0))
    )
    sender.start()
    hook._backend.all_reduce(WORD)
    sender.join(timeout=20)
    assert answers == [True]


@pytest.mark.parametrize("waits_for_peers", [False, True])
def test_a_chunk_leaves_when_training_stands_still(
    hook: CommHook, *, waits_for_peers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank evaluates, and the others wait for it in a collective."""
    monkeypatch.setattr("gemini_lab.transfer.comm_hook._STILL_S", 0.3)
    hook.expect(profile_of(hook, calls=4))
    hook._backend.all_reduce(WORD, async_op=waits_for_peers)
    assert not hook.wait_to_send(None, timeout_s=0.05)
    assert hook.wait_to_send(None, timeout_s=30.0)


def test_collectives_before_its_span_leave_a_sender_asleep(
    hook: CommHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.expect(profile_of(hook, calls=6))
    looks: list[bool] = []

    def may_send(span: int | None) -> bool:
        looks.append(CommHook.may_send(hook, span))
        return looks[-1]

    monkeypatch.setattr(hook, "may_send", may_send)
    sender = threading.Thread(target=lambda: hook.wait_to_send(None, timeout_s=30.0))
    sender.start()
    for _ in range(5):
        time.sleep(0.05)  # it would look meanwhile
        hook._backend.all_reduce(WORD)
    sender.join(timeout=20)
    assert looks == [False, True]


def test_a_change_in_mid_iteration_is_said_once_and_frees_the_sender(hook: CommHook) -> None:
    profile = profile_of(hook)
    hook.expect(profile)
    run_iteration(hook)
    assert hook.deviation == ""
    hook._backend.all_reduce(torch.zeros(3))
    said = hook.deviation
    hook._backend.all_reduce(torch.zeros(4))
    assert hook.deviation == said
    assert "collective 0 is all_reduce of 12 B" in said
    assert hook.may_send(len(profile.idle_spans) - 1)
    hook.begin_iteration()
    assert hook.deviation == ""


def test_a_collective_too_many_is_a_change(hook: CommHook) -> None:
    hook.expect(profile_of(hook))
    for _ in range(2):
        hook._backend.all_reduce(WORD)
    assert hook.deviation == ""
    hook._backend.all_reduce(WORD)
    assert hook.deviation.startswith("3 collectives")


def test_without_recording_calls_are_counted_and_compared_only(hook: CommHook) -> None:
    profile = profile_of(hook)
    backend = Backend()
    counting = CommHook(backend, recording=False).attach()
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
    hook = CommHook(backend, pace=pace).attach()
    hook.begin_iteration()
    backend.all_reduce(WORD)
    handle = backend.all_reduce(WORD, async_op=True)
    assert hook.in_flight
    handle.wait()
    record = hook.begin_iteration()
    hook.detach()
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


def test_a_gate_stands_between_the_calls_of_an_iteration(hook: CommHook) -> None:
    gate = Gate()
    hook.expect(profile_of(hook), gate=gate)
    hook._backend.all_reduce(WORD)
    hook._backend.all_reduce(WORD, async_op=True).wait()
    hook.begin_update()
    hook.begin_iteration()
    hook._backend.all_reduce(WORD)
    first = ["before", (1, type(None)), "before", (2, Handle), "update"]
    assert gate.told == [*first, "before", (1, type(None))]
    with pytest.raises(ValueError, match="no peer"):
        hook._backend.barrier()
    assert gate.told[len(first) + 2 :] == ["before"]
    hook.expect(None)
    hook._backend.all_reduce(WORD)
    assert gate.told[len(first) + 3 :] == []


def test_a_paced_link_is_refused_on_cuda() -> None:
    with pytest.raises(ConfigError, match="CPU backends only"):
        CommHook(Backend(), clock=DeviceClock(), pace=lambda *_: 0.0)


def test_gloo_handles_end_on_their_own(tmp_path) -> None:
    """A real backend: the end is noticed without anyone waiting for the handle."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:

        class Gloo:
            def all_reduce(self, tensor: Any, group: Any = None, async_op: bool = False):
                return dist.all_reduce(tensor, group=group, async_op=async_op)

        backend = Gloo()
        hook = CommHook(backend).attach()
        hook.begin_iteration()
        handle = backend.all_reduce(WORD.clone(), async_op=True)
        assert hook.wait_to_send(0, timeout_s=30.0)
        handle.wait()
        hook.detach()
    finally:
        dist.destroy_process_group()
