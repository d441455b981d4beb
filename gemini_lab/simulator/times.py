"""Durations of the steps of real recoveries, with their spread, from a log."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.interval import Interval, mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Times of one kind, as measured; drawing one picks a measured one.

    Attributes:
        samples_s: Each at least 0.
    """

    samples_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_s or not all(0 <= one < math.inf for one in self.samples_s):
            raise ConfigError(f"a spread needs times of at least 0 s (got {self.samples_s})")

    @property
    def mean_s(self) -> float:
        return fmean(self.samples_s)

    @property
    def deviation_s(self) -> float:
        return stdev(self.samples_s) if len(self.samples_s) > 1 else 0.0

    @property
    def mean_interval(self) -> Interval:
        """Return the mean of all such times with its 95 % interval (Student-t)."""
        return mean_interval(self.samples_s)

    def law(self, draw: random.Random) -> "Law":
        """Draw a normal law that these times may have come from, by its likelihood.

        The draws of many such laws together follow Student's t. One time alone is taken as it is.
        """
        known = len(self.samples_s)
        if known < 2:
            return Law(mean_s=self.mean_s, deviation_s=0.0)
        chi_squared = draw.gammavariate((known - 1) / 2, 2.0)
        deviation_s = self.deviation_s * math.sqrt((known - 1) / chi_squared)
        return Law(
            mean_s=self.mean_s + draw.gauss() * deviation_s / math.sqrt(known),
            deviation_s=deviation_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A normal law of times, cut off at 0."""

    mean_s: float
    deviation_s: float

    def draw(self, draw: random.Random, *, count: int = 1) -> float:
        return max(0.0, self.mean_s + draw.gauss() * self.deviation_s / math.sqrt(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a recovery, in order.

    Attributes:
        detect_s: From the failure until it was noticed.
        fence_s: Old workers end, agents say what they hold, the root plans.
        serialise_s: What memory holds is written down before anything else.
        start_s: Workers start and find one another.
        retrieve_s: Shards are fetched, checked and loaded; `None`: as the plan and the link say.
        warm_up_s: What the first iteration takes longer than the others.
    """

    detect_s: float = 0.0
    fence_s: float = 0.0
    serialise_s: float = 0.0
    start_s: float = 0.0
    retrieve_s: float | None = None
    warm_up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times that a run's log shows.

    Attributes:
        iteration: Iterations that warmed nothing up, without what they waited for checkpoints.
        waited: What each of them waited for a checkpoint.
        version: From the end of an iteration until its version was whole in memory.
        first_start: From the job's submission until training ran at full speed.
        recoveries: The steps of each recovery, by what the injector called its failure (or by the
            simulator's kind of outage, or `""` for all that are not named).
        source: Which log.
        replacement: From when a machine was asked for until it was there; `None`: none came.
    """

    iteration: Spread
    waited: Spread
    version: Spread
    first_start: Spread
    recoveries: Mapping[str, tuple[Steps, ...]]
    source: str
    replacement: Spread | None = None

    def steps(self, *names: str) -> tuple[Steps, ...]:
        """Return the recoveries from the first of `names` that was seen, else all.

        Raises:
            ConfigError: The log has no recovery at all.
        """
        for name in names:
            if self.recoveries.get(name):
                return self.recoveries[name]
        every = tuple(step for steps in self.recoveries.values() for step in steps)
        if not every:
            raise ConfigError(
                f"{self.source} has no recovery to learn from; learn from a run with failures "
                "(`gemini-lab quickstart` makes one)"
            )
        return every

    def spread(self, step: str, *names: str) -> Spread:
        """Return the spread of a step, such as `"detect"`: a field of `Steps` without its unit."""
        found = (getattr(one, f"{step}_s") for one in self.steps(*names))
        return Spread(samples_s=tuple(value or 0.0 for value in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Job and times that a run's log shows; `report.measure` reads them.

    Attributes:
        checkpoint_bytes: A whole version, once.
    """

    times: Times
    nodes: int
    standbys: int
    gpus_per_node: int
    replicas: int
    checkpoint_bytes: int
