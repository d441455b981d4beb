"""Going on without the machines that were lost: in which way, by what each is predicted to cost."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gemini_lab.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A way to train on while machines are missing."""

    name: str  # for people
    restart_s: float  # until training runs in this way, once the states are there
    rejoin_s: float  # how long all wait when a machine joins again
    # Into how many groups of equal size the nodes are cut, each with all of the model, so that the
    # nodes of the same place in the others do a lost node's work; `None`: the work spreads over all
    # nodes that are left.
    groups: int | None = None

    def factor(self, lost: Collection[int], nodes: int) -> float:
        """Return the factor of an iteration's time without them; infinite if impossible."""
        if self.groups is None:
            return nodes / (nodes - len(lost)) if len(lost) < nodes else math.inf
        if nodes % self.groups:
            raise ConfigError(
                f"{nodes} nodes are no {self.groups} groups of one size; give a number of groups "
                "that divides them"
            )
        by_place = Counter(position % (nodes // self.groups) for position in lost)
        most = max(by_place.values(), default=0)
        return self.groups / (self.groups - most) if most < self.groups else math.inf

    def cost_s(self, lost: Collection[int], nodes: int, *, for_s: float) -> float:
        """Return the training time lost while these machines are missing and when they return.

        Infinite if it cannot be.
        """
        factor = self.factor(lost, nodes)
        if math.isinf(factor):
            return math.inf
        return self.restart_s + for_s * (1 - 1 / factor) + self.rejoin_s


def select(
    ways: Sequence[Fallback], lost: Collection[int], nodes: int, *, wait_s: float, restart_s: float
) -> Fallback | None:
    """Return the configuration with the least predicted cost; `None` to wait for machines.

    Args:
        ways: To choose from, one or more.
        lost: Positions without a machine.
        nodes: Positions in all.
        wait_s: How long a machine takes to come, on average.
        restart_s: What training takes then to run again.
    """
    costs_s = [way.cost_s(lost, nodes, for_s=wait_s) for way in ways]
    cheapest_s = min(costs_s)
    return ways[costs_s.index(cheapest_s)] if cheapest_s < wait_s + restart_s else None
