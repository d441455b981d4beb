"""What a cell sees of a run: how far it is, until an iteration or the end, and names."""

import pytest
from full_disk import full_at
from lab_stand_in import NODES, ClusterStandIn, begin, printed, run_in, seated, step, tell
from msgspec.structs import replace

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.log.events import (
    Note,
    RecoveryFinished,
    RecoveryStarted,
    RunFailed,
    RunFinished,
)
from gemini_lab.log.file import EventLog, read_log


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


def test_a_run_is_shown_while_others_go_on_and_who_waits_says_why_it_was_given_up(tmp_path, capsys):
    run = run_in(tmp_path / "run")
    run.progress(9)
    assert not run.is_over
    tell(run, Note(text="something odd"), RunFailed(reason="no such script"))
    with pytest.raises(RunFailedError, match="no such script"):
        run.wait()
    assert "something odd" in capsys.readouterr().out


def test_what_is_said_again_of_a_recovery_is_heard_once(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
    began = RecoveryStarted(
        recovery=1, epoch=2, cause="node_lost", lost=("node-1",), failed_at_s=5.0, iteration=3
    )
    ended = RecoveryFinished(
        recovery=1, epoch=2, version=3, iteration=4, duration_s=1.5, lost_iterations=0
    )
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
    run.resize(10**6)
    assert cluster.resized == (run.number, 10**6)
    cluster.is_local = True
    with pytest.raises(ConfigError, match=r"run cannot have 1000000 nodes, 99999\d more: .* left"):
        run.resize(10**6)
    run.resize(len(NODES) - 1)
    assert cluster.resized == (run.number, len(NODES) - 1)
