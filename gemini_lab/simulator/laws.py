"""Failures that are not all alike: nodes that fail more than others, ageing, bursts."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.outages import (
    DAY_S,
    FailureRate,
    Outage,
    draw_outage,
    rack_failures,
    require_few,
)
from gemini_lab.units import check_number

REPEAT_OFFENDERS: Final = (3 / 63, 0.5)
"""Public data of one cluster: 3 of 63 nodes caused over half of the exclusions."""
SHAPES: Final = (0.3, 20.0)
"""Weibull shapes that are taken. The variance of times between failures is 29 times the square of
their mean at 0.3, 251 times at 0.2 and 184,755 times at 0.1: no history is then long enough for its
mean to say anything. Above 20, failures come by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLaw:
    """Law of failures in time; under every law a node's mean is that of `rate`.

    That holds of every stretch of a history: it begins at any moment of clusters that have run for
    long, each node at its own age, and in the middle of a burst if there is one.

    Attributes:
        rate: The mean number, its kinds and causes.
        shape: Of the Weibull times between a node's failures. 1: without memory; below 1, one
            failure makes the next likelier soon (0.7 to 0.8 was fitted to LANL's clusters,
            Schroeder and Gibson, DSN 2006); above 1, machines wear out.
        offenders: Which share of the nodes causes which share of the failures.
        burst_size: Mean number of failures that come together; geometric. They strike nodes side
            by side, or the further apart the less often those between fail, and none twice. So a
            burst ends, where it would be larger, at as many as all nodes fail as often as the one
            that fails most: at N for nodes alike. Smaller bursts come more often then.
        burst_s: Within how long.
    """

    rate: FailureRate
    shape: float = 1.0
    offenders: tuple[float, float] | None = None
    burst_size: float = 1.0
    burst_s: float = 600.0

    def __post_init__(self) -> None:
        if not SHAPES[0] <= self.shape <= SHAPES[1]:
            raise ConfigError(
                f"a shape lies between {SHAPES[0]:g} and {SHAPES[1]:g}, or the mean of a history "
                f"says nothing (got shape={self.shape})"
            )
        check_number("burst_size", self.burst_size, least=1)
        check_number("burst_s", self.burst_s)
        pair = (0.5, 0.5) if self.offenders is None else self.offenders
        if len(pair) != 2 or not (0 < pair[0] < 1 and 0 <= pair[1] <= 1):
            raise ConfigError(
                "`offenders` is the share of nodes, between 0 and 1, that causes which share of "
                f"the failures, from 0 to 1 (got {self.offenders})"
            )

    def rates_per_day(self, nodes: int, *, seed: int = 0) -> tuple[float, ...]:
        """Return failures a day of each node, all together those of `rate`."""
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
    """Draw a history of failures under `law`.

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
    check_number("nodes", nodes, least=1, is_whole=True)
    check_number("days", days)
    check_number("rack_per_day", rack_per_day)
    rates = law.rates_per_day(nodes, seed=seed) if rates_per_day is None else tuple(rates_per_day)
    if len(rates) != nodes or not all(0 <= rate < math.inf for rate in rates):
        raise ConfigError(
            f"a history needs one rate from 0 for each of its nodes (got nodes={nodes}, "
            f"{len(rates)} rates)"
        )
    require_few(sum(rates), days)
    draw = random.Random(seed)
    bursts = _Bursts(law, rates)
    outages = [
        draw_outage(at_s, position, law.rate, draw)
        for node, rate in enumerate(rates)
        for began_s in _renewals(
            rate / bursts.mean_size,
            from_s=-bursts.longest_s,
            to_s=days * DAY_S,
            shape=law.shape,
            draw=draw,
        )
        for at_s, position in bursts.draw(node, began_s, draw)
        if 0 <= at_s < days * DAY_S
    ]
    outages += rack_failures(nodes=nodes, days=days, racks=racks, per_day=rack_per_day, draw=draw)
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _renewals(
    per_day: float, *, from_s: float, to_s: float, shape: float, draw: random.Random
) -> Iterator[float]:
    """Yield when a machine fails that has failed and been mended for ever.

    At a moment that nothing chose, a long time between failures is under way more likely than a
    short one, by its length, and any part of it is left. Of such a time t, (t / scale)^shape
    follows a gamma law of 1 + 1 / shape.
    """
    if per_day <= 0:
        return
    scale_s = DAY_S / per_day / math.gamma(1 + 1 / shape)
    under_way_s = scale_s * draw.gammavariate(1 + 1 / shape, 1.0) ** (1 / shape)
    at_s = from_s + draw.random() * under_way_s
    while at_s < to_s:
        yield at_s
        at_s += draw.weibullvariate(scale_s, shape)


class _Bursts:
    """Failures that come together, so that every node keeps its rate.

    Nodes lie on a circle, each on an arc as long as its rate. A burst begins anywhere on its first
    node's arc and strikes again one longest arc further on, and so on: each of its strikes is
    anywhere on the circle, and no two are on one arc before it comes round.

    Args:
        law: How large bursts are, and how long.
        rates: Of the nodes.
    """

    def __init__(self, law: FailureLaw, rates: Sequence[float]) -> None:
        self._ends = tuple(accumulate(rates))
        self._step = max(rates)
        self._more = 1 - 1 / law.burst_size
        self._most = int(self._ends[-1] / self._step * (1 + 1e-9)) if self._step else 1
        self.longest_s = law.burst_s if self._more else 0.0  # within how long they come
        # Failures in a burst, with those that end early.
        self.mean_size = (1 - self._more**self._most) / (1 - self._more)

    def draw(self, node: int, at_s: float, draw: random.Random) -> Iterator[tuple[float, int]]:
        """Yield when each failure of a burst comes, and where; the first one first."""
        yield at_s, node
        if not self._more:
            return
        begin = self._ends[node - 1] if node else 0.0
        place = begin + draw.random() * (self._ends[node] - begin)
        for _ in range(1, self._most):
            if draw.random() >= self._more:
                return
            place = (place + self._step) % self._ends[-1]
            struck = min(bisect_right(self._ends, place), len(self._ends) - 1)
            yield at_s + draw.random() * self.longest_s, struck
