"""Machines are asked for as long as they are wanted."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gemini_lab.errors import CapacityError
from gemini_lab.lab import agent_cluster
from gemini_lab.lab.agent_cluster import AgentCluster
from gemini_lab.node.start_config import LabRecord
from gemini_lab.recovery.messages import NeedNodes
from tests.launch.store_stand_in import StoreStandIn


async def test_what_is_wanted_no_more_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an operator that has no machine; the root agent then wants no more than there are."""
    monkeypatch.setattr(agent_cluster, "FIRST_RETRY_S", 0.01)
    asked: list[int] = []

    def bring(count: int) -> None:
        asked.append(count)
        raise CapacityError("no machine is left")

    tasks = []
    record = LabRecord(identity="1", machines=2, lease_s=2.0, warm=True, threads=1, detached=None)
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
    told = len(asked)
    assert asked == [77] * told


async def test_who_has_been_asked_often_is_asked_again_by_one_alone(monkeypatch) -> None:
    """Each recovery without a standby asks anew; all of them went on for as long as the run."""
    monkeypatch.setattr(agent_cluster, "FIRST_RETRY_S", 0.5)
    monkeypatch.setattr(agent_cluster, "LONGEST_RETRY_S", 0.5)
    asked: list[int] = []

    def bring(count: int) -> None:
        asked.append(count)
        raise CapacityError("no machine is left")

    stands_in: Any = {
        "store": StoreStandIn(),
        "operator": SimpleNamespace(bring=bring),
        "connect": None,
        "audience": SimpleNamespace(take_note=lambda _: None),
    }
    machines = agent_cluster.MachineRequests(count_living=lambda: 0, **stands_in)
    machines.wanted = 2
    calls = []
    for number in range(5):
        calls.append(asyncio.create_task(machines.bring()))
        while len(asked) <= number or machines.is_under_way:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # or they would ask again at once, of which one gives way
    _, waiting = await asyncio.wait(calls, timeout=1.2)
    before = len(asked)
    while len(asked) == before:
        await asyncio.sleep(0.01)
    machines.wanted = 0
    await asyncio.wait_for(asyncio.gather(*calls), timeout=20)
    assert len(waiting) == 1
    assert set(asked) == {2}
