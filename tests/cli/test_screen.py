"""The screen of `status` and `top` says what an operator asks first, in a terminal of any width."""

import io

import pytest
from rich.console import Console
from told_runs import ToldRun, with_a_bug, with_a_drain, with_one_loss

from gemini_lab.cli.screen import Beside, screen
from gemini_lab.log import events
from gemini_lab.report.reducer import FOR_METRICS, RunReducer


def shown(
    run: ToldRun,
    *,
    later_s: float = 0.0,
    width: int = 100,
    entries: int | None = None,
    is_ownerless: bool = False,
    folder: str = "/runs/one",
):
    reducer = RunReducer(name="one", keep=FOR_METRICS)
    reducer.extend(run.entries[:entries])
    text = io.StringIO()
    console = Console(file=text, width=width)
    beside = Beside(words={"folder": folder}, is_ownerless=is_ownerless)
    console.print(screen(reducer, (reducer.newest_s or 0.0) + later_s, beside))
    return text.getvalue()


def line(text: str, name: str) -> str:
    return next(one for one in text.splitlines() if one.startswith(name))


def test_a_healthy_run_says_how_old_its_versions_are_and_what_may_be_lost():
    run = ToldRun().protect().train(1, 6).persist(3)
    text = shown(run, later_s=5.0)
    assert "training" in line(text, "phase")
    assert line(text, "iteration").split()[1] == "6,"
    assert "any node may be lost" in line(text, "in memory")
    assert "version 3" in line(text, "persistent")
    assert "%" in line(text, "time")
    assert "/runs/one" in line(text, "folder")
    assert line(text, "node-0").split()[1:3] == ["training", "0"]


def test_ranks_that_differ_are_called_by_their_place():
    places = ["pp 0, tp 0", "pp 0, tp 1", "pp 1, tp 0", "\x1b[31m"]
    run = ToldRun(nodes=2, per_node=2).protect(places)
    text = shown(run.train(1, 2))
    assert "0-1 (pp 0, tp 0; pp 0, tp 1)" in line(text, "node-0")
    assert "2-3 (pp 1, tp 0; " in line(text, "node-1")
    assert "\x1b" not in text


def test_a_run_whose_owner_was_killed_is_not_said_to_train_and_to_have_versions():
    run = ToldRun().protect().train(1, 6)
    text = shown(run, later_s=2_820.0, is_ownerless=True)
    ended = "training when its log ended, 47 min 0 s ago"
    assert line(text, "phase").split(maxsplit=1)[1].strip() == f"unknown: {ended}"
    assert "may be lost" not in text
    assert "version 6 when its log ended" in line(text, "in memory")
    assert "STATE THEN" in text
    assert "ago" not in line(text, "started")  # it did not go on for these 47 minutes


def test_a_log_that_still_tells_is_believed_where_its_owner_is_not_seen_from_here():
    """A folder that machines share shows a run of another machine's loopback, too."""
    text = shown(ToldRun().protect().train(1, 6), later_s=5.0, is_ownerless=True)
    assert line(text, "phase").split() == ["phase", "training"]
    assert "any node may be lost" in text


def test_a_run_that_has_not_called_protect_does_not_say_that_it_has_no_tier():
    assert "not known" in line(shown(ToldRun()), "persistent")


def test_what_the_script_logged_last_is_there_and_no_step_of_a_start_that_is_over():
    run = ToldRun()
    run.say_root(events.RecoveryStep, recovery=0, step="start", end_s=1.0)
    assert "starting (first iteration)" in line(shown(run), "phase")
    run.protect().iterate(1, losses=True)
    text = shown(run)
    assert line(text, "phase").split() == ["phase", "training"]
    assert line(text, "logged").split()[1] == "loss"


def test_a_recovered_run_lists_its_recoveries():
    text = shown(with_one_loss())
    assert "1 recovery" in text
    assert "node lost" in text


def test_a_path_that_is_longer_than_a_line_is_there_in_full():
    folder = "/scratch/" + "very-long-name/" * 8 + "one"
    text = shown(ToldRun().protect().train(1, 2), width=60, folder=folder)
    assert folder in "".join(one.strip() for one in text.splitlines())


def test_a_run_that_is_over_promises_nothing_of_its_memory():
    text = shown(ToldRun().protect().train(1, 6).finish(6))
    assert line(text, "in memory").split(maxsplit=2)[2].strip() == "version 6 when it ended"


def test_a_failed_run_says_why():
    text = shown(with_a_bug())
    assert "failed" in line(text, "phase")
    assert "ValueError" in text


def test_a_node_that_is_to_leave_says_so_until_its_machine_may_be_taken():
    run = with_a_drain()
    waits = next(
        n for n, one in enumerate(run.entries) if isinstance(one.event, events.DrainWaiting)
    )
    text = shown(run, entries=waits + 1)
    assert "training, to leave" in line(text, "node-2")
    assert "node-2 is to leave: no standby is there" in text
    text = shown(run)
    assert line(text, "node-2").split()[1] == "drained"
    assert "node-2 has no ranks left: its machine may be taken" in text


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("entries", [0, 1, 2, 5, 20, None])
def test_it_fits_its_terminal_at_any_moment_of_a_run(width, entries):
    text = shown(with_a_bug(), width=width, entries=entries)
    assert max(map(len, text.splitlines())) <= width
