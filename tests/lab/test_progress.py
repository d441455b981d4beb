"""A run's progress: what is told, and to whom."""

import io
import sys
import threading
import time

import pytest
from lab_stand_in import NODES, printed, run_in, seated, step, tell
from made import made

from gemini_lab.lab.progress_bars import (
    CELL_LINES,
    CellBar,
    ProgressPace,
    TerminalBar,
    describe,
    laid,
    show_progress,
    words,
)
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Note,
    RecoveryStep,
    RunFailed,
    RunFinished,
    RunStarted,
    WorkerExited,
)
from gemini_lab.status_line import StatusLine, busy


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
    show_progress(run, show_output=True)
    told = capsys.readouterr()
    assert "from rank 0" in told.out
    assert "from rank 1" not in told.out


def test_a_traceback_that_rank_0_prints_in_each_try_is_shown_once(run, capsys):
    head = "Traceback (most recent call last):"
    lines = ["before", head, '  File "a.py", line 3', "KeyError: 'los'", "after"]
    other = [head, '  File "b.py", line 3', "KeyError: 'los'"]
    cut = [head, '  File "a.py", line 3']
    once_followed(run, lambda: [printed(run, 0, each) for each in (*lines, *lines, *other, *cut)])
    show_progress(run, show_output=True)
    again = ["before", "KeyError: 'los' (the same again)", "after"]
    assert capsys.readouterr().out.splitlines() == [*lines, *again, *other, *cut]


def test_a_worker_that_was_killed_is_told_of():
    gone = made(WorkerExited, rank=1, pid=7, signal="SIGKILL", output=())
    entry = Entry(at_s=0.0, node="node-1", event=gone)
    assert describe(entry) == "    rank 1 on node-1 was killed (SIGKILL)"


def test_a_traceback_that_says_that_a_peer_is_gone_is_told_in_its_last_line(run, capsys):
    error = "RuntimeError: [gloo] Read error [127.0.0.1]:52429: Connection reset by peer. GLHF!"
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3', error, "after"]
    once_followed(run, lambda: [printed(run, 0, each) for each in lines])
    show_progress(run, show_output=True)
    assert capsys.readouterr().out.splitlines() == [f"rank 0 lost its peers: {error}", "after"]


def test_failures_are_told_and_a_file_gets_no_bar(run, capsys):
    once_followed(run, lambda: tell(run, Note(text="something odd")))
    show_progress(run, total=10, show_output=True)
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


