"""A machine that computes wrong does so for good, whichever workers are started on it."""

from types import SimpleNamespace

import msgspec
from made import made

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.recovery.messages import EventSaid, Fence, Flawed, StartWorkers
from tests.recovery.story import Story


class Host:
    """Workers that hear what they are told, and do nothing."""

    is_ready = True

    def __init__(self, **_):
        self.workers = {}

    def start(self, start, port=()):
        del port
        told = []
        channel = SimpleNamespace(send=lambda said, *_: told.append(said), told=told)
        self.workers[start.rank] = SimpleNamespace(
            rank=start.rank, channel=channel, status="running", is_ahead=bool(start.joins)
        )

    async def kill_all(self, *, epoch, spare=()):
        del epoch, spare
        self.workers.clear()


def told_of_flaws(node):
    return {rank: worker.channel.told for rank, worker in node.host.workers.items()}


def supervisor():
    return Supervisor(
        name="node-0",
        ip="127.0.0.1",
        warm=False,
        lab=SimpleNamespace(emit=None, note=None, pass_on=lambda _: None),
        root=SimpleNamespace(send=lambda _: None),
        tasks=SimpleNamespace(begin=None),
        leave=None,
        machine=AgentMachine(host=Host, bulk=object()),
    )


def first_start():
    starts = [one.order for one in Story().start().orders if one.to == "node-0"]
    return next(one for one in starts if isinstance(one, StartWorkers))


async def test_what_lasts_is_told_to_later_workers_too_and_what_is_once_is_not():
    node, start = supervisor(), first_start()
    once = made(Flawed, seed=1)
    lasting = Flawed(where="optimizer", is_lasting=True, seed=2)
    assert node.flaw(once) == []
    await node.obey(start)
    assert told_of_flaws(node) == {0: []}
    assert (node.flaw(once), node.flaw(lasting)) == ([0], [0])
    assert told_of_flaws(node) == {0: [once, lasting]}
    await node.obey(Fence(epoch=start.epoch + 1))
    await node.obey(msgspec.structs.replace(start, epoch=start.epoch + 1))
    assert told_of_flaws(node) == {0: [lasting]}


async def test_an_agent_tells_every_new_root_of_wrong_sums_until_its_workers_start_again():
    """What a root agent heard may be lost with it, and workers say it once."""
    node = supervisor()
    start = first_start()
    said = made(
        events.WrongSums,
        epoch=start.epoch,
        iteration=6,
        work="update",
        ranks=(2,),
        nodes=("node-2",),
        replays=2,
        version=3,
    )
    await node.obey(start)
    assert node.joined().wrong_sums is None
    entry = Entry(at_s=1.0, node="node-0", event=said)
    node._listener.hear(node.host.workers[0], EventSaid(entry=entry), [])
    assert node.joined().wrong_sums == said
    await node.obey(Fence(epoch=start.epoch + 1))
    assert node.joined().wrong_sums == said
    await node.obey(msgspec.structs.replace(start, epoch=start.epoch + 1))
    assert node.joined().wrong_sums is None
