"""A long log is read once: the next reader goes on where the last one stopped."""

import gc
import os
import shutil
import time

import numpy as np
import pytest
from full_disk import full_at
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration
from gemini_lab.log.file import LOG_FILE, EventLog
from gemini_lab.report import follower
from gemini_lab.report.bars import BATCH, Kind
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.follower import BackgroundReader, LogFollower, keep, opened, reopened
from gemini_lab.report.pyramid import FULL


def grow(log, numbers):
    """Iterations of one rank, a second each, at the end of a log."""
    file = EventLog(log)
    for number in numbers:
        told = made(Iteration, iteration=number, duration_s=1.0, values={})
        file.append(Entry(at_s=float(number), node="node-0", event=told))
    file.close()


def read(reading):
    while entries := reading.source.poll():
        reading.run.extend(entries)
    return reading


def fill(reading, count=BATCH):
    """So many bars more, so that there is something on disk."""
    for number in range(count):
        bars = reading.run.traffic.bars
        bars.add(Kind.COLLECTIVE, number, number + 0.5, lane=0, number=number)


def covered(reading):
    """All that the pyramid says of the first seconds."""
    pyramid = reading.run.traffic.pyramid
    found = pyramid.coverage(0.0, 1000.0, least_bins=100, row_of=np.zeros(1, np.int64))
    return found.seconds.tolist(), pyramid.rows(10, 20)[0].tobytes()


@pytest.fixture
def log(tmp_path):
    log = tmp_path / "a-run" / LOG_FILE
    grow(log, range(1, 11))
    return log


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def kept(log, cache):
    """What a reader that is gone has kept of the log."""
    reading = read(reopened(log, name="a-run", folder=cache))
    fill(reading)
    assert keep(reading)
    told = covered(reading)
    del reading
    gc.collect()  # as when its process ends: nobody writes to the file any more
    return told


def test_a_log_goes_on_from_where_it_was_read_to(log, cache, kept):
    grow(log, range(11, 14))
    again = reopened(log, folder=cache)
    assert (again.run.count, again.kept, again.run.name) == (10, 10, "a-run")
    assert covered(again) == kept
    assert [entry.event.iteration for entry in again.feed.poll()] == [11, 12, 13]
    fill(again)
    assert again.run.traffic.pyramid.end == 2 * BATCH


@pytest.mark.usefixtures("kept")
def test_what_two_read_at_once_stays_apart(log, cache):
    """The second one writes beside the first one's file, and keeps nothing."""
    first, second = (reopened(log, folder=cache) for _ in range(2))
    for reading in (second, first):
        fill(reading)
    assert covered(first) == covered(second)
    assert not keep(second)
    assert keep(first)
    assert reopened(log, folder=cache).run.traffic.pyramid.end == 2 * BATCH


def spoil_log(log, _):
    text = log.read_text(encoding="utf-8")
    log.write_text(text.replace("node-0", "node-1"), encoding="utf-8")


def shorten_log(log, _):
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[:4]), encoding="utf-8")


def cut_state(_, cache):
    [state] = cache.glob("*/state")
    state.write_bytes(state.read_bytes()[:300])


def cut_blocks(_, cache):
    [blocks] = cache.glob("*/blocks")
    blocks.write_bytes(b"")


def open_to_others(_, cache):
    [state] = cache.glob("*/state")
    state.chmod(0o666)


