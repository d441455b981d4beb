"""Machines are asked for as long as they are wanted."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gemini_lab.errors import CapacityError
from gemini_lab.lab import bringing
from gemini_lab.lab.agents import AgentCluster
from gemini_lab.node.config import LabRecord
from gemini_lab.recovery.messages import NeedNodes
from tests.launch.store_stand_in import StoreStandIn


def test_what_is_wanted_no_more_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an operator that has no machine; the root agent then wants no more than there are."""
    monkeypatch.setattr(bringing, "FIRST_RETRY_S", 0.01)
    asked: list[int] = []

    def bring(count: int) -> None:
        asked.append(count)
        raise CapacityError("no machine is left")

    async def hear() -> int:
        tasks = []
        record = LabRecord(
            identity="1", machines=2, lease_s=2.0, warm=True, threads=1, detached=None
        )
        stands_in: Any = {
            "store": StoreStandIn(),
            "operator": SimpleNamespace(token="secret", bring=bring),
            "loop": None,
            "audience": SimpleNamespace(take_note=lambda _: None),
        }
        cluster = AgentCluster(record=record, **stands_in)
        cluster._are_met.set()
        monkeypatch.setattr(cluster, "_spawn", lambda work: tasks.append(asyncio.create_task(work)))
        cluster.hear("node-0", NeedNodes(wanted=77, reason="the run is to have 77 nodes"))
        while not asked:
            await asyncio.sleep(0.01)
        cluster.hear("node-0", NeedNodes(wanted=0, reason="2 nodes are enough"))
        await asyncio.wait_for(asyncio.gather(*tasks), timeout=20)
        return len(asked)

    told = asyncio.run(hear())
    assert asked == [77] * told
