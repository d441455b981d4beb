"""What a cell sees of a run: a bar until an iteration or the end, and names as they are."""

import pytest
from lab_stand_in import NODES, begin, run_in, seated, tell

from gemini_lab.errors import RunFailedError
from gemini_lab.log.events import RunFailed, RunFinished


def test_progress_returns_at_the_iteration_it_was_given_and_else_at_the_end(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
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
    tell(run, seated("<b>node", *NODES[1:]))
    html = run._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;node" in html
