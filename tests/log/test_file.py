"""Claims about logs on disk: of this schema, of the first one, and while they grow."""

import json
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from full_disk import full_at

from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry, EventError, encode_entry
from gemini_lab.log.file import EventLog, LogFeed, LogTakenError, SchemaError, read_log, require_log

HERE = Path(__file__).parent
RUN = HERE / "run.jsonl"
SIMULATION = HERE / "simulated.jsonl"


def note(number, at_s=1.0):
    return Entry(at_s=at_s, node="lab", event=events.Note(text=f"remark {number}"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def write(path, *entries):
    log = EventLog(path)
    for entry in entries:
        log.append(entry)
    log.close()


def test_a_log_begins_with_its_schema_at_its_first_moment(path):
    write(path, note(1, at_s=7.0), note(2, at_s=8.0))
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {"at_s": 7.0, "node": "lab", "kind": "log_opened", "schema": events.SCHEMA}


def test_what_was_appended_is_read_back_in_order_also_after_a_second_opening(path):
    write(path, note(1), note(2))
    write(path, note(3))
    assert list(read_log(path)) == [note(1), note(2), note(3)]


def test_a_last_line_that_was_cut_short_is_left_out(path):
    write(path, note(1), note(2))
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_log(path)) == [note(1)]


def test_who_reads_a_long_log_can_see_how_far_that_is(path):
    write(path, note(1), note(2), note(3))
    sizes: list[int] = []
    assert list(read_log(path, seen=sizes.append))
    assert sizes == [len(line) for line in path.read_bytes().splitlines(keepends=True)]


def test_a_thread_that_settles_disturbs_none_that_appends(path):
    """A lab takes entries on one thread and settles on another."""
    log, most, is_done = EventLog(path), 1000, threading.Event()

    def settle():
        while not is_done.is_set():
            log.settle()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor() as threads:
        settling = [threads.submit(settle) for _ in range(2)]
        try:
            for number in range(most):
                log.append(note(number))
        finally:
            is_done.set()
            sys.setswitchinterval(before)
    assert [each.result() for each in settling] == [None, None]
    log.close()
    assert list(read_log(path)) == [note(number) for number in range(most)]


# -- a full disk -----------------------------------------------------------------------------------


def test_what_a_full_disk_does_not_take_is_written_in_order_when_it_does(path):
    log = EventLog(path)
    log.append(note(1))
    with full_at(path.stat().st_size + 20):
        assert log.append(note(2))
        assert log.append(note(3))
        assert (log.waiting, type(log.trouble)) == (2, OSError)
        assert list(read_log(path)) == [note(1)]
        assert path.read_bytes().endswith(b"\n")
        with pytest.raises(OSError, match="too large"):
            log.settle()
    log.settle()
    assert (log.waiting, log.trouble) == (0, None)
    log.append(note(4))
    log.close()
    assert list(read_log(path)) == [note(number) for number in (1, 2, 3, 4)]


def test_a_log_that_a_full_disk_has_no_room_to_take_over_stays_as_it_is_alone(path):
    """Each try that left its part of a copy would take room from the next one."""
    log = EventLog(path)
    for number in range(100):
        log.append(note(number))
    log.close()
    told = path.read_bytes()
    with full_at(len(told) // 2), pytest.raises(OSError, match="too large"):
        EventLog.taken_over(path)
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == told
    EventLog.taken_over(path).close()
    assert path.read_bytes() == told


def test_a_log_that_begins_on_a_full_disk_says_its_schema_first_all_the_same(path):
    log = EventLog(path)
    with full_at(10):
        log.append(note(1))
        log.append(note(2))
    log.close()
    assert list(read_log(path)) == [note(1), note(2)]
    assert path.read_bytes().count(b"log_opened") == 1


def test_what_is_lost_at_the_end_is_an_error(path):
    log = EventLog(path)
    with full_at(10):
        log.append(note(1))
        with pytest.raises(OSError, match="too large"):
            log.close()
    assert log.waiting == 2


@pytest.mark.timeout(60)
def test_a_fifo_that_nobody_writes_is_refused_before_it_is_read(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(ConfigError, match="no regular file"):
        list(read_log(tmp_path / "events.jsonl"))


def test_a_bad_line_is_named_with_its_number(path):
    write(path, note(1))
    with path.open("ab") as log:
        log.write(b'{"at_s":1.0,"node":"lab","kind":"note"}\n')
    with pytest.raises(EventError, match=r"line 3: .*'note'.*`text`"):
        list(read_log(path))


@pytest.mark.parametrize("read", [lambda path: list(read_log(path)), lambda p: LogFeed(p).poll()])
def test_a_log_of_a_newer_schema_is_refused_and_says_which(path, read):
    path.parent.mkdir()
    opened = Entry(at_s=1.0, node="lab", event=events.LogOpened(schema=events.SCHEMA + 1))
    path.write_bytes(encode_entry(opened) + b"\n")
    with pytest.raises(SchemaError, match=f"schema {events.SCHEMA + 1}"):
        read(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"import torch\n", "begins with 'import torch'"),
        (b"step,loss\n1,2.5\n" * 9, "begins with 'step,loss'"),
        (b'{"gemini": {"replicas": 2}}\n', "which is no event"),
        (b"\x7fELF" + bytes(100), "which is no event"),
        (b"[1, 2, 3]", "which is no event"),
    ],
)
def test_a_file_that_is_no_log_is_refused_with_what_it_is(tmp_path, content, said):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigError, match=f"file is no log of a run: .*{said}.*; name a run's"):
        require_log(tmp_path / "file")


