"""What an agent tells of workers that were started before they are needed."""

import asyncio
from types import SimpleNamespace

import msgspec

from gemini_lab.log import events
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.recovery.messages import GoOn, StartWorkers, WorkerExited
from tests.node.test_flaws import Host, first_start


class Agent:
    """A supervisor whose words are kept."""

    def __init__(self):
        self.to_log, self.to_root, self.begun = [], [], []
        self.node = Supervisor(
            name="node-0",
            ip="127.0.0.1",
            warm=False,
            lab=SimpleNamespace(emit=self.to_log.append, pass_on=lambda _: None),
            root=SimpleNamespace(send=self.to_root.append),
            tasks=SimpleNamespace(begin=self.begun.append),
            leave=None,
            host=Host,
            bulk=object(),
        )

    @property
    def worker(self):
        return self.node.host.workers[0]

    def obey(self, order):
        asyncio.run(self.node.obey(order))


def ahead(start: StartWorkers) -> StartWorkers:
    return msgspec.structs.replace(start, joins="there:1", kept=[1, 2, 3])


def exit_of(agent):
    agent.worker.epoch, agent.worker.pid, agent.worker.output = agent.node.epoch, 1, ["why"]
    agent.worker.error = None
    agent.node._on_exit(agent.worker, 1)


def test_a_new_root_is_told_of_those_that_train_and_the_others_end():
    agent = Agent()
    agent.obey(ahead(first_start()))
    assert agent.node.joined().workers == {}
    (ending,) = agent.begun
    asyncio.run(ending)
    assert agent.node.host.workers == {}


def test_one_that_has_been_given_its_place_is_a_worker_as_any_other():
    agent, start = Agent(), first_start()
    agent.obey(ahead(start))
    agent.obey(msgspec.structs.replace(start, epoch=start.epoch + 1, kept=[0, 1, 2, 3]))
    assert isinstance(agent.worker.channel.told[-1], GoOn)
    assert agent.node.joined().workers == {0: "running"}
    assert agent.begun == []
    exit_of(agent)
    assert [type(event) for event in agent.to_log] == [events.WorkerExited]


def test_one_that_ends_before_that_is_no_end_of_a_worker_in_the_log_and_the_root_hears_of_it():
    agent = Agent()
    agent.obey(ahead(first_start()))
    exit_of(agent)
    assert agent.to_log == []
    (said,) = agent.to_root
    assert isinstance(said, WorkerExited)
    assert said.output == "why"
