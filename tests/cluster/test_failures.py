"""Each kind of failure, for real, on training nodes: the losses stay those of a quiet run."""

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from waiting import until

from gemini_lab import Lab, Run
from gemini_lab.injector.failures import (
    BitFlip,
    LinkCut,
    NodeFreeze,
    NodeLoss,
    NodesLoss,
    RootLoss,
    WorkerCrash,
    WorkerHang,
)
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Collectives,
    Injected,
    RecoveryPlanned,
    RecoveryWaiting,
    Transfer,
)
from gemini_lab.log.file import read_log
from gemini_lab.node.agent import LAB_GRACE_S
from gemini_lab.node.processes import AGENT, processes_of
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.chaos import sockets
from gemini_lab_bench.world.schedule import ROOT
from tests.bench.real_turns import LASTS, explain

from .conftest import random_seeds

ITERATIONS = 16
AT_S = 8.0
"""When a simulated lab is befallen: training has begun."""


@pytest.mark.parametrize(
    ("failure", "tier", "simulated"),
    [
        (WorkerCrash("rank-1"), "local", ("kill_rank", 1)),
        (NodeLoss("rank-2"), "peer", ("kill", 2, 1)),
        (RootLoss(), "peer", ("kill", ROOT, 1)),
        (NodeFreeze("rank-3"), "peer", ("freeze", 3)),
        (WorkerHang("rank-0"), "local", ("stop_rank", 0)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_training_resumes_from_memory_with_the_same_losses(
    lab, undisturbed, failure, tier, simulated
):
    """A simulated lab says the same of the recovery, event by event."""
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    scenario = Scenario().add(failure, iteration=6)
    run = lab.train(job, scenario=scenario, persistent_url=None, min_progress_s=6.0).wait(200)
    report = run.report()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    told = [entry.event for entry in read_log(run.log)]
    first = next(event for event in told if isinstance(event, RecoveryPlanned))
    struck = next(entry.node for entry in read_log(run.log) if isinstance(entry.event, Injected))
    if struck not in first.members:  # a standby may be the root: training does not notice
        assert failure == RootLoss()
        return
    assert len(report.recoveries) >= 1
    receipts = report.recoveries[0].receipts
    assert tier in {receipt.tier for receipt in receipts}
    assert all(receipt.verified for receipt in receipts)
    assert len(receipts) == 4
    explain(run.log, (AT_S, *simulated))


def test_a_cut_link_that_comes_back_costs_nothing(lab, undisturbed):
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    scenario = Scenario().add(LinkCut("rank-2"), iteration=5)
    run = lab.train(job, scenario=scenario, persistent_url=None).wait(200)
    report = run.report()
    assert report.recoveries == ()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    explain(run.log, (AT_S, "reset", ROOT, 2, 0), (0.0, "reset", 2, ROOT, 0))


@pytest.mark.skipif(sockets.why_not() is not None, reason=str(sockets.why_not()))
def test_agents_wait_for_a_lab_that_is_busy_as_its_connections_break(lab, undisturbed):
    """A lab that is stopped for a moment, or that a firewall keeps away, has not ended."""
    before = {*lab.living}
    run = lab.train(gpt_job(size="tiny", iterations=ITERATIONS), persistent_url=None)
    until(lambda: run.iteration >= 3)
    lab._cluster._loop.call(time.sleep, 2 * LAB_GRACE_S)
    cut = [sockets.cut(agent.pid, [os.getpid()]) for agent in agents_of(lab)]
    assert sum(one > 0 for one in cut) >= len(before)  # one that was lost may have joined by now
    report = run.wait(200).report()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    assert report.recoveries == ()
    assert {*lab.living} >= before


def agents_of(lab):
    return [*processes_of(AGENT, lab._cluster._store.prefix.rstrip("/"))]


def test_the_log_has_every_collective_and_the_way_of_every_version(lab):
    """But for those of the first iteration, which a worker is in before it is watched."""
    run = lab.train(gpt_job(size="tiny", iterations=4), persistent_url=None).wait(200)
    entries = list(read_log(run.log))
    told = [entry for entry in entries if isinstance(entry.event, Collectives)]
    assert {(e.event.rank, e.event.iteration) for e in told} == {
        (rank, iteration) for rank in range(4) for iteration in (2, 3, 4)
    }
    for entry in told:
        calls = list(entry.event.calls())
        assert "reduce_scatter_tensor" in {call.name for call in calls}
        assert all(call.start_s <= call.end_s for call in calls)
        assert entry.event.began_s + max(call.end_s for call in calls) <= entry.at_s + 0.1
    sent = [entry.event for entry in entries if isinstance(entry.event, Transfer)]
    ways = [(transfer.rank, transfer.version) for transfer in sent]
    assert sorted(ways) == [(rank, version) for rank in range(4) for version in range(5)]


def test_a_flipped_bit_is_stepped_over_at_the_next_recovery(lab, undisturbed):
    """The owner's copy is damaged; its peer's takes its place, and an event says so."""
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    run = lab.train(job, persistent_url=None)
    stop_and_damage(run)
    report = run.wait(200).report()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    assert any("shard 1" in text for r in report.recoveries for text in r.rejected)
    damage = ("flip", 1, 0), ("flip", 1, 1), ("kill_rank", 1)
    explain(run.log, (AT_S, "stop_rank", 1), *((0.0, *one) for one in damage))


def stop_and_damage(run) -> None:
    """When iteration 6 is done: stop a worker so that no version moves, flip, then kill it."""
    struck = threading.Event()

    def watch(entry):
        if entry.kind == "iteration" and run.iteration >= 6 and not struck.is_set():
            struck.set()
            run.inject(WorkerHang("rank-1"))
            run.inject(BitFlip("rank-1", shard=1))
            run.inject(WorkerCrash("rank-1"))

    run.watch(watch)


@pytest.mark.long
def test_two_lost_nodes_of_one_group_send_everyone_to_the_persistent_tier(lab, undisturbed):
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    scenario = Scenario().add(NodesLoss(("rank-2", "rank-3")), iteration=9)
    run = lab.train(job, scenario=scenario, persist_every_iterations=3)
    report = run.wait(300).report()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    assert {receipt.tier for receipt in report.recoveries[0].receipts} <= {"persistent"}
    shape = replace(LASTS, has_tier=True, persist_every=3)
    explain(run.log, (AT_S, "kill", 2, 1), (0.0, "kill", 3, 1), shape=shape)


@pytest.mark.long
def test_without_any_version_left_a_person_decides_that_training_starts_anew(lab, undisturbed):
    """The run waits, and says for what, until somebody lets the lost iterations go."""
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    scenario = Scenario().add(NodesLoss(("rank-0", "rank-1")), iteration=4)
    run = lab.train(job, scenario=scenario, persistent_url=None)
    waits = threading.Event()
    run.watch(lambda entry: waits.set() if "no copy of" in _reason(entry) else None)
    assert waits.wait(200)
    run.give_up_progress()
    report = run.wait(300).report()
    assert report.losses_match(undisturbed(iterations=ITERATIONS))


def _reason(entry: Entry) -> str:
    return entry.event.reason if isinstance(entry.event, RecoveryWaiting) else ""


@pytest.mark.long
def test_a_group_that_was_silent_comes_back_with_its_memory(lab, undisturbed):
    """Two frozen nodes thaw after their leases ran out: nothing of what they had is lost."""
    job = gpt_job(size="tiny", iterations=60)
    run = lab.train(job, persistent_url=None)
    _wait_for_iteration(run, 8)
    frozen = [psutil.Process(pid) for node in run.members[:2] for pid in _processes(lab, node)]
    for process in frozen:
        process.suspend()
    waits = threading.Event()
    run.watch(lambda entry: waits.set() if "fell silent" in _reason(entry) else None)
    try:
        assert waits.wait(200)
    finally:  # what stands still does not end with the lab
        for process in frozen:
            process.resume()
    report = run.wait(300).report()
    assert report.losses_match(undisturbed(iterations=60))
    assert [recovery.tier for recovery in report.recoveries][-1] == "memory"
    assert report.recoveries[-1].lost_iterations <= 1


def _wait_for_iteration(run: Run, iteration: int) -> None:
    reached = threading.Event()
    run.watch(lambda _: reached.set() if run.iteration >= iteration else None)
    assert reached.wait(200)


def _processes(lab: Lab, node: str) -> list[int]:
    """The agent of a node on this machine, and everything that it started."""
    log = lab.folder / "agents" / f"{node}.log"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "gemini_lab.node.agent" in process.cmdline() and _log(process) == log:
                return [process.pid, *(child.pid for child in process.children(recursive=True))]
    raise AssertionError(f"{node} has no agent on this machine ({lab})")


def _log(agent: psutil.Process) -> Path:
    """Where the agent writes: other labs have nodes of the same names."""
    return Path(f"/proc/{agent.pid}/fd/2").readlink()


@pytest.mark.long
@pytest.mark.parametrize("seed", random_seeds(2))
def test_random_failures_at_random_moments_leave_the_losses_alone(lab, undisturbed, seed):
    """The seed stands in the test's name: the same one draws the same failures."""
    scenario = Scenario.random(seed, ranks=4, duration_s=25.0, rate_per_s=0.15)
    iterations = 80
    job = gpt_job(size="tiny", iterations=iterations)
    run = lab.train(
        job, scenario=scenario, persist_every_iterations=10, give_up_progress_after_s=0.0
    )
    report = run.wait(380).report()
    assert report.losses_match(undisturbed(iterations=iterations))
