"""A run's progress: what is told, and to whom."""

import threading
import time

import pytest
from test_run import finished, planned, run_in, tell

from gemini_lab.lab.progress import describe
from gemini_lab.log.events import Note, RunFinished


@pytest.fixture
def run(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, planned("node-0", "node-1"))
    return run


def once_followed(run, *acts):
    """Have `acts` happen once somebody follows the run, and the run end after them."""

    def play():
        while not run._watchers or not run._listeners:
            time.sleep(0.005)
        for act in acts:
            act()
        tell(run, RunFinished(iteration=9))

    threading.Thread(target=play).start()


def test_what_rank_0_prints_is_shown_where_it_is_wanted(run, capsys):
    said = lambda: (run.take_output(0, ["from rank 0"]), run.take_output(1, ["from rank 1"]))  # noqa: E731
    once_followed(run, said)
    run.progress(show_output=True)
    told = capsys.readouterr()
    assert "from rank 0" in told.out
    assert "from rank 1" not in told.out


def test_failures_are_told_and_a_file_gets_no_bar(run, capsys):
    once_followed(run, lambda: tell(run, Note(text="something odd")))
    run.progress(10, show_output=True)
    told = capsys.readouterr()
    assert told.out.strip() == "something odd"
    assert "iteration" not in told.err


def test_who_has_seen_enough_is_told_nothing_more(run):
    seen, heard = [], []
    end_watch, end_listen = run.watch(seen.append), run.listen(lambda *said: heard.append(said))
    tell(run, Note(text="one"))
    run.take_output(0, ["one"])
    end_watch()
    end_listen()
    tell(run, Note(text="two"))
    run.take_output(0, ["two"])
    assert [entry.event.text for entry in seen] == ["one"]
    assert heard == [(0, ["one"])]


def test_an_iteration_is_no_news(run):
    seen = []
    run.watch(seen.append)
    tell(run, finished(1))
    assert describe(seen[0]) is None
