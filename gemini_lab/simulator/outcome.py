"""Outcome of a simulated run."""

import math
from collections import Counter
from dataclasses import dataclass

from gemini_lab.log.entry import Entry
from gemini_lab.simulator.interval import Interval, mean_interval, student_t
from gemini_lab.simulator.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRecovery:
    """One recovery; failures that struck before it ended belong to it.

    Attributes:
        at_s: When the first of its failures struck.
        failures: How many failures it took in.
        lost_nodes: Machines that were gone.
        tier: Where the version came from: memory, persistent or start.
        version: What training went on from.
        lost_s: Training time that has to be repeated.
        retrieval_s: To fetch the version.
        duration_s: From the first failure until training ran again.
    """

    at_s: float
    failures: int
    lost_nodes: int
    tier: str
    version: int
    lost_s: float
    retrieval_s: float
    duration_s: float

    @property
    def wasted_s(self) -> float:
        """Lost progress and retrieval, as in Eq. (1): without detection, replacement, restart."""
        return self.lost_s + self.retrieval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy's run. Every number in it is simulated.

    Attributes:
        policy: Who ran.
        wall_s: Length of the run.
        versions: Iterations that count at its end; the running one as a fraction.
        productive_s: What they would have taken without checkpoints and failures.
        lost_s: Training that was repeated or has to be.
        down_s: Times without training, by step: detect, serialise, reserve, retrieve, warm_up and
            rejoin.
        failures: Failures that struck a machine in use.
        recoveries: In order.
        nodes: Machines that train.
        standbys: Machines that wait.
        events: The run as its log would have it, if that was asked for.
    """

    policy: Policy
    wall_s: float
    versions: float
    productive_s: float
    lost_s: float
    down_s: dict[str, float]
    failures: int
    recoveries: tuple[SimulatedRecovery, ...]
    nodes: int
    standbys: int
    events: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        tiers = ", ".join(f"{count} {tier}" for tier, count in sorted(self.by_tier.items()))
        share = self.effective
        return (
            f"Outcome({self.policy.name}: {share.mean:.1%} effective ({share.low:.1%} to "
            f"{share.high:.1%}), {self.failures} "
            f"failures, recoveries: {tiers or 'none'}; simulated)"
        )

    @property
    def effective_ratio(self) -> float:
        """Effective training time ratio, or goodput: productive time by wall time."""
        return self.productive_s / self.wall_s if self.wall_s else 1.0

    @property
    def effective(self) -> Interval:
        """The ratio, and where that of many such histories is with 95 %.

        Failures are taken as independent of one another, in number and in cost (a compound Poisson
        process), so the variance of what they cost together is the sum of the squares of each
        one's. Fewer than two recoveries say nothing of it: from 0 to 1.
        """
        ratio, count = self.effective_ratio, len(self.recoveries)
        if count < 2:
            return Interval(mean=ratio, low=0.0, high=1.0)
        spread_s = math.hypot(*(one.lost_s + one.duration_s for one in self.recoveries))
        half = student_t(count - 1) * spread_s / self.wall_s
        return Interval(mean=ratio, low=max(0.0, ratio - half), high=min(1.0, ratio + half))

    @property
    def overhead_s(self) -> float:
        """Return the seconds that checkpoints cost: stalls, slower iterations, fewer nodes."""
        return self.wall_s - self.productive_s - self.lost_s - sum(self.down_s.values())

    @property
    def by_tier(self) -> Counter[str]:
        """Recoveries by the tier that their version came from."""
        return Counter(recovery.tier for recovery in self.recoveries)

    @property
    def wasted_s(self) -> float:
        """Mean wasted time of a recovery, as in Eq. (1); 0 without one."""
        count = len(self.recoveries)
        return sum(recovery.wasted_s for recovery in self.recoveries) / count if count else 0.0

    @property
    def wasted(self) -> Interval:
        """The same with its 95 % interval, recoveries taken as independent.

        Raises:
            ConfigError: There was no recovery.
        """
        return mean_interval([recovery.wasted_s for recovery in self.recoveries])
