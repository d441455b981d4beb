"""Copies that follow the risk, in a simulation: the very decision that a run's root agent takes."""

from dataclasses import dataclass
from typing import Final

from gemini_lab.placement import Placement, Risk
from gemini_lab.placement.dangers import Dangers
from gemini_lab.placement.following import Follower
from gemini_lab.units import PerNode

MOST_COPIES: Final = 4
"""Shards that a node has room for, its own among them, unless it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Parameters of a policy whose copies follow the risk."""

    follower: Follower  # decides
    failures_per_day: float  # expected of each node before anything is seen of it
    repair_s: float  # from a node's loss until its copies exist again
    fits: int = MOST_COPIES  # shards that each node has room for


class FollowedRisk:
    """Observations in a simulated run of the machines on each position.

    A position stands for its machine: one that is lost is mended, and comes back.

    Args:
        following: What the policy goes by.
        nodes: N.
    """

    def __init__(self, following: Following, nodes: int) -> None:
        self._following = following
        self._names = [f"node-{position}" for position in range(nodes)]
        self.risk = Risk()
        for name in self._names:
            self.risk = self.risk.joined(name, 0.0)

    def failed(self, position: int, at_s: float) -> None:
        """Count a machine's failure, whether its memory is lost or not."""
        self.risk = self.risk.failed(self._names[position], at_s)

    def next_placement(self, now: Placement, at_s: float) -> Placement | None:
        """Return the placement to continue with; `None` to keep it."""
        following = self._following
        expected = PerNode(usual=following.failures_per_day)
        change = following.follower.change(
            now,
            dangers=Dangers(
                failures_per_day=self.risk.per_day(self._names, at_s, expected=expected),
                repair_s=following.repair_s,
            ),
            fits=[following.fits] * len(self._names),
        )
        return None if change is None else change.placement
