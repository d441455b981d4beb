"""Rate at which memory fails to keep a version, from the failure rates of nodes and racks."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gemini_lab.placement.planner import Placement
from gemini_lab.placement.probability import holder_sets
from gemini_lab.placement.risk import DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Dangers:
    """Failure rates of the nodes on a placement's positions."""

    failures_per_day: Sequence[float]  # of each position's node, by itself
    repair_s: float  # from a node's loss until its copies exist again on its successor
    # Failure domain of each position; `None` where they are not known.
    racks: Sequence[str] | None = None
    # How often a whole rack fails; 0 for one that is not here.
    racks_per_day: Mapping[str, float] = field(default_factory=dict)

    def loss_rate_per_day(self, holders: Collection[int]) -> float:
        """Return the rate at which all of `holders` lose their copy at once.

        Node i fails at rate f, independently, and is without its copies for T = `repair_s` on
        average: a share u = fT / (1 + fT) of the time. All n of them go down together
        |S|/T * prod(u) times a day: exact for independent nodes in the long run, whatever the
        repair times look like. A rack is one more such part, with which all its nodes go down: the
        holders in it are down while it is, or while all of them are.
        """
        if self.repair_s == 0:
            return 0.0
        days = self.repair_s / DAY_S
        sharing: dict[str | int, list[int]] = defaultdict(list)
        for node in holders:
            sharing[node if self.racks is None else self.racks[node]].append(node)
        parts = [self._part(rack, nodes, days) for rack, nodes in sharing.items()]
        return math.fsum(
            starts * math.prod(down for j, (down, _) in enumerate(parts) if j != i)
            for i, (_, starts) in enumerate(parts)
        )

    def _part(self, rack: str | int, nodes: Collection[int], days: float) -> tuple[float, float]:
        """Return the share of time with all holders of one rack down, and how often a day."""
        together = math.prod(_down(self.failures_per_day[node] * days) for node in nodes)
        per_day = self.racks_per_day.get(rack, 0.0) if isinstance(rack, str) else 0.0
        rack_down = _down(per_day * days)
        starts = rack_down / days * (1 - together) + len(nodes) / days * together * (1 - rack_down)
        return 1 - (1 - rack_down) * (1 - together), starts

    def total_per_day(self, placement: Placement) -> float:
        """Return the sum of `loss_rate_per_day` over distinct sets of holders, a union bound."""
        return math.fsum(self.loss_rate_per_day(kept) for kept in holder_sets(placement))

    def loss_chance(self, placement: Placement, *, horizon_days: float) -> float:
        """Return the probability of a loss within `horizon_days`, with Poisson losses."""
        return -math.expm1(-self.total_per_day(placement) * horizon_days)


def _down(load: float) -> float:
    return load / (1 + load)


def allowed_per_day(target: float, horizon_days: float) -> float:
    """Return the losses a day that are allowed to survive the horizon with probability `target`."""
    return -math.log(target) / horizon_days if target and horizon_days else math.inf
