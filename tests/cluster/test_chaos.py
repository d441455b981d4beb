"""A short campaign: random real faults, and everything holds."""

import json

import pytest

from .conftest import shell

KINDS = "worker_kill,agent_kill,node_stop,root_kill,etcd_kill,link_cut,tier_flip,owner_stop"


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
