"""A lab without nodes: its runs are real `Run`s whose events the test tells."""

import time

from gemini_lab.injector.scenario import Scenario
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.log.events import Event


def run_in(folder, job, *, obey=lambda _: None, stop=lambda _: None):
    folder.mkdir(parents=True)
    return Run(
        folder=folder, number=1, job=job, scenario=Scenario(), obey=obey, stop=stop, living=list,
        racks={}, workers_per_node=1, root="node-0",
    )  # fmt: skip


def tell(run, kind, **data):
    run.take(Event(kind=kind, at_s=time.time(), node="node-0", data=data))


def begin(run, members=("node-0", "node-1")):
    tell(run, "recovery_planned", members=list(members))
    for rank in range(len(members)):
        tell(run, "iteration", rank=rank, iteration=3)


class LabStandIn(Lab):
    """Keeps what was asked of it; `close` is all that ends it."""

    def __init__(self, folder):
        self.nodes, self.standbys, self.workers_per_node = 4, 1, 1
        self.folder = folder
        self.run = None
        self.root = "node-0"
        self.settings = {}
        self.orders, self.stopped = [], []
        self._is_closed = False
        self._members = {}

    def train(self, job, *, name=None, **settings):
        job.check()
        self.settings = settings
        folder = self.folder / (name or f"{job.title}-{time.monotonic_ns()}")
        self.run = run_in(folder, job, obey=self.orders.append, stop=self.stopped.append)
        return self.run

    def close(self):
        self._is_closed = True