def put_anothers(_, cache):
    """What another user put there, while the folder was open to all; it has the same bytes here."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    [state] = cache.glob("*/state")
    os.chown(state, 65534, 65534)


@pytest.mark.parametrize(
    "harm", [spoil_log, shorten_log, cut_state, cut_blocks, open_to_others, put_anothers]
)
@pytest.mark.usefixtures("kept")
def test_what_does_not_fit_is_read_anew(log, cache, harm):
    harm(log, cache)
    again = read(reopened(log, folder=cache))
    whole = read(LogFollower(type(again.run)(), type(again.feed)(log)))
    assert (again.kept, again.run.count) == (0, whole.run.count)


@pytest.mark.usefixtures("kept")
def test_a_run_that_was_moved_is_read_anew_and_needs_no_cache(log, cache, tmp_path):
    shutil.move(log.parent, tmp_path / "elsewhere")
    assert reopened(tmp_path / "elsewhere" / LOG_FILE, folder=cache).run.count == 0


@pytest.mark.usefixtures("kept")
def test_the_runs_that_nobody_looked_at_go_first(log, cache, tmp_path):
    other = tmp_path / "other" / LOG_FILE
    grow(other, range(3))
    reading = read(reopened(other, folder=cache))
    assert keep(reading, most_bytes=1)
    assert reopened(other, folder=cache).run.count == 3
    assert reopened(log, folder=cache).run.count == 0


def test_what_nobody_may_write_is_shown_all_the_same(log, tmp_path):
    """Whoever runs this may write anywhere: a file stands where the folder should be."""
    folder = tmp_path / "taken"
    folder.write_text("a file", encoding="utf-8")
    reading = read(reopened(log, folder=folder))
    fill(reading)
    assert not keep(reading)
    assert reading.run.traffic.pyramid.end == BATCH
    assert not reading.run.traffic.pyramid.trouble


def test_what_finds_no_room_leaves_nothing_half_written(log, cache):
    reading = read(reopened(log, name="a-run", folder=cache))
    fill(reading)
    with full_at(100):
        assert not keep(reading)
    assert [path.name for path in cache.glob("*/*")] == [follower.BLOCKS]


def test_a_disk_without_room_leaves_the_newest_bars_and_all_others_coarsely(tmp_path):
    class Full(FileBlocks):
        def put(self, _):
            raise OSError(28, "no space left on device")

        def get(self, number):
            raise AssertionError(number)

    reading = reopened(tmp_path / LOG_FILE, folder=tmp_path)
    run = type(reading.run)(blocks=Full())
    full = LogFollower(run, reading.feed, folder=tmp_path)
    fill(full, 6 * BATCH)
    pyramid = run.traffic.pyramid
    assert pyramid.trouble == "no space left on device"
    assert len(run.traffic.bars) < 6 * BATCH
    assert pyramid.count(0, 10) > 6 * BATCH  # nobody looks at bars that are not there
    row_of = np.zeros(1, np.int64)
    covered = pyramid.coverage(0, 6 * BATCH, least_bins=10, row_of=row_of)
    assert covered.seconds.sum() == pytest.approx(6 * BATCH / 2, rel=0.01)
    assert sum(len(cells) for each in pyramid._waiting.values() for cells in each) < FULL
    assert not keep(full)


def test_moments_of_what_was_read_before_need_no_reading(log, cache):
    grow(log, range(11, 1501))
    reading = reopened(log, name="a-run", folder=cache)
    while reading.read(limit=500):
        pass
    assert keep(reading)
    at_s = 1200.5
    way = reading.moments.way(at_s)
    assert way.go()
    again = reopened(log, name="a-run", folder=cache).moments
    assert [one.count for one in again.copies] == [one.count for one in reading.moments.copies]
    assert again.way(at_s).run.count == 1000
    assert again.way(at_s).go()


def test_a_reader_that_is_cut_off_goes_on_where_it_was(log, cache, monkeypatch):
    """What it had kept on the way is not read again."""
    monkeypatch.setattr(follower, "OFTEN", 400)
    grow(log, range(11, 1001))
    first = reopened(log, folder=cache)
    for _ in range(9):
        first.read(limit=100)
    del first  # as when its process is killed: nothing is kept any more
    gc.collect()
    again = reopened(log, folder=cache)
    assert again.run.count == 800
    assert opened(log, folder=cache).run.count == 1000


def test_a_log_is_kept_while_it_is_written(log, cache, monkeypatch):
    """And whole when its run is over: who opens it then reads nothing."""
    monkeypatch.setattr(follower, "LOOK_S", 0.01)
    monkeypatch.setattr(follower, "OFTEN_ALONGSIDE", 100)
    monkeypatch.setattr(follower, "LONG", 1)
    keeper = BackgroundReader(log, folder=cache, long_bytes=1000)
    grow(log, range(11, 501))
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s and reopened(log, folder=cache).run.count < 500:
        time.sleep(0.05)
    assert reopened(log, folder=cache).run.count == 500
    grow(log, range(501, 511))
    keeper.close()
    gc.collect()
    again = reopened(log, folder=cache)
    assert (again.run.count, again.feed.behind_bytes) == (510, 0)


def test_a_short_log_is_not_kept(log, cache):
    keeper = BackgroundReader(log, folder=cache)
    keeper.close()
    assert not cache.exists()
