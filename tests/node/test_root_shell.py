"""What the acting root agent says where it cannot act."""

import asyncio
import time
from contextlib import suppress
from importlib.metadata import EntryPoint

import pytest
from made import made
from membership_stand_in import StoreStandIn, shell_in

from gemini_lab.job import Job
from gemini_lab.log.events import Note, RecoveryStarted, RunFailed
from gemini_lab.node import agent_machine
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import StoreFullError
from gemini_lab.node.membership import RootRecord
from gemini_lab.node.root_shell import Deposed, RootShell, successor
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.protocol import Emit, JobSubmitted
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats


class FullStore:
    """A membership whose store takes nothing."""

    poll_s = 0.001

    def __init__(self) -> None:
        self.asked = 0

    async def write_as_root(self, _record, _values) -> bool:
        self.asked += 1
        raise StoreFullError("etcd takes nothing more")


async def test_a_root_agent_says_once_that_the_store_takes_nothing_more():
    store, said = FullStore(), []
    shell = RootShell(
        membership=store,
        record=RootRecord(name="node-0", address="127.0.0.1:1", term=1),
        token="secret",
        emit=said.append,
        request_nodes=lambda _wanted, _reason: None,
        machine=AgentMachine(),
    )
    acting = asyncio.create_task(shell.run())
    while store.asked < 3:
        await asyncio.sleep(0.001)
    acting.cancel()
    with suppress(asyncio.CancelledError):
        await acting
    assert said == [Note(text="etcd takes nothing more; no failure is answered until then")]


async def test_a_root_agent_whose_lease_ran_out_while_the_store_was_away_takes_its_place_again():
    """As nobody else has it: training would stand still until another one is elected."""
    store = StoreStandIn()
    membership, shell = await shell_in(store)
    del store.keys["root"]
    membership._lease = None  # another one is to come
    writing = asyncio.create_task(shell._write({"state": "new"}))
    await asyncio.sleep(0.5)
    assert "root" not in store.keys  # it would stand for ever
    await membership.register()
    await writing
    assert store.keys["root"] == shell.record.to_text()
    assert store.keys["state"] == "new"


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_root_agent_that_was_replaced_takes_no_place_again(is_there):
    """Also where the next one is gone by now."""
    store = StoreStandIn()
    _, shell = await shell_in(store)
    next_one = RootRecord(name="node-1", address="node-1:1", term=shell.record.term + 1)
    store.keys |= {"root": next_one.to_text(), "term": str(next_one.term)}
    if not is_there:
        del store.keys["root"]
    with pytest.raises(Deposed):
        await shell._write({"state": "new"})
    assert "state" not in store.keys


async def test_moments_are_right_where_the_root_agents_clock_was_set():
    """They follow a clock that nobody sets, and what its agent says of them follows the other."""
    said, set_by_s = [], [0.0]

    def wall_s():
        return time.time() + set_by_s[0]

    _, shell = await shell_in(StoreStandIn(), emit=said.append, wall_s=wall_s)
    for set_by_s[0] in (0.0, 1882.0):
        started = made(RecoveryStarted, epoch=2, cause="c", failed_at_s=shell._clock(), iteration=3)
        await shell._carry_out([Emit(event=started)])
        assert abs(said[-1].failed_at_s - wall_s()) < 10


@pytest.mark.parametrize("value", ["", "gemini_lab.no_such_module:root", "gemini_lab.job:no_such"])
def test_a_run_ends_if_its_root_agents_node_cannot_make_the_users_own(monkeypatch, value):
    """A root agent that failed instead would be elected again, and no run would end."""
    found = [EntryPoint("root_agent", value, agent_machine.OWN_ROOTS)] if value else []
    monkeypatch.setattr(agent_machine, "entry_points", lambda **_: found)
    order = JobOrder(
        number=1,
        run="run",
        job=Job(script="job.py", cwd="/"),
        seats=Seats(nodes=2),
        settings={},
        root="packed",
    )
    root = successor(RootAgent(state=RootState(), at_s=0.0), order.root, at_s=1.0)
    done = root.handle(JobSubmitted(at_s=1.0, order=order))
    (failed,) = [one.event for one in done if isinstance(one, Emit)]
    assert isinstance(failed, RunFailed)
    assert "offers no 'root_agent'" in failed.reason
    assert type(successor(root, "", at_s=2.0)) is RootAgent
