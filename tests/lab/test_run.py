"""What a cell sees of a run: how far it is, until an iteration or the end, and names."""

import shutil
import sys
import threading
from pathlib import Path

import pytest
from full_disk import full_at
from lab_stand_in import NODES, ClusterStandIn, begin, entry, printed, run_in, seated, step, tell
from made import made
from msgspec.structs import replace

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.lab.run import Placed
from gemini_lab.log.events import (
    Note,
    Protected,
    RecoveryFinished,
    RecoveryStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    WorkerExited,
)
from gemini_lab.log.file import EventLog, read_log
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.requests import ResizeRun
from gemini_lab.report.reducer import RunReducer
from gemini_lab.settings import Settings

LOGS = Path(__file__).parents[1] / "log"


def test_who_waits_gets_the_run_back_at_an_iteration_or_at_the_end(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
    assert run.wait(until=3) is run
    assert not run.is_over
    with pytest.raises(TimeoutError, match="is not at iteration 4 after 0 s"):
        run.wait(0, until=4)
    with pytest.raises(TimeoutError, match="is not over after 0 s"):
        run.wait(0)
    tell(run, RunFinished(iteration=9))
    assert run.wait(until=100).is_over


def test_a_run_that_holds_waits_for_its_user_and_not_for_the_clock(tmp_path):
    run = run_in(tmp_path / "run", hold_at=(3, 5))
    begin(run)
    assert run.wait(until=3).holds_at == 3
    for wait in (run.wait, lambda: run.wait(until=4)):
        with pytest.raises(ConfigError, match=r"holds after iteration 3 until you act; .*go_on"):
            wait()
    assert "for you to act" in run._repr_html_()
    run.inject(NodeLoss("rank-2"))
    assert run.holds_at is None
    tell(run, *(step(rank, number) for number in (4, 5) for rank in range(len(NODES))))
    assert run.holds_at == 5
    run.rewind(1)
    assert run.holds_at is None
    tell(run, RunFinished(iteration=9))
    assert run.wait().is_over


def test_a_run_is_shown_while_others_go_on_and_who_waits_says_why_it_was_given_up(tmp_path, capsys):
    run = run_in(tmp_path / "run")
    run.progress(9)
    assert not run.is_over
    tell(run, Note(text="something odd"), RunFailed(reason="no such script"))
    with pytest.raises(RunFailedError, match="no such script"):
        run.wait()
    assert "something odd" in capsys.readouterr().out


def test_who_waits_says_why_a_run_was_given_up_while_its_last_workers_are_still_heard_of(tmp_path):
    run, before, has_heard = run_in(tmp_path / "run"), sys.getswitchinterval(), threading.Event()
    begin(run)
    exited = made(WorkerExited, rank=1, pid=2, exit_code=1, output=("ValueError: odd",))
    failed = RunFailed(reason="odd", output=("ValueError: odd",))
    tell(run, *[exited] * 500, failed)

    def hear_of_others():
        while not has_heard.is_set():
            run.follow(entry(exited))

    thread = threading.Thread(target=hear_of_others)
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(100):
            with pytest.raises(RunFailedError, match="odd"):
                run.wait()
    finally:
        sys.setswitchinterval(before)
        has_heard.set()
        thread.join()


def test_what_is_said_again_of_a_recovery_is_heard_once(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
    began = RecoveryStarted(
        recovery=1, epoch=2, cause="node_lost", lost=("node-1",), failed_at_s=5.0, iteration=3
    )
    ended = made(RecoveryFinished, epoch=2, version=3, iteration=4, duration_s=1.5)
    another = replace(began, recovery=2, epoch=3)
    seen = []
    run.watch(lambda entry: seen.append(entry.event))
    tell(run, began, ended, ended, began, another, ended, another)
    assert seen == [began, ended, another]
    told = [entry.event for entry in read_log(run.log)]
    kept = [one for one in told if isinstance(one, RecoveryStarted | RecoveryFinished)]
    assert kept == [began, ended, another]
    taken_over = run_in(tmp_path / "run", log=EventLog.taken_over(run.log))
    taken_over.recall()
    tell(taken_over, ended, another, replace(ended, recovery=2, epoch=3))
    assert len(taken_over.events("recovery_finished")) == 2
    assert len(taken_over.events("recovery_started")) == 2


def test_a_run_goes_on_when_its_disk_is_full_and_says_so_also_afterwards(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
    with full_at(run.log.stat().st_size):
        tell(run, *(step(rank, 4) for rank in range(len(NODES))))
        printed(run, 0, "a line that finds no room")
        assert run.iteration == 4
        assert run.events("note") == []
    tell(run, step(0, 5), RunFinished(iteration=5))
    texts = [entry.event.text for entry in run.events("note")]
    assert [text.split(" until ")[0] for text in texts] == [
        "the log waits in memory",
        "the log is written again; 5 entries had to wait for room on its disk",
    ]
    assert [entry.event.iteration for entry in run.events("iteration")] == [3] * 4 + [4] * 4 + [5]


def test_a_run_whose_folder_is_removed_while_it_trains_says_so_and_keeps_its_log(tmp_path):
    """It ended with exit status 0, no log and no word."""
    run, reopened = run_in(tmp_path / "run"), []
    run.reopen = reopened.append
    begin(run)
    shutil.rmtree(run.folder)
    tell(run, step(0, 4))
    run.settle()
    tell(run, step(1, 4), RunFinished(iteration=4))
    run.close()
    (told,) = run.events("note")
    assert told.event.text.startswith(f"ERROR: {run.log} was removed")
    assert reopened == [run.folder]
    assert [entry.event.iteration for entry in run.events("iteration")] == [3] * 4 + [4, 4]


def test_a_hostile_name_stays_text_in_a_notebook(tmp_path):
    run = run_in(tmp_path / "<script>alert(1)<")
    tell(run, seated("<b>node", *NODES[1:]))
    html = run._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;node" in html


def test_a_machine_is_not_asked_for_more_nodes_than_its_memory_has_room_for(tmp_path):
    cluster = ClusterStandIn()
    run = run_in(tmp_path / "run", owner=cluster)
    begin(run)
    run.resize(10**5)
    assert cluster.asked[-1] == (run.number, ResizeRun(nodes=10**5))
    cluster.is_local = True
    with pytest.raises(ConfigError, match=r"run cannot have 100000 nodes, 9999\d more: .* left"):
        run.resize(10**5)
    run.resize(len(NODES) - 1)
    assert cluster.asked[-1] == (run.number, ResizeRun(nodes=len(NODES) - 1))


@pytest.mark.parametrize("number", [0, -1, 10**9, 2**62, 10**30, 1.5, True, "3", None])
def test_no_impossible_number_reaches_the_nodes_whoever_asks_for_it(tmp_path, number):
    """Its owner plans for a size, and the ranks compute with what is taken back."""
    cluster = ClusterStandIn()
    run = run_in(tmp_path / "run", owner=cluster)
    begin(run)
    for ask in (run.resize, AttachedRun("run", lambda: None).resize):
        with pytest.raises(ConfigError, match="`nodes` must be from 1"):
            ask(number)
    is_possible = number == 10**9  # iterations, and not nodes
    for back in (run.rewind, AttachedRun("run", lambda: None).rewind):
        if not is_possible:
            with pytest.raises(ConfigError, match="`steps` must be from 1"):
                back(number)
    assert cluster.asked == []


def protected(epoch, placement):
    return made(
        Protected, epoch=epoch, fingerprint="same", settings=Settings(), placement=placement
    )


def planned(epoch, *members):
    return replace(seated(*members), epoch=epoch, recovery=epoch)


def placements(run):
    """By epoch, each placement that a run's log tells."""
    told = [entry.event for entry in run.events("protected")]
    return {event.epoch: event.placement for event in told if event.placement is not None}


def test_who_keeps_what_is_in_the_log_once_and_when_it_changes(tmp_path):
    run = run_in(tmp_path / "run")
    first, other = (plan_placement(nodes=4, strategy=each) for each in ("group", "ring"))
    fewer = plan_placement(nodes=3)
    tell(run, RunStarted(name="one", script="train.py", nodes=4))
    tell(run, planned(1, *NODES), protected(1, first))
    tell(run, planned(2, *NODES), protected(2, first))
    tell(run, planned(3, *NODES), protected(3, other), protected(2, first))
    tell(run, planned(4, *NODES), protected(4, other))
    tell(run, planned(5, *NODES[:3]))  # of which no start came so far
    tell(run, planned(6, *NODES), protected(6, other))
    tell(run, planned(7, *NODES[:3]), protected(7, fewer))
    assert placements(run) == {1: first, 3: other, 6: other, 7: fewer}
    reduced = RunReducer.load(run.folder)
    assert reduced.copies.placement == fewer
    assert reduced.unread == 0


def test_a_new_owner_tells_a_placement_neither_again_nor_otherwise(tmp_path):
    run = run_in(tmp_path / "run")
    first, other = (plan_placement(nodes=4, strategy=each) for each in ("group", "ring"))
    said = [
        entry(event)
        for epoch, placement in ((1, first), (2, first), (3, other))
        for event in (planned(epoch, *NODES), protected(epoch, placement))
    ]
    for each in said:
        run.take(each)
    told = run.log.read_bytes()
    new = run_in(tmp_path / "run", log=EventLog.taken_over(run.log))
    new.recall()
    for each in said:  # as agents do whom nobody told that it is on disk
        new.take(each)
    assert run.log.read_bytes() == told
    tell(new, planned(4, *NODES), protected(4, other))
    assert placements(new) == {1: first, 3: other}


def test_a_log_that_tells_the_placement_in_each_start_comes_to_the_same():
    """As logs were written before: here by a run of four nodes that lost a worker and two nodes."""
    older = list(read_log(LOGS / "placed_each_start.jsonl"))
    placed = Placed()
    now = [placed.brief(entry) for entry in older]
    told = [[e for e in log if getattr(e.event, "placement", None)] for log in (older, now)]
    assert [len(each) for each in told] == [4, 1]
    assert told[1] == told[0][:1]
    read = [RunReducer(name="one"), RunReducer(name="one")]
    for reducer, log in zip(read, (older, now), strict=True):
        for each in log:
            reducer.take(each)
            assert reducer.unread == 0
    assert read[0].copies.placement == read[1].copies.placement == told[0][0].event.placement
    assert read[0].traffic.replicas == read[1].traffic.replicas == 2
    assert layout_of_copies(read[0]) == layout_of_copies(read[1])


def layout_of_copies(run):
    return run.copies.holders().tolist(), run.copies.survivable()
