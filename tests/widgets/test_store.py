"""The store and the feed: any log is taken in, a little at a time, and odd lines do no harm."""

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from gemini_lab_widgets.store import EventStore
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made
from told_runs import TRACEBACK, UNIX_S, ToldRun, with_a_bug, with_one_loss

from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.events import AnyEvent
from gemini_lab.log.file import EventLog
from gemini_lab.report import build_report
from gemini_lab.report.text import render


def stored(entries: list[Entry]) -> EventStore:
    store = EventStore()
    store.extend(entries)
    return store


def write(folder: Path, entries: list[Entry]) -> Path:
    log = EventLog(folder / "events.jsonl")
    for entry in entries:
        log.append(entry)
    log.close()
    return folder / "events.jsonl"


# -- a run in a few numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "phase"),
    [
        (ToldRun(), "starting"),
        (ToldRun().protect().iterate(1), "training"),
        (ToldRun().protect().train(1, 3).fail("node-1", known=3), "recovering"),
        (with_one_loss(), "finished"),
    ],
)
def test_the_phase_follows_the_run(told: ToldRun, phase: str) -> None:
    assert stored(told.entries).tables().status.phase == phase


def test_a_run_that_waits_for_machines_says_how_many() -> None:
    run = ToldRun().protect().train(1, 3).fail("node-1", "node-2", known=3)
    run.recover_say(events.RecoveryWaiting, missing=(1, 2))
    status = stored(run.entries).tables().status
    assert (status.phase, status.detail) == ("waiting for machines", "2 missing")


def test_a_run_that_waits_for_memory_says_for_what() -> None:
    run = ToldRun().protect().train(1, 3).fail("node-1", known=3)
    reason = "version 3 may still come back with node-1"
    run.recover_say(events.RecoveryWaiting, reason=reason)
    assert stored(run.entries).tables().status.detail == reason


def test_a_killed_worker_is_not_explained_by_what_it_or_another_one_printed() -> None:
    warning, reset = "[WARNING] scheduler called early", "RuntimeError: Connection reset by peer"
    run = ToldRun().protect().train(1, 3).exit(0, output=(reset,))
    run.say_worker(events.WorkerExited, 1, pid=7, signal="SIGKILL", output=(warning,))
    run.fail(known=3, cause="worker_exited").plan(3).resume(3)
    (row,) = stored(run.entries).tables().recoveries.rows
    assert (row.error, row.output) == ("rank 1 on node-1: SIGKILL", ())
    assert warning not in render(build_report(run.entries))


def test_the_node_of_a_worker_that_failed_is_not_said_to_train() -> None:
    run = ToldRun().protect().train(1, 3).crash(1, known=3, output=TRACEBACK)
    health = {node.name: node.health for node in stored(run.entries).tables().status.nodes}
    assert (health["node-0"], health["node-1"]) == ("recovering", "failed")
    run.plan(3)
    again = {node.name: node.health for node in stored(run.entries).tables().status.nodes}
    assert again["node-1"] == "recovering"
    over = {node.name: node.health for node in stored(with_a_bug().entries).tables().status.nodes}
    assert (over["node-0"], over["node-1"]) == ("over", "failed")


def test_an_iteration_counts_when_the_last_rank_has_finished_it() -> None:
    run = ToldRun().protect().iterate(1)
    late = run.entries.pop()
    store = stored(run.entries)
    assert store.tables().status.iteration == 0
    store.extend([late])
    assert store.tables().status.iteration == 1


def test_ages_grow_while_a_run_is_silent() -> None:
    run = ToldRun().protect().train(1, 3)
    store = stored(run.entries)
    assert store.tables().status.whole_age_s == 0
    assert store.tables(now_s=run.now_s + 7).status.whole_age_s == 7


@pytest.mark.parametrize("start_s", [0.0, UNIX_S])
def test_times_are_told_since_the_start_of_the_run(start_s: float) -> None:
    run = ToldRun(start_s=start_s).protect().train(1, 4)
    store = stored(run.entries)
    assert store.run.newest_s == run.now_s
    assert store.tables().status.now_s == run.now_s - start_s


def test_a_simulated_run_is_called_simulated() -> None:
    from gemini_lab.simulator import Outage, paper_workload, simulate
    from gemini_lab.simulator.policy import gemini

    workload = paper_workload(nodes=6, standbys=2)
    outages = [Outage(at_s=7200.0, kind="hardware", positions=(3,))]
    outcome = simulate(workload, gemini(workload), outages, days=0.2, record=True)
    store = stored(list(outcome.events))
    status = store.tables().status
    assert status.origin == "simulated"
    assert status.recoveries == len(outcome.recoveries) == 1
    assert status.iteration == int(outcome.versions)
    assert status.unread == 0
    assert store.tables().memory.rows[0].own_bytes == workload.shard_bytes


# -- logs that are odd -----------------------------------------------------------------------------


def test_a_store_without_events_has_tables() -> None:
    tables = EventStore().tables()
    assert tables.status.phase == "waiting for events"
    assert tables.status.survivable is None
    assert not tables.replicas.copies


