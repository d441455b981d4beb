"""What an agent tells of its workers, and when it ends them."""

import asyncio
import errno
from types import SimpleNamespace

import msgspec
import pytest

from gemini_lab.kept import workers
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.node import supervisor
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.recovery.messages import (
    Fence,
    Fenced,
    GoOn,
    OrderFailed,
    Stand,
    Stands,
    StartWorkers,
    TakeInventory,
    WorkerEnded,
)
from tests.node.test_flaws import Host, first_start


class Agent:
    """A supervisor whose words are kept."""

    def __init__(self, bulk=None):
        self.to_log, self.to_root, self.begun = [], [], []
        self.node = Supervisor(
            name="node-0",
            ip="127.0.0.1",
            warm=False,
            lab=SimpleNamespace(
                emit=self.to_log.append, note=self.to_log.append, pass_on=lambda _: None
            ),
            root=SimpleNamespace(send=self.to_root.append),
            tasks=SimpleNamespace(begin=self.begun.append),
            leave=lambda: self.to_log.append("it leaves"),
            machine=AgentMachine(host=Host, bulk=bulk or object()),
        )

    @property
    def worker(self):
        return self.node.host.workers[0]

    def obey(self, order):
        asyncio.run(self.node.obey(order))


def ahead(start: StartWorkers) -> StartWorkers:
    return msgspec.structs.replace(start, joins="there:1", kept=[(1, 3)])


def exit_of(agent):
    agent.worker.epoch, agent.worker.pid, agent.worker.output = agent.node.epoch, 1, ["why"]
    agent.worker.error = None
    agent.node._on_exit(agent.worker, 1)


def test_a_new_root_is_told_of_those_that_train_and_the_others_end():
    agent = Agent()
    agent.obey(ahead(first_start()))
    assert agent.node.joined().workers == []
    (ending,) = agent.begun
    asyncio.run(ending)
    assert agent.node.host.workers == {}


def test_one_that_has_been_given_its_place_is_a_worker_as_any_other():
    agent, start = Agent(), first_start()
    agent.obey(ahead(start))
    agent.obey(msgspec.structs.replace(start, epoch=start.epoch + 1, kept=[(0, 3)]))
    assert isinstance(agent.worker.channel.told[-1], GoOn)
    assert agent.node.joined().workers == [0]
    assert agent.begun == []
    exit_of(agent)
    assert [type(event) for event in agent.to_log] == [events.WorkerExited]


def test_one_that_ends_before_that_is_no_end_of_a_worker_in_the_log_and_the_root_hears_of_it():
    agent = Agent()
    agent.obey(ahead(first_start()))
    exit_of(agent)
    assert agent.to_log == []
    (said,) = agent.to_root
    assert isinstance(said, WorkerEnded)
    assert said.output == "why"


@pytest.mark.parametrize("is_fenced", [True, False])
def test_workers_end_with_an_epoch_of_the_stores_unless_the_root_agent_lets_them_go_on(
    monkeypatch, is_fenced
):
    monkeypatch.setattr(supervisor, "FENCE_S", 0.0)
    agent, start = Agent(), first_start()
    agent.obey(start)
    for _ in range(2):  # it is read again and again
        agent.node.note_epoch(start.epoch + 1)
    (ending,) = agent.begun
    assert list(agent.node.host.workers) == [0]
    if is_fenced:
        agent.node.epoch = start.epoch + 1
    asyncio.run(ending)
    assert list(agent.node.host.workers) == ([0] if is_fenced else [])


@pytest.mark.parametrize("how", ["answers", "ends"])
def test_a_fence_waits_for_workers_that_live(monkeypatch, how):
    monkeypatch.setattr(workers, "STAND_S", 1e6)  # who waits it out ends by the test's limit
    agent, start = Agent(), first_start()
    agent.obey(start)
    epoch = start.epoch + 1

    def heed(order):
        assert isinstance(order, Stand)
        if how == "ends":
            agent.node.host.workers.clear()
        else:
            agent.node._kept.on_answer(Stands(rank=0, epoch=epoch))

    agent.worker.channel.send = heed
    agent.obey(Fence(epoch=epoch, keeps=True))
    (fenced,) = [said for said in agent.to_root if isinstance(said, Fenced)]
    assert fenced.kept == ([0] if how == "answers" else [])


def test_a_fence_that_a_newer_one_overtakes_ends_no_workers_of_the_newer_epoch(monkeypatch):
    """Its root agent was lost while workers were to stand still, and the next one starts others."""
    monkeypatch.setattr(workers, "STAND_S", 1e6)
    agent, start = Agent(), first_start()
    agent.obey(start)
    old, new = start.epoch + 1, start.epoch + 2

    async def overtake():
        standing = asyncio.create_task(agent.node.obey(Fence(epoch=old, keeps=True)))
        await asyncio.sleep(0)
        await agent.node.obey(Fence(epoch=new))
        await agent.node.obey(msgspec.structs.replace(start, epoch=new))
        agent.node._kept.on_answer(Stands(rank=0, epoch=old, reason="it hangs"))
        await standing

    asyncio.run(overtake())
    assert list(agent.node.host.workers) == [0]
    assert [said.epoch for said in agent.to_root if isinstance(said, Fenced)] == [new]


def test_an_agent_that_no_process_can_be_started_for_says_so_and_keeps_its_memory():
    """Otherwise its inventory never comes, and all wait for it for a quarter of an hour."""

    class Bulk:
        async def ask(self, _request, _kind, _give=list):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    agent = Agent(Bulk())
    slab = Slab.create([SlotSpec(0, 64)], chunk_bytes=64)
    agent.node.memory._slabs[0] = slab
    agent.obey(TakeInventory(epoch=1, run=7))
    (inventory,) = agent.begun
    asyncio.run(inventory)
    assert agent.node.memory.size_bytes == slab.memory.nbytes
    slab.close()
    reason = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert agent.to_root == [OrderFailed(epoch=1, order="TakeInventory", reason=reason)]
