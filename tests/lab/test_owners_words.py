"""What a user asks of a run reaches its root agent, whatever owners' clocks say."""

import time
from types import SimpleNamespace

import msgspec
import pytest

from gemini_lab.lab.agent_cluster import AgentCluster
from gemini_lab.node.start_config import LabRecord
from gemini_lab.recovery.requests import (
    DrainNode,
    GiveUpProgress,
    ResizeRun,
    RewindRun,
    SaveVersion,
    StopRun,
    StoredRequest,
)
from tests.launch.store_stand_in import StoreStandIn

HOUR_NS = 3600 * 10**9
ASKED = [
    StopRun(),
    SaveVersion(),
    GiveUpProgress(),
    RewindRun(steps=2),
    ResizeRun(nodes=3),
    DrainNode(node="node-2"),
]


@pytest.mark.parametrize("request_", ASKED)
def test_a_request_counts_although_the_clock_of_the_last_owner_was_ahead(request_):
    """The root agent ignores a number that is not above the last one."""
    ahead = time.time_ns() + HOUR_NS
    store = StoreStandIn(job="whatever")
    for one in ASKED:
        store.keys[one.key] = StoredRequest(job=1, number=ahead, request=one).to_text()
    store.lost_answers = 1  # written again, it is the same request
    lab = AgentCluster(
        store=store,
        record=LabRecord(
            identity="1", machines=2, lease_s=2.0, warm=True, threads=1, detached=None
        ),
        operator=SimpleNamespace(token="secret"),
        loop=None,
        audience=None,
    )
    lab.ask(1, request_)
    found = msgspec.json.decode(store.keys[request_.key], type=StoredRequest)
    assert found == StoredRequest(job=1, number=ahead + 1, request=request_)
