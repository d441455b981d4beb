"""One store for all visitors, fed from the newest log."""

import gc
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gemini_lab_widgets import library
from gemini_lab_widgets.library import SLICE, ShownRun

from gemini_lab.report import follower as log_follower
from gemini_lab_bench.benches import long_run

LINE = '{"kind":"note","at_s":1.0,"node":"lab","text":"one"}\n'


def pulled(follower: ShownRun, until: Callable[[], bool]) -> None:
    """Pull as pages do, again and again, until something holds."""
    while not until():
        follower.pull()


def test_nothing_is_shown_before_there_is_a_run() -> None:
    follower = ShownRun(lambda: None)
    follower.pull()
    assert follower.log is None
    assert follower.name == ""
    assert follower.tables().status.iteration == 0


@pytest.mark.timeout(60)
def test_a_long_log_is_taken_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        library, "WHILE_S", 0.0
    )  # else a pull takes more than one, if they are quick
    log = tmp_path / "long" / "events.jsonl"
    log.parent.mkdir()
    log.write_text(LINE * (SLICE + 1) + "no event\n")
    follower = ShownRun(lambda: log)
    follower.pull()
    assert follower.store.run.count == SLICE
    assert follower.is_catching_up
    assert follower.behind_bytes > 0
    pulled(follower, lambda: not follower.is_catching_up)
    assert follower.store.run.count == SLICE + 1
    assert follower.store.run.unread == 1
    assert follower.behind_bytes == 0


@pytest.mark.timeout(60)
def test_another_log_begins_another_store(tmp_path: Path) -> None:
    logs = []
    for name in ("first", "second"):
        log = tmp_path / name / "events.jsonl"
        log.parent.mkdir()
        log.write_text(LINE)
        logs.append(log)
    newest = logs[:1]
    follower = ShownRun(lambda: newest[-1])
    pulled(follower, lambda: follower.store.run.count == 1)
    first, before = follower.store, follower.state
    newest.append(logs[1])
    pulled(follower, lambda: follower.name == "second")
    assert follower.store is not first
    assert follower.state != before
    assert follower.store.run.count == 1


def test_tables_are_made_once_for_all_pages(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(json.loads(LINE)) + "\n")
    follower = ShownRun(lambda: log)
    follower.pull()
    assert follower.name == "log"
    assert follower.tables() is follower.tables()


@pytest.mark.timeout(60)
def test_a_page_says_how_far_a_first_reading_is_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is ended while it reads: what it has read is not read again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "WHILE_S", 0.0)
    monkeypatch.setattr(library, "SURE_S", 0.0)
    monkeypatch.setattr(library, "MUCH_BYTES", 1)
    monkeypatch.setattr(log_follower, "LONG", SLICE // 2)
    log = tmp_path / "long" / "events.jsonl"
    long_run.write(log, lines=3 * SLICE, calls=1)
    first = ShownRun(lambda: log)
    first.pull()
    assert first.is_catching_up
    how_far, disk = first.progress.split("; ")
    assert re.fullmatch(r"3\d% is shown, [\d.]+ MiB to go, about .*", how_far)
    assert re.fullmatch(r"about [\d.]+ MiB is kept in .*/cache/gemini_lab", disk)
    first.close()
    begun = first.store.run.count
    del first
    gc.collect()
    again = ShownRun(lambda: log)
    again.pull()
    assert begun < again.store.run.count < 3 * SLICE
    pulled(again, lambda: not again.is_catching_up)
    assert again.store.run.count == 3 * SLICE - 1  # the first line tells how the log is written


def test_a_page_says_why_a_part_is_coarse(tmp_path: Path) -> None:
    log = tmp_path / "long" / "events.jsonl"
    long_run.write(log, lines=50, calls=1)
    follower = ShownRun(lambda: log)
    follower.pull()
    assert follower.trouble == ""
    pyramid = follower.store.traffic.pyramid
    assert pyramid is not None
    pyramid.trouble = "No space left on device"
    assert "is full (No space left on device)" in follower.trouble


@pytest.mark.timeout(60)
def test_a_page_passes_over_a_log_beside_its_own_that_nobody_can_read(tmp_path: Path) -> None:
    """A FIFO that nobody writes to held the page for ever."""
    os.mkfifo(tmp_path / "events.jsonl")
    assert library.job_of(tmp_path / "events.jsonl") is None
