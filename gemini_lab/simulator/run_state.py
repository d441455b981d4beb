"""A simulated run as it stands: what trains how fast on what is there, and the books of it."""

import random
from collections import Counter
from collections.abc import Generator
from enum import Enum

import simpy

from gemini_lab.log.events import AnyEvent
from gemini_lab.placement import Placement
from gemini_lab.simulator.durations import Durations
from gemini_lab.simulator.machines import SimulatedCluster
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.outcome import SimulatedRecovery
from gemini_lab.simulator.policy import Fallback, FollowedRisk, Policy
from gemini_lab.simulator.recorder import RunRecorder
from gemini_lab.simulator.segments import TrainingSegment
from gemini_lab.simulator.workload import Workload

Waits = Generator[simpy.Event, None, None]


class Word(Enum):
    """Why training is interrupted, where nothing failed."""

    MACHINE = "a machine came for an empty position"
    DONE = "all iterations are done"


class RunState:
    """State that training, failures and recoveries of one run share."""

    trainer: simpy.Process  # the process that trains and recovers

    def __init__(
        self,
        workload: Workload,  # the job and its cluster
        policy: Policy,  # who protects it
        placement: Placement,  # who keeps whose replica
        *,
        seed: int,  # of all that is drawn
        recorder: RunRecorder | None,  # is told what happens
    ) -> None:
        self.workload, self.policy, self.recorder = workload, policy, recorder
        self.draw = random.Random(seed)
        self.durations = Durations(workload, policy, seed=seed)
        self.env = simpy.Environment()
        self.cluster = SimulatedCluster(placement, standbys=workload.standbys)
        following = policy.following
        self.followed = None if following is None else FollowedRisk(following, workload.nodes)
        self.way: Fallback | None = None  # in which it trains without machines, if ways were given
        self.segment: TrainingSegment | None = None  # while training runs
        self.segment_start_s = 0.0
        # Where training stood, while it does not run: a segment, and for how long it ran.
        self.stopped: tuple[TrainingSegment, float] | None = None
        self.unordered = 0  # lost machines for which no replacement is ordered yet
        self.arrival = self.env.event()  # of the next machine
        self.struck: Counter[str] = Counter()  # failures and lost nodes since the last recovery
        self.under_way = ("", 0.0)  # the step of a recovery that is going on, and since when
        self.failures = 0
        self.lost_s = 0.0
        self.down_s: Counter[str] = Counter()
        self.recoveries: list[SimulatedRecovery] = []

    @property
    def elapsed_s(self) -> float:
        return float(self.env.now - self.segment_start_s)

    def iteration_s(self) -> float:
        """Return the seconds of an iteration with the present machines."""
        nodes = self.workload.nodes
        if self.way is None:
            factor = nodes / max(1, nodes - len(self.cluster.vacant))
        else:
            factor = self.way.factor(self.cluster.vacant, nodes)
        return factor * self.workload.iteration_s + self.policy.slowdown_s

    def redo_s(self, segment: TrainingSegment, elapsed_s: float, version: int) -> float:
        """Return the seconds of training from `version` to the current place in `segment`."""
        if version >= segment.version:
            return elapsed_s - segment.reached_s(version)
        before = TrainingSegment(
            version=version, iteration_s=segment.iteration_s, policy=self.policy
        )
        return elapsed_s + before.reached_s(segment.version)

    def interrupt(self, cause: Outage | Word) -> None:
        """Interrupt training, unless training itself is the caller."""
        if self.trainer.is_alive and self.env.active_process is not self.trainer:
            self.trainer.interrupt(cause)

    def step(self, name: str, wait: float | simpy.Event) -> Waits:
        """Wait, and account for the time also if interrupted."""
        start_s = self.env.now
        self.under_way = (name, start_s)
        try:
            yield self.env.timeout(wait) if isinstance(wait, float | int) else wait
        finally:
            self.down_s[name] += self.env.now - start_s
            if self.recorder:
                self.recorder.step(name, start_s, self.env.now)

    def say(self, event: AnyEvent) -> None:
        if self.recorder:
            self.recorder.say(self.env.now, event)
