"""What a cell sees of a run: a bar until an iteration or the end, and names as they are."""

from pathlib import Path

import pytest

from gemini_lab import Job, Run, Scenario
from gemini_lab.errors import RunFailedError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Event, Iteration, RecoveryPlanned, RunFailed, RunFinished


def run_in(folder: Path) -> Run:
    """A run that no lab stands behind."""
    folder.mkdir()
    return Run(
        folder=folder, number=1, job=Job(script="train.py"), scenario=Scenario(),
        obey=lambda _: None, stop=lambda _: None, living=list, racks={}, workers_per_node=1,
        root=None,
    )  # fmt: skip


def tell(run: Run, event: Event) -> None:
    run.take(Entry(at_s=1.0, node="node-0", event=event))


def planned(*members: str) -> RecoveryPlanned:
    return RecoveryPlanned(
        recovery=0, epoch=1, version=None, tier="start", members=members, sources=(),
        transfers=(), reason="a new job",
    )  # fmt: skip


def finished(iteration: int) -> Iteration:
    return Iteration(rank=0, epoch=1, iteration=iteration, duration_s=0.1, waited_s=0.0)


def test_progress_returns_at_the_iteration_it_was_given_and_else_at_the_end(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, planned("node-0"))
    tell(run, finished(3))
    assert run.progress(9, until=3) is run
    assert not run.is_over
    tell(run, RunFinished(iteration=9))
    assert run.progress(9).is_over


def test_progress_says_why_a_run_was_given_up(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, RunFailed(reason="no such script"))
    with pytest.raises(RunFailedError, match="no such script"):
        run.progress()


def test_a_hostile_name_stays_text_in_a_notebook(tmp_path):
    run = run_in(tmp_path / "<script>alert(1)<")
    tell(run, planned("<b>node"))
    html = run._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;node" in html
