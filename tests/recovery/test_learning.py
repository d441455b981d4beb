"""Claims about how often machines fail, as the logs of runs tell."""

import pytest
from made import made

from gemini_lab.errors import ConfigError
from gemini_lab.lab.submission import learn_from, split_runs
from gemini_lab.log import events
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.file import LOG_FILE
from gemini_lab.placement.risk import EXPECTED_DAYS
from gemini_lab.recovery.replicas import learn_risk
from gemini_lab.settings import Settings

DAY = 86400.0


def protected(rank, node, at_s=0.0):
    said = made(events.Protected, rank=rank, fingerprint="x", settings=Settings())
    return Entry(at_s=at_s, node=node, event=said)


def at(at_s, event, node="lab"):
    return Entry(at_s=at_s, node=node, event=event)


def lost(at_s, node, cause="connection"):
    return at(at_s, events.NodeLost(name=node, cause=cause), "node-0")


def killed(at_s, node, rank, *, before=True):
    """A worker's end, and the recovery that answers it, in either order."""
    end = at(
        at_s,
        made(events.WorkerExited, rank=rank, pid=1, signal="SIGKILL"),
        node,
    )
    begun = at(
        at_s,
        made(events.RecoveryStarted, epoch=2, cause="worker_exited", failed_at_s=at_s, iteration=1),
        "node-0",
    )
    return [end, begun] if before else [begun, end]


def start(*nodes, racks=None):
    begun = events.RunStarted(
        name="job", script="x.py", nodes=len(nodes), standbys=0, workers_per_node=1, racks=racks
    )
    return [at(0.0, begun), *(protected(rank, node) for rank, node in enumerate(nodes))]


def end(at_s):
    return at(at_s, events.RunFinished(iteration=9), "node-0")


def test_a_run_tells_how_long_each_node_was_there_and_how_often_it_failed():
    log = [*start("node-0", "node-1"), lost(DAY, "node-1"), end(4 * DAY)]
    risk = learn_risk(log)
    found = {name: (one.failures, one.days) for name, one in risk.nodes.items()}
    assert found == {"node-0": (0, 4.0), "node-1": (1, 1.0)}


def test_the_rate_lies_between_what_was_expected_and_what_was_seen():
    risk = learn_risk([*start("node-0"), lost(10 * DAY, "node-0"), end(10 * DAY)])
    rate = risk.nodes["node-0"].per_day(0.0, expected=0.01)
    assert rate == (0.01 * EXPECTED_DAYS + 1) / (EXPECTED_DAYS + 10)
    assert 0.01 < rate < 0.1


@pytest.mark.parametrize("before", [True, False])
def test_a_worker_that_is_killed_counts_for_its_node_once_in_whichever_order_it_is_said(before):
    log = [*start("node-0", "node-1"), *killed(DAY, "node-1", 1, before=before), end(2 * DAY)]
    risk = learn_risk(log)
    assert {name: one.failures for name, one in risk.nodes.items()} == {"node-0": 0, "node-1": 1}


def test_a_script_that_raises_and_a_node_that_was_to_go_are_no_failures():
    own = made(events.WorkerExited, pid=1, exit_code=1)
    log = [
        *start("node-0", "node-1"),
        at(1.0, own, "node-0"),
        *killed(1.0, "node-1", 1)[1:],
        at(2.0, events.NodeLeaving(name="node-1"), "node-0"),
        lost(3.0, "node-1"),
        end(DAY),
    ]
    assert learn_risk(log).failures == 0


def test_a_rack_that_goes_as_a_whole_has_failed_once_and_its_nodes_have_not():
    nodes = ["node-0", "node-1", "node-2", "node-3"]
    log = [*start(*nodes, racks=("a", "a", "b", "b"))]
    log += [lost(DAY, "node-0"), lost(DAY + 2, "node-1"), lost(2 * DAY, "node-3"), end(3 * DAY)]
    risk = learn_risk(log)
    assert {name: one.failures for name, one in risk.racks.items()} == {"a": 1}
    assert {name: one.failures for name, one in risk.nodes.items()} == {
        **dict.fromkeys(nodes, 0),
        "node-3": 1,
    }


def test_what_several_runs_tell_adds_up(tmp_path):
    for number in range(2):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        note = at(DAY / 2, events.Note(text="of no machine"))
        log = [*start("node-0", "node-1"), note, lost(DAY, "node-1"), end(2 * DAY)]
        (folder / LOG_FILE).write_bytes(b"".join(encode_entry(e) + b"\n" for e in log))
    risk = learn_from(split_runs(f"{tmp_path}/run-0, {tmp_path}/run-1"))
    found = {name: (one.failures, one.days) for name, one in risk.nodes.items()}
    assert found == {"node-0": (0, 4.0), "node-1": (2, 2.0)}


def test_a_run_that_is_not_there_is_refused_by_its_name():
    with pytest.raises(ConfigError, match="'nowhere' is no run"):
        learn_from(split_runs("nowhere"))
