"""Whether a root agent's own machine is cut off: it reaches the store, and no agent."""

from collections.abc import Set as AbstractSet
from typing import Final

CUT_OFF_S: Final = 15.0  # after its connections have broken; also a busy machine answers by then
FEWEST: Final = 2  # others; of one alone nobody knows whose network is broken


class CutOff:
    """How long a root agent has reached none of several others that the store has.

    Args:
        now_s: The moment, by a clock that nobody sets.
    """

    def __init__(self, now_s: float) -> None:
        self._reached_s = now_s

    def is_certain(
        self, now_s: float, *, others: AbstractSet[str], connected: AbstractSet[str]
    ) -> bool:
        """Whether one of the others is to be root agent.

        Args:
            now_s: The moment; this is asked a few times a second, while the store is reached.
            others: The other agents that are registered.
            connected: Those that are connected.
        """
        if len(others) < FEWEST or others & connected:
            self._reached_s = now_s
        return now_s - self._reached_s > CUT_OFF_S
