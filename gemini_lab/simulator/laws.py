"""Failures that are not all alike: nodes that fail more than others, ageing, bursts."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.failures import DAY_S, FailureRate, Outage, draw_outage, rack_failures

REPEAT_OFFENDERS: Final = (3 / 63, 0.5)
"""Public data of one cluster: 3 of 63 nodes caused over half of the exclusions."""
_AGES: Final = 5.0
"""How many mean times between failures a node has run before the history begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLaw:
    """How failures come; whatever the law, a node's mean is that of `rate`.

    Attributes:
        rate: The mean number, its kinds and causes.
        shape: Of the Weibull times between a node's failures. 1: without memory; below 1, one
            failure makes the next likelier soon (0.7 to 0.8 was fitted to LANL's clusters,
            Schroeder and Gibson, DSN 2006); above 1, machines wear out.
        offenders: Which share of the nodes causes which share of the failures.
        burst_size: Mean number of failures that come together, on nodes side by side; geometric.
        burst_s: Within how long.
    """

    rate: FailureRate
    shape: float = 1.0
    offenders: tuple[float, float] | None = None
    burst_size: float = 1.0
    burst_s: float = 600.0

    def __post_init__(self) -> None:
        share, causes = self.offenders or (0.5, 0.5)
        if not (0.1 <= self.shape <= 20 and self.burst_size >= 1 and self.burst_s >= 0):
            raise ConfigError(
                f"a shape lies between 0.1 and 20, a burst has 1 failure or more (got shape="
                f"{self.shape}, burst_size={self.burst_size}, burst_s={self.burst_s})"
            )
        if not (0 < share < 1 and 0 <= causes <= 1):
            raise ConfigError(
                "`offenders` is the share of nodes, between 0 and 1, that causes which share of "
                f"the failures, from 0 to 1 (got {self.offenders})"
            )

    def rates_per_day(self, nodes: int, *, seed: int = 0) -> tuple[float, ...]:
        """Failures a day of each node, all together those of `rate`."""
        each = self.rate.per_node_per_day
        if self.offenders is None or nodes < 2:
            return (each,) * nodes
        share, causes = self.offenders
        count = min(nodes - 1, max(1, round(share * nodes)))
        bad = set(random.Random(f"offenders {seed}").sample(range(nodes), count))
        bad_rate = causes * each * nodes / count
        good_rate = (1 - causes) * each * nodes / (nodes - count)
        return tuple(bad_rate if node in bad else good_rate for node in range(nodes))


def failures_by_law(
    law: FailureLaw,
    *,
    nodes: int,
    days: float,
    seed: int = 0,
    rates_per_day: Sequence[float] | None = None,
    racks: Sequence[str] | None = None,
    rack_per_day: float = 0.0,
) -> tuple[Outage, ...]:
    """A history of failures under `law`.

    Args:
        law: How they come.
        nodes: N.
        days: Length of the history.
        seed: The same seed gives the same history.
        rates_per_day: Failures of each node, one by one, instead of the law's.
        racks: Rack of each position; needed when racks can fail.
        rack_per_day: Failures of each rack a day, without memory.

    Raises:
        ConfigError: A number is out of range.
    """
    rates = law.rates_per_day(nodes, seed=seed) if rates_per_day is None else tuple(rates_per_day)
    if len(rates) != nodes or nodes < 1 or days < 0 or min(rates, default=0.0) < 0:
        raise ConfigError(
            f"a history needs days from 0 and one rate from 0 for each of its nodes (got nodes="
            f"{nodes}, {len(rates)} rates, days={days})"
        )
    draw = random.Random(seed)
    outages: list[Outage] = []
    for node, rate in enumerate(rates):
        for at_s in _renewals(rate / law.burst_size, days, law.shape, draw):
            burst = _burst(law, at_s, nodes, draw)
            outages += [
                draw_outage(then_s, (node + place) % nodes, law.rate, draw)
                for place, then_s in enumerate(burst)
                if then_s < days * DAY_S
            ]
    outages += rack_failures(nodes=nodes, days=days, racks=racks, per_day=rack_per_day, draw=draw)
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _renewals(per_day: float, days: float, shape: float, draw: random.Random) -> list[float]:
    """When a machine fails that has failed and been mended for a long time already."""
    if per_day <= 0:
        return []
    scale_s = DAY_S / per_day / math.gamma(1 + 1 / shape)
    at_s = -_AGES * DAY_S / per_day
    times: list[float] = []
    while True:
        at_s += draw.weibullvariate(scale_s, shape)
        if at_s >= days * DAY_S:
            return times
        if at_s >= 0:
            times.append(at_s)


def _burst(law: FailureLaw, at_s: float, nodes: int, draw: random.Random) -> list[float]:
    """When each failure of a burst comes, the first one first; geometric in number."""
    times_s = [at_s]
    while draw.random() > 1 / law.burst_size and len(times_s) < nodes:
        times_s.append(at_s + draw.random() * law.burst_s)
    return times_s
