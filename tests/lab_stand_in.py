"""A lab without processes: its nodes are names, and a test tells its runs' events."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.injector.orders import Order
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.loop import LoopThread
from gemini_lab.lab.node_contracts import Audience, NodeCluster
from gemini_lab.lab.run import Run, RunOrigin
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent, Iteration, RecoveryPlanned
from gemini_lab.log.file import EventLog
from gemini_lab.recovery.messages import JobOrder, OutputSaid, TakeStacks
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.seats import Seats, node_name

NODES: Final = tuple(node_name(number) for number in range(LabConfig.nodes))


class ClusterStandIn:
    """Implements `NodeCluster`: keeps what is asked of it."""

    def __init__(self, members: Sequence[str] = NODES) -> None:
        self.members = self.ready = self.living = members
        self.root: str | None = "node-0"
        self.etcd = ("127.0.0.1:2379",)
        self.is_local = False
        self.audience: Audience | None = None
        self.brought: list[int] = []
        self.jobs: list[JobOrder] = []
        self.orders: list[Order] = []
        self.asked: list[tuple[int, AnyRequest]] = []
        self.looked_at: list[tuple[list[str], TakeStacks]] = []
        self.is_closed = False

    def start(self, _config: LabConfig, _loop: LoopThread, audience: Audience) -> NodeCluster:
        self.audience = audience
        return self

    def bring(self, machines: int) -> None:
        self.brought.append(machines)

    def submit(self, job: JobOrder) -> None:
        self.jobs.append(job)

    def obey(self, order: Order) -> None:
        self.orders.append(order)

    def take_stacks(self, nodes: Sequence[str], order: TakeStacks) -> None:
        self.looked_at.append(([*nodes], order))

    def ask(self, number: int, request: AnyRequest) -> None:
        self.asked.append((number, request))

    def close(self) -> None:
        self.is_closed = True


def lab_on(cluster: ClusterStandIn, folder: Path) -> Lab:
    return Lab(folder=folder, start=cluster.start)


def run_in(
    folder: Path,
    job: Job | None = None,
    log: EventLog | None = None,
    *,
    owner: ClusterStandIn | None = None,
    hold_at: int | Sequence[int] = (),
) -> Run:
    """A run that no lab stands behind; it takes over `log`, if there is one."""
    folder.mkdir(parents=True, exist_ok=log is not None)
    origin = RunOrigin(
        folder=folder,
        number=1,
        job=job or Job(script="train.py"),
        seats=Seats(nodes=len(NODES)),
        holds=HoldingPoints.at(hold_at).below(folder),
    )
    return Run(origin, owner or ClusterStandIn(), log)


def tell(run: Run | None, *said: AnyEvent) -> None:
    """Have node-0 say these events."""
    assert run is not None
    for event in said:
        run.take(entry(event))


def printed(who: Run | Audience, rank: int, line: str, *, epoch: int = 1) -> None:
    """Have the worker of a rank print a line, on the node of that number."""
    said = OutputSaid(rank=rank, epoch=epoch, lines=[line])
    who.take_output(said, node=node_name(rank))


def entry(event: AnyEvent, *, node: str = "node-0") -> Entry:
    return Entry(at_s=time.time(), node=node, event=event)


def seated(*members: str) -> RecoveryPlanned:
    """These nodes have the positions from now on."""
    return RecoveryPlanned(
        recovery=1,
        epoch=1,
        version=None,
        tier="start",
        members=members,
        sources=(),
        transfers=(),
        reason="the job begins",
    )


def step(rank: int, iteration: int, **more: Any) -> Iteration:
    return Iteration(rank=rank, epoch=1, iteration=iteration, duration_s=0.1, waited_s=0.0, **more)


def begin(run: Run | None, members: Sequence[str] = NODES) -> None:
    """Have each of these nodes finish three iterations."""
    tell(run, seated(*members), *(step(rank, 3) for rank in range(len(members))))