class Terminal(io.StringIO):
    """A standard error that people see."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("total", "said"), [(None, "3 iterations"), (10, "3 of 10 iterations")])
def test_a_terminals_bar_says_in_words_how_far_the_run_is(run, monkeypatch, total, said):
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = TerminalBar(total)
    tell(run, *(step(rank, 3) for rank in range(len(NODES))))
    bar.show(run)
    bar.close(run)
    last = sys.stderr.getvalue().rstrip("\n").split("\r")[-1]
    assert f"{said} · " in last
    assert ("30% |" in last) == (total is not None)


def test_the_bar_has_the_scripts_own_total_and_its_loss_once_they_are_told(run, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = TerminalBar(None)
    bar.show(run)
    tell(run, *(step(rank, 3, values={"loss": 2.0 + rank}, of=12) for rank in range(2)))
    tell(run, *(step(rank, 3, of=10**30) for rank in range(2, len(NODES))))  # no such loop
    bar.show(run)
    bar.close(run)
    last = sys.stderr.getvalue().rstrip("\n").split("\r")[-1]
    assert " 25% |" in last
    assert "3 of 12 iterations · training · loss 2.5" in last
    tell(run, seated(*NODES))
    assert run.loss is None  # what is done again tells its own


def test_a_pipe_gets_lines_and_ever_fewer_of_them(monkeypatch):
    """What runs for days would fill a file."""
    now_s = [0.0]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    line = StatusLine(lambda: now_s[0])
    for number in range(1, 1001):
        now_s[0] = float(number)
        line.show(f"{number} of 1000")
    line.end()
    said = [int(each.split()[0]) for each in sys.stderr.getvalue().splitlines()]
    assert said[:4] == [2, 6, 14, 30]
    assert 15 < len(said) < 25


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_seconds_is_shown_and_on_a_terminal_nothing_of_it_stays(
    monkeypatch, is_terminal
):
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    with busy("reading \x1b]0;what"):
        while not (shown := sys.stderr.getvalue()):
            time.sleep(0.05)
    assert "reading \\x1b]0;what ..." in shown
    assert sys.stderr.getvalue().endswith("\r\x1b[K" if is_terminal else "...\n")


def test_a_line_that_stays_goes_to_standard_output_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    line = StatusLine()
    line.show("1 of 2")
    line.write("loss 3")
    assert capsys.readouterr().out == "loss 3\n"
    assert sys.stderr.getvalue() == "1 of 2\r\x1b[K1 of 2"


def test_while_a_run_starts_it_is_told_what_it_waits_for(tmp_path):
    run = run_in(tmp_path / "other")
    job = RunStarted(name="one", script="train.py", nodes=len(NODES))
    tell(run, job)
    steps = []
    for event in (
        seated(*NODES),
        made(RecoveryStep, recovery=0, step="plan", end_s=1.0),
        RecoveryStep(recovery=0, epoch=1, step="start", start_s=1.0, end_s=2.0),
        step(0, 1),
    ):
        tell(run, event)
        steps.append(words(run, None, ProgressPace()).split(" · ")[1])
    assert steps == [
        "starting: nodes import what workers need",
        "starting: scripts run up to protect",
        "starting: first iteration",
        "training",
    ]


def test_an_iteration_is_no_news(run):
    seen = []
    run.watch(seen.append)
    tell(run, step(0, 1))
    assert describe(seen[0]) is None


def test_a_worker_that_ends_is_told_with_its_last_lines_once(run, capsys):
    gone = made(
        WorkerExited,
        rank=1,
        pid=7,
        exit_code=1,
        output=("Traceback (most recent call last):", "ValueError: no such layer"),
    )
    once_followed(run, lambda: tell(run, gone), lambda: tell(run, gone))
    show_progress(run, total=10, show_output=True)
    told = capsys.readouterr().out.splitlines()
    first = [line for line in told if "rank 1" in line]
    assert first == 2 * ["    rank 1 on node-0 ended (exit code 1): ValueError: no such layer"]
    assert [line for line in told if line.startswith("    | ")] == [
        "    | Traceback (most recent call last):",
        "    | ValueError: no such layer",
    ]


# -- below a cell ----------------------------------------------------------------------------------


class Cell:
    """What stands below a cell."""

    def display(self, data, *, raw):
        assert raw
        self.now, self.times = data, 0

    def update(self, data, *, raw):
        assert raw
        self.now, self.times = data, self.times + 1


def test_a_cells_bar_shows_how_far_the_run_is_and_only_what_is_new(run):
    cell = Cell()
    bar = CellBar(cell, 10)
    tell(run, *(step(rank, 3) for rank in range(len(NODES))))
    bar.show(run)
    bar.show(run)
    assert cell.times == 1
    assert "max=10 value=3" in cell.now["text/html"]
    assert cell.now["text/plain"].startswith("3 of 10 iterations · ")
    assert all(node in cell.now["text/plain"] for node in NODES)


def test_a_cells_bar_keeps_the_newest_lines_and_says_how_a_run_failed(run):
    cell = Cell()
    bar = CellBar(cell, None)
    for number in range(CELL_LINES + 5):
        bar.write(f"<b>line {number}</b>")
    tell(run, RunFailed(reason="no <i>script</i>"))
    bar.close(run)
    html = cell.now["text/html"]
    assert "(5 lines before)" in html
    assert "line 4&" not in html
    assert f"&lt;b&gt;line {CELL_LINES + 4}&lt;/b&gt;" in html
    assert "failed: no &lt;i&gt;script&lt;/i&gt;" in html
    assert "word-break: normal" in html  # JupyterLab's own style breaks lines within words


def test_the_rest_is_told_by_the_newest_iterations_and_not_by_what_a_failure_cost():
    pace = ProgressPace()
    assert pace.left_s(10) is None
    for second in (0, 1, 2):
        pace.note(second, float(second), is_training=True)
    assert pace.left_s(10) == pytest.approx(8.0)
    pace.note(2, 50.0, is_training=False)
    assert pace.left_s(10) is None
    pace.note(3, 60.0, is_training=True)
    pace.note(5, 61.0, is_training=True)
    assert pace.left_s(9) == pytest.approx(2.0)
    assert pace.left_s(None) is None


@pytest.mark.parametrize("begins", ["    ", "!! "])
def test_what_is_told_of_a_run_breaks_between_words_in_a_narrow_terminal(begins):
    line = f"{begins}{'carried ' * 12}protect(client_state=counts)"
    lines = laid(line, 40).split("\n")
    assert " ".join(lines).split() == line.split()
    assert max(map(len, lines)) < 40
    assert all(each.startswith("    ") for each in lines[1:])


@pytest.mark.parametrize("line", ["    | a = b" + "c" * 90, "[INFO] " + "of a script " * 9])
def test_what_others_print_is_left_as_it_is(line):
    assert laid(line, 40) == line


def test_a_file_gets_a_whole_line():
    line = f"    {'carried ' * 12}"
    assert laid(line, None) == line
