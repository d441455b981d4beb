"""When the keeper of an etcd's member ends: no wait for its lab is without an end.

A keeper lives on for a lab, whose agents may all be lost and come anew elsewhere. It ends when

- an agent of its machine said that the lab is over, and all agents here have ended;
- no agent is here, and the lab's key is gone, or whoever started the lab wrote that it is over;
- no agent is here, and no node at all has been in the lab for `FORSAKEN_S`;
- no agent is here, and etcd as a whole has not answered for `DEAF_S`: the other members have
  ended, or are lost, and without this machine's agent its own is to be replaced in any case.
"""

import math
from collections.abc import Set as AbstractSet
from typing import Final

from gemini_lab.node.config import LAB_KEY, OVER_KEY
from gemini_lab.node.membership import NODES

DEAF_S: Final = 30.0
FORSAKEN_S: Final = 3600.0  # nobody can go on with a detached run whose nodes are all lost
BEGIN_S: Final = 120.0  # for a lab to write its key
LEAVE_S: Final = (
    3.0  # for the others, which look as often, to see the end too, and to take keys out
)
AGENTS_END_S: Final = 30.0  # for agents here to end, when one of them says that the lab is over


class LabEnd:
    """What a keeper knows of its lab, told a few times a second.

    Args:
        now_s: Of a clock that nobody sets, as all its times.
        has_begun: Whether the lab's key stands already; else it is to come.
    """

    def __init__(self, now_s: float, *, has_begun: bool) -> None:
        self._has_begun = has_begun
        self._seen_s = self._nodes_s = now_s
        self._over_s = math.inf

    def has_come(
        self,
        now_s: float,
        *,
        are_agents_here: bool,
        is_told: bool = False,
        names: AbstractSet[str] | None = None,
    ) -> bool:
        """Whether the keeper is to end.

        Args:
            now_s: The time.
            are_agents_here: Whether an agent of the lab runs on this machine.
            is_told: Whether an agent has said that the lab is over.
            names: What the lab's part of the store has; `None`: it was not asked, or is away.
        """
        if is_told or (not are_agents_here and names is not None and self._is_over(now_s, names)):
            self._over_s = min(self._over_s, now_s)
        if now_s >= self._over_s:
            return now_s >= self._over_s + (AGENTS_END_S if are_agents_here else LEAVE_S)
        if are_agents_here:
            self._seen_s = self._nodes_s = now_s
            self._has_begun = True
        return now_s >= self._seen_s + (DEAF_S if self._has_begun else BEGIN_S)

    def _is_over(self, now_s: float, names: AbstractSet[str]) -> bool:
        """Whether the store says so; else what it says is noted."""
        if any(key.startswith(NODES) for key in names):
            self._nodes_s = now_s
        if LAB_KEY in names and now_s < self._nodes_s + FORSAKEN_S:
            self._seen_s, self._has_begun = now_s, True
            return OVER_KEY in names
        return self._has_begun or OVER_KEY in names
