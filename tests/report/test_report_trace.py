"""Claims about the Chrome trace of a run."""

import json
from collections import defaultdict

import pytest

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Call, Collectives
from gemini_lab.report import chrome_trace


def _by_phase(events):
    records = defaultdict(list)
    for record in json.loads(json.dumps(chrome_trace(events)))["traceEvents"]:
        records[record["ph"]].append(record)
    return records


def _names(records):
    nodes = {m["pid"]: m["args"]["name"] for m in records["M"] if m["name"] == "process_name"}
    lanes = {
        (m["pid"], m["tid"]): m["args"]["name"] for m in records["M"] if m["name"] == "thread_name"
    }
    return nodes, lanes


def test_an_arrow_leads_from_the_node_that_sent_to_the_node_that_received(failing, make_event):
    transfer = make_event(
        "transfer", 2.0, "node-0", version=1, peer=1, sent_bytes=10, start_s=1001.8, end_s=1002.0
    )
    records = _by_phase([*failing[:8], transfer, *failing[8:]])
    nodes, _ = _names(records)
    starts = {r["id"]: r for r in records["s"]}
    ends = {r["id"]: r for r in records["f"]}

    assert starts.keys() == ends.keys()
    assert [(nodes[starts[i]["pid"]], nodes[ends[i]["pid"]]) for i in sorted(starts)] == [
        ("node-0", "node-1"),  # the replica, while training
        ("node-0", "node-2"),  # the lost shard, in the recovery
    ]
    for number, start in starts.items():
        assert ends[number]["ts"] >= start["ts"]
        assert _lies_on_a_slice(start, records["X"])
        assert _lies_on_a_slice(ends[number], records["X"])


def _lies_on_a_slice(arrow, slices):
    return any(
        (s["pid"], s["tid"]) == (arrow["pid"], arrow["tid"])
        and s["ts"] <= arrow["ts"] <= s["ts"] + s["dur"] + 0.01
        for s in slices
    )


def test_collectives_have_a_lane_of_their_own(steady):
    calls = [Call("all_gather", 4, 0.1, 0.2), Call("reduce_scatter", 8, 0.5, 0.75)]
    made = Collectives.of(calls, rank=1, epoch=1, iteration=1, began_s=1000.9)
    records = _by_phase([*steady, Entry(at_s=1002.0, node="node-1", event=made)])
    drawn = [r for r in records["X"] if r["name"] in {"all_gather", "reduce_scatter"}]

    assert [_names(records)[1][r["pid"], r["tid"]] for r in drawn] == 2 * ["collectives, rank 1"]
    assert [r["dur"] for r in drawn] == pytest.approx([1e5, 2.5e5], rel=1e-6)
    assert drawn[1]["ts"] - drawn[0]["ts"] == pytest.approx(4e5, rel=1e-6)
    assert drawn[1]["args"]["size_bytes"] == 8


def test_an_empty_log_is_an_empty_trace():
    assert chrome_trace([])["traceEvents"] == []
