"""Durations of the steps of a simulated recovery: a policy's, or measured ones."""

import random
from dataclasses import replace
from statistics import fmean
from typing import Final

from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.simulator.machines import busiest_sends
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.policy import Policy, Stream
from gemini_lab.simulator.times import Steps
from gemini_lab.simulator.workload import Workload

ANNOUNCED: Final = "announced"
"""The failure of a machine whose memory was read in time."""


class Durations:
    """The times of one run; measured ones are drawn, one recovery's together."""

    def __init__(self, workload: Workload, policy: Policy, *, seed: int) -> None:
        self._workload, self._policy = workload, policy
        self._draw = random.Random(f"steps {seed}")

    @property
    def first_start_s(self) -> float:
        """Before training begins; 0 where nothing was measured."""
        return 0.0 if self._policy.times is None else self._policy.times.first_start.mean_s

    @property
    def mean_replacement_s(self) -> float:
        """From when a machine is asked for until it is there, on average."""
        measured = None if self._policy.times is None else self._policy.times.replacement
        return fmean(self._workload.replacement_s) if measured is None else measured.mean_s

    def is_announced(self) -> bool:
        share = self._policy.announced
        return share > 0 and self._draw.random() < share

    def replacement_s(self, draw: random.Random) -> float:
        """Return one machine's replacement time: a measured one, or uniform between the bounds."""
        measured = None if self._policy.times is None else self._policy.times.replacement
        if measured is None:
            return draw.uniform(*self._workload.replacement_s)
        return draw.choice(measured.samples_s)

    def steps(self, outage: Outage) -> Steps:
        """Draw the steps of a recovery; what was announced is not detected."""
        if self._policy.times is not None:
            steps = self._draw.choice(self._policy.times.steps(outage.failure, outage.kind))
        else:
            steps = Steps(
                detect_s=self._workload.detection_s,
                serialise_s=self._policy.serialise_s,
                warm_up_s=self._workload.warm_up_s,
            )
        return replace(steps, detect_s=0.0) if outage.failure == ANNOUNCED else steps

    def memory(self, stream: Stream) -> Stream:
        """Return the stream of versions into memory; if one is whole just in time is chance."""
        if self._policy.times is None:
            return stream
        return replace(stream, delay_s=self._draw.choice(self._policy.times.version.samples_s))

    def retrieval_s(self, plan: RecoveryPlan, steps: Steps, *, moved: int) -> float:
        """Return the busiest sender's time; its sends are sequential.

        Of `moved` machines the memory is read before they go.
        """
        if plan.tier == "persistent":
            return self._policy.persistent_s
        if plan.tier == "start":
            return 0.0
        if steps.retrieve_s is not None:
            return steps.retrieve_s
        return max(busiest_sends(plan), min(1, moved)) * self._policy.peer_s
