"""Short campaigns: real faults, and everything holds."""

import json
from pathlib import Path

import pytest

from gemini_lab_bench.chaos.faults import Fault, Schedule
from gemini_lab_bench.chaos.sockets import why_not as why_no_sockets
from gemini_lab_bench.chaos.store import why_not as why_no_store

from .conftest import shell

KINDS = "worker_crash,agent_kill,node_stop,root_loss,etcd_kill,link_cut,tier_flip,owner_stop"


@pytest.mark.usefixtures("leaves_nothing")
def test_a_short_campaign_of_random_faults_holds(tmp_path):
    """Two nodes and a standby; a few of the faults that a longer campaign draws by the hundred."""
    record = tmp_path / "campaign.json"
    done = shell(
        *("chaos", "--faults", "2", "--seed", "1", "--kinds", KINDS, "--tries", "0"),
        *("--nodes", "2", "--folder", str(tmp_path / "runs"), "--json", str(record)),
        timeout_s=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(record.read_text())
    assert len(told["strikes"]) == 2
    assert any(strike["happened"] for strike in told["strikes"])
    assert told["failures"] == []


@pytest.mark.skipif(why_no_store() is not None, reason=str(why_no_store()))
@pytest.mark.skipif(why_no_sockets() is not None, reason=str(why_no_sockets()))
@pytest.mark.usefixtures("leaves_nothing")
def test_what_was_saved_outlasts_a_store_that_gives_nothing_as_a_pair_is_lost(tmp_path):
    """The store lists its files and gives none for longer than agents take to ask for them."""
    faults = (
        Fault(kind="link_flap", moment="save", after_s=0.05, rank=1, lasts_s=0.3),
        Fault(kind="tier_unread", lasts_s=8.0, times=2, pause_s=0.3),
        Fault(kind="pair_kill", moment="together"),
    )
    schedule = Schedule(seed=0, number=0, nodes=2, standbys=1, iterations=40, faults=faults)
    schedule.save(tmp_path / "schedule.json")
    record = tmp_path / "campaign.json"
    done = shell(
        *("chaos", "--replay", str(tmp_path / "schedule.json"), "--tries", "0"),
        *("--folder", str(tmp_path / "runs"), "--json", str(record)),
        timeout_s=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    strikes = json.loads(record.read_text())["strikes"]
    assert [one["happened"] for one in strikes] == [True] * 3
    log = Path(strikes[0]["run"]) / "events.jsonl"
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(
        one["kind"] == "recovery_waiting" and "persistent tier" in one["reason"] for one in told
    )
    assert any(one["kind"] == "shard_restored" and one["tier"] == "persistent" for one in told)