def test_a_log_is_one_before_its_first_event_and_with_a_line_that_was_damaged(path):
    path.parent.mkdir()
    path.touch()
    assert require_log(path) == path
    write(path, note(1), note(2))
    path.write_bytes(b"#" + path.read_bytes()[1:])
    assert require_log(path) == path
    for log in (RUN, SIMULATION):
        assert require_log(log) == log


def test_a_log_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        require_log(tmp_path)


def test_a_feed_gives_each_entry_once_and_waits_for_a_whole_line(path):
    feed = LogFeed(path)
    assert feed.poll() == []
    write(path, note(1), note(2))
    assert feed.poll() == [note(1), note(2)]
    line = encode_entry(note(3)) + b"\n"
    with path.open("ab") as log:
        log.write(line[:10])
        log.flush()
        assert feed.poll() == []
        assert feed.behind_bytes == 10
        log.write(line[10:])
    assert feed.poll() == [note(3)]
    assert feed.behind_bytes == 0


def test_a_feed_gives_no_more_than_it_was_asked_for(path):
    write(path, *(note(number) for number in range(5)))
    feed = LogFeed(path)
    assert [len(feed.poll(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_feed_counts_lines_that_are_no_events_and_goes_on(path):
    path.parent.mkdir()
    path.write_bytes(b"odd\n\n")
    write(path, note(1))
    with path.open("ab") as log:
        log.write(b'{"kind":"note"}\n\xff\n')
    write(path, note(2))
    feed = LogFeed(path.parent)
    # EventLog begins no second log in a file that has content, so this one says no schema.
    assert feed.poll() == [note(1), note(2)]
    assert feed.bad_lines == 3


def test_a_feed_begins_anew_with_a_log_that_was_begun_anew(path):
    shutil.copyfile(SIMULATION, (path.parent.mkdir(), path)[1])
    feed = LogFeed(path)
    assert feed.poll() == [*read_log(SIMULATION)]
    path.unlink()
    write(path, note(1))
    assert feed.poll() == [note(1)]


def test_a_log_that_is_taken_over_goes_on_where_nobody_else_writes(path):
    """A machine that had stopped, and whose place was taken, writes where nobody reads."""
    left = EventLog(path)
    left.append(note(1))
    with path.open("ab") as log:
        log.write(b'{"at_s": cut short')
    taken = EventLog.taken_over(path)
    left.append(note(9))
    assert taken.append(note(2))
    assert list(read_log(path)) == [note(1), note(2)]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_is_said_again_after_a_log_was_taken_over_stands_there_once(path):
    write(path, note(1), note(2))
    taken = EventLog.taken_over(path)
    assert [taken.append(said) for said in (note(2), note(3), note(1))] == [False, True, False]
    assert list(read_log(path)) == [note(1), note(2), note(3)]


def test_a_writer_whose_log_was_taken_over_settles_nothing_more(path):
    left = EventLog(path)
    left.append(note(1))
    left.settle()
    taken = EventLog.taken_over(path)
    left.append(note(2))
    with pytest.raises(LogTakenError):
        left.settle()
    taken.append(note(3))
    taken.settle()
    assert list(read_log(path)) == [note(1), note(3)]


@pytest.mark.parametrize("what", ["folder", "log"])
def test_a_log_that_is_removed_while_it_is_written_is_put_back_with_all_that_it_had(path, what):
    log = EventLog(path)
    log.append(note(1))
    log.settle()
    shutil.rmtree(path.parent) if what == "folder" else path.unlink()
    log.append(note(2))
    log.settle()
    assert log.removals == 1
    log.append(note(3))
    log.settle()
    log.close()
    assert list(read_log(path)) == [note(1), note(2), note(3)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
