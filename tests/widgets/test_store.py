"""The store and the feed: any log is taken in, a little at a time, and odd lines do no harm."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gemini_lab_widgets.store import EventStore, LogFeed
from hypothesis import given, settings
from hypothesis import strategies as st
from told_runs import UNIX_S, ToldRun, with_one_loss

from gemini_lab.errors import ConfigError
from gemini_lab.log.events import KINDS, Event
from gemini_lab.log.file import EventLog


def stored(events: list[Event]) -> EventStore:
    store = EventStore()
    store.extend(events)
    return store


def write(folder: Path, events: list[Event]) -> Path:
    log = EventLog(folder / "events.jsonl")
    for event in events:
        log.append(event)
    log.close()
    return folder / "events.jsonl"


# -- a run in a few numbers ------------------------------------------------------------------------


def test_a_finished_run_is_told_in_a_few_numbers() -> None:
    run = with_one_loss()
    status = stored(run.events).tables().status
    assert (status.run, status.origin, status.phase) == ("told", "measured here", "finished")
    assert (status.iteration, status.whole_version, status.survivable) == (12, 12, 1)
    assert status.persistent_version == 8
    assert (status.recoveries, status.lost_nodes, status.unread) == (1, 1, 0)
    health = {node.name: node.health for node in status.nodes}
    assert health == {
        "node-0": "training",
        "node-1": "training",
        "node-4": "training",
        "node-3": "training",
        "node-5": "standby",
        "node-2": "lost",
    }
    assert [node.name for node in status.nodes if node.is_root] == ["node-5"]


@pytest.mark.parametrize(
    ("told", "phase"),
    [
        (ToldRun(), "starting"),
        (ToldRun().protect().iterate(1), "training"),
        (ToldRun().protect().train(1, 3).fail("node-1", iteration=4), "recovering"),
        (with_one_loss(), "finished"),
    ],
)
def test_the_phase_follows_the_run(told: ToldRun, phase: str) -> None:
    assert stored(told.events).tables().status.phase == phase


def test_a_run_that_waits_for_machines_says_how_many() -> None:
    run = ToldRun().protect().train(1, 3).fail("node-1", "node-2", iteration=4)
    run.recover_say("recovery_waiting", missing=[1, 2], standbys=[])
    status = stored(run.events).tables().status
    assert (status.phase, status.detail) == ("waiting for machines", "2 missing")


def test_a_run_given_up_says_why() -> None:
    run = ToldRun().protect().iterate(1)
    run.say("run_failed", reason="the script ended with exit code 3", output="")
    status = stored(run.events).tables().status
    assert (status.phase, status.detail) == ("failed", "the script ended with exit code 3")


def test_an_iteration_counts_when_the_last_rank_has_finished_it() -> None:
    run = ToldRun().protect().iterate(1)
    late = run.events.pop()
    store = stored(run.events)
    assert store.tables().status.iteration == 0
    store.add(late)
    assert store.tables().status.iteration == 1


def test_ages_grow_while_a_run_is_silent() -> None:
    run = ToldRun().protect().train(1, 3)
    store = stored(run.events)
    assert store.tables().status.whole_age_s == 0
    assert store.tables(now_s=run.now_s + 7).status.whole_age_s == 7


@pytest.mark.parametrize("start_s", [0.0, UNIX_S])
def test_times_are_told_since_the_start_of_the_run(start_s: float) -> None:
    run = ToldRun(start_s=start_s).protect().train(1, 4)
    store = stored(run.events)
    assert store.newest_s == run.now_s
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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_one_event_alone_has_tables(kind: str) -> None:
    full = {"recovery": 1, "epoch": 1, "rank": 0, "iteration": 1, "version": 1, "name": "n"}
    for data in ({}, full):
        store = stored([Event(kind=kind, at_s=1.0, node="n", data=data)])
        assert store.count == 1
        assert store.tables().status.whole_version is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = sorted(
    {word.strip(" ,") for text in KINDS.values() for word in text.split(": ")[-1].split(",")}
)


@settings(max_examples=100, deadline=None)
@given(
    strangers=st.lists(
        st.tuples(
            st.sampled_from(sorted(KINDS)),
            st.dictionaries(st.sampled_from([*NAMES, "epoch", "recovery"]), JSON, max_size=6),
            st.floats() | st.integers() | st.text(max_size=3),
            st.integers(0, 60),
        ),
        max_size=6,
    )
)
def test_no_event_whatever_it_says_stops_the_store(strangers: list[Any]) -> None:
    events = list(with_one_loss().events)
    for kind, data, at_s, place in strangers:
        events.insert(place, Event(kind=kind, at_s=at_s, node="x", data=data))
    store = stored(events)
    assert store.count == len(events)
    assert store.tables().status.unread <= len(strangers) + len(events)


def test_unknown_names_in_events_are_passed_over() -> None:
    plain = with_one_loss().events
    more = [replace(event, data={**event.data, "from_the_future": {"x": [1]}}) for event in plain]
    assert stored(more).tables() == stored(plain).tables()


def test_an_event_that_makes_no_sense_is_counted() -> None:
    run = ToldRun().protect().train(1, 3)
    before = stored(run.events).tables()
    for data in ({"rank": 99, "version": 4, "duration_s": 1}, {"rank": "one"}, {}):
        run.say("version_complete", **data)
    after = stored(run.events).tables()
    assert after.status.unread == 3
    assert after.replicas == before.replicas


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("injected", {"failure": {"kind": "worker_crash"}, "recovery": "one"}),
        ("recovery_planned", {"recovery": 1, "epoch": 0, "version": [], "tier": [], "members": 1}),
        ("recovery_started", {"recovery": [], "lost": "abc"}),
        ("recovery_step", {"recovery": 1, "step": "fence"}),
        ("shard_restored", {"rank": 0, "tier": "peer", "epoch": []}),
        ("note", {}),
    ],
)
def test_an_odd_event_hides_no_recovery(kind: str, data: dict[str, Any]) -> None:
    events = with_one_loss().events
    odd = Event(kind=kind, at_s=UNIX_S + 1, node="n", data=data)
    for place in (8, len(events)):
        table = stored([*events[:place], odd, *events[place:]]).tables()
        assert table.recoveries.rows == stored(events).tables().recoveries.rows
        assert table.status.unread == 1


def test_events_in_any_order_do_no_harm() -> None:
    events = with_one_loss().events
    for seed in range(20):
        mixed = list(events)
        random.Random(seed).shuffle(mixed)
        status = stored(mixed).tables().status
        assert status.recoveries == 1
        assert status.iteration <= 12


def test_what_an_older_epoch_says_late_makes_no_version_whole() -> None:
    run = ToldRun().protect().train(1, 5).fail("node-2", iteration=6)
    run.plan(5, members=["node-0", "node-1", "node-4", "node-3"]).resume(5)
    run.epoch -= 1
    run.complete(6)
    assert stored(run.events).tables().status.whole_version == 5


def test_bulk_events_are_not_kept() -> None:
    store = stored(ToldRun(nodes=8).protect().train(1, 500).events)
    assert store.count > 8_000
    assert len(store._kept) == 2


# -- logs on disk ----------------------------------------------------------------------------------


def test_a_run_is_loaded_from_its_folder_or_its_log(tmp_path: Path) -> None:
    events = with_one_loss().events
    log = write(tmp_path, events)
    for path in (tmp_path, log, str(tmp_path)):
        store = EventStore.load(path)
        assert (store.count, store.name) == (len(events), tmp_path.name)
        assert store.tables().recoveries == stored(events).tables().recoveries


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "nothing")):
        EventStore.load(tmp_path / "nothing")


def test_a_line_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    events = with_one_loss().events
    log = write(tmp_path, events[:2])
    line = events[2].to_json().encode()
    feed = LogFeed(tmp_path)
    assert feed.poll() == events[:2]
    with log.open("ab") as file:
        file.write(line[:20])
    assert feed.poll() == []
    assert feed.behind_bytes == 20
    with log.open("ab") as file:
        file.write(line[20:] + b"\n")
    assert feed.poll() == [events[2]]
    assert feed.behind_bytes == 0


def test_a_feed_gives_no_more_than_asked_for_and_knows_what_is_left(tmp_path: Path) -> None:
    events = with_one_loss().events
    log = write(tmp_path, events)
    feed = LogFeed(log)
    first = feed.poll(limit=10)
    given_bytes = sum(len(event.to_json()) + 1 for event in first)
    assert feed.behind_bytes == log.stat().st_size - given_bytes
    rest = feed.poll()
    assert [*first, *rest] == events
    assert feed.behind_bytes == 0


def test_a_feed_waits_for_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    feed = LogFeed(tmp_path / "run" / "events.jsonl")
    assert feed.poll() == []
    assert feed.behind_bytes == 0
    events = ToldRun().events
    write(tmp_path / "run", events)
    assert feed.poll() == events


def test_a_log_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    events = with_one_loss().events
    log = write(tmp_path, events)
    feed = LogFeed(log)
    assert len(feed.poll()) == len(events)
    log.write_text(events[0].to_json() + "\n")
    assert feed.poll() == events[:1]


def test_lines_that_are_no_events_are_counted(tmp_path: Path) -> None:
    events = ToldRun().protect().train(1, 2).events
    good = [event.to_json() for event in events]
    bad = [
        "{",
        "[]",
        "null",
        '"kind"',
        json.dumps({"kind": "dance", "at_s": 1, "node": "n"}),
        '{"kind":"note"}',
        "\x00\x01",
        "[" * 100_000,
    ]
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"\xff\xfe\n" + "\n".join([*good[:3], *bad, *good[3:]]).encode() + b"\n")
    store = EventStore.load(tmp_path)
    assert store.count == len(events)
    assert store.unread == len(bad) + 1
