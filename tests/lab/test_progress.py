"""A run's progress: what is told, and to whom."""

import threading
import time

import pytest
from lab_stand_in import NODES, printed, run_in, seated, step, tell

from gemini_lab.lab.progress import describe
from gemini_lab.log.events import Note, RunFinished, WorkerExited


@pytest.fixture
def run(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, seated(*NODES))
    return run


def once_followed(run, *acts):
    """Have `acts` happen once somebody follows the run, and the run end after them."""

    def play():
        while not run._watchers or not run._listeners:
            time.sleep(0.005)
        for act in acts:
            act()
        tell(run, RunFinished(iteration=1))

    threading.Thread(target=play).start()


def test_what_rank_0_prints_is_shown_where_it_is_wanted(run, capsys):
    said = lambda: (printed(run, 0, "from rank 0"), printed(run, 1, "from rank 1"))  # noqa: E731
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
    printed(run, 0, "one")
    end_watch()
    end_listen()
    tell(run, Note(text="two"))
    printed(run, 0, "two")
    assert [entry.event.text for entry in seen] == ["one"]
    assert heard == [(0, ["one"])]


def test_an_iteration_is_no_news(run):
    seen = []
    run.watch(seen.append)
    tell(run, step(0, 1))
    assert describe(seen[0]) is None


def test_a_worker_that_ends_is_told_with_its_last_lines_once(run, capsys):
    gone = WorkerExited(
        rank=1,
        epoch=1,
        pid=7,
        signal=None,
        exit_code=1,
        output=("Traceback (most recent call last):", "ValueError: no such layer"),
    )
    once_followed(run, lambda: tell(run, gone), lambda: tell(run, gone))
    run.progress(10, show_output=True)
    told = capsys.readouterr().out.splitlines()
    first = [line for line in told if "rank 1" in line]
    assert first == 2 * ["    rank 1 on node-0 ended (exit code 1): ValueError: no such layer"]
    assert [line for line in told if line.startswith("    | ")] == [
        "    | Traceback (most recent call last):",
        "    | ValueError: no such layer",
    ]