def odd_numbers() -> st.SearchStrategy[float]:
    return st.sampled_from([math.nan, math.inf, -1.0, 1e300, 0.5])


def odd(entry: Entry, draw: st.DataObject) -> Entry:
    """The entry with one of its numbers or names replaced by one that makes no sense."""
    numbers = [
        name
        for name in entry.event.__struct_fields__
        if type(getattr(entry.event, name)) in {int, float}
    ]
    if not numbers:
        return Entry(at_s=draw.draw(odd_numbers()), node="x", event=entry.event)
    name = draw.draw(st.sampled_from(numbers))
    is_whole = isinstance(getattr(entry.event, name), int)
    value = draw.draw(st.integers(-(1 << 70), 1 << 70) if is_whole else odd_numbers())
    event: AnyEvent = msgspec.structs.replace(entry.event, **{name: value})
    return Entry(at_s=entry.at_s, node=entry.node, event=event)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_event_whatever_it_says_stops_the_store(data: st.DataObject) -> None:
    entries = list(with_one_loss().entries)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(entries) - 1))
        entries.insert(place, odd(entries[place], data))
    store = stored(entries)
    assert store.run.count == len(entries)
    assert store.tables().status.unread <= len(entries)


def test_an_event_that_makes_no_sense_is_counted() -> None:
    run = ToldRun().protect().train(1, 3)
    before = stored(run.entries).tables()
    for rank, version, duration_s in ((99, 4, 1.0), (0, -4, 1.0), (0, 4, math.nan)):
        run.say(
            made(
                events.VersionComplete,
                rank=rank,
                version=version,
                sent_bytes=0,
                duration_s=duration_s,
                next_version=5,
            )
        )
    after = stored(run.entries).tables()
    assert after.status.unread == 3
    assert before.status.whole_version == 3


@pytest.mark.parametrize(
    "event",
    [
        made(events.RecoveryPlanned, epoch=9, version=-3, members=("a",)),
        events.RecoveryStep(recovery=1, epoch=2, step="fence", start_s=math.nan, end_s=1.0),
        made(events.RecoveryStarted, recovery=-1, epoch=2, failed_at_s=math.inf),
    ],
)
def test_an_odd_event_hides_no_recovery(event: AnyEvent) -> None:
    entries = with_one_loss().entries
    odd_one = Entry(at_s=UNIX_S + 1, node="n", event=event)
    for place in (8, len(entries)):
        table = stored([*entries[:place], odd_one, *entries[place:]]).tables()
        mine = [row for row in table.recoveries.rows if row.origin == "measured here"]
        assert [row.label for row in mine] == ["recovery 1"]
        assert mine[0].down_s == stored(entries).tables().recoveries.rows[0].down_s
        assert table.status.unread == 1


def test_events_in_any_order_do_no_harm() -> None:
    entries = with_one_loss().entries
    for seed in range(20):
        mixed = list(entries)
        random.Random(seed).shuffle(mixed)
        status = stored(mixed).tables().status
        assert status.recoveries == 1
        assert status.iteration <= 12


def test_what_an_older_epoch_says_late_makes_no_version_whole() -> None:
    run = ToldRun().protect().train(1, 5).fail("node-2", known=5)
    run.plan(5, members=["node-0", "node-1", "node-4", "node-3"]).resume(5)
    run.epoch -= 1
    run.complete(6)
    assert stored(run.entries).tables().status.whole_version == 5


def test_what_a_dashboard_keeps_is_bounded() -> None:
    store = stored(ToldRun(nodes=8).protect().train(1, 500).entries)
    assert store.run.count > 8_000
    assert store.run.iterations.counted() == ()
    assert len(store.run.sums.versions) == 500


# -- logs on disk ----------------------------------------------------------------------------------


def test_a_run_is_loaded_from_its_folder_or_its_log(tmp_path: Path) -> None:
    entries = with_one_loss().entries
    log = write(tmp_path, entries)
    for path in (tmp_path, log, str(tmp_path)):
        store = EventStore.load(path)
        assert (store.run.count, store.name) == (len(entries), tmp_path.name)
        assert store.tables().recoveries == stored(entries).tables().recoveries


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "nothing")):
        EventStore.load(tmp_path / "nothing")


def test_lines_that_are_no_events_are_counted(tmp_path: Path) -> None:
    entries = ToldRun().protect().train(1, 2).entries
    good = [encode_entry(entry) for entry in entries]
    bad = [
        b"{",
        b"[]",
        b"null",
        b'"kind"',
        json.dumps({"kind": "dance", "at_s": 1, "node": "n"}).encode(),
        b'{"kind":"note"}',
        b"\x00\x01",
        b"[" * 100_000,
        b"\xff\xfe",
    ]
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"\n".join([*good[:3], *bad, *good[3:]]) + b"\n")
    store = EventStore.load(tmp_path)
    assert store.run.count == len(entries)
    assert store.run.unread == len(bad)
