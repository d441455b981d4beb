"""Whether a root agent's own machine is cut off: it reaches the store, and no agent.

Until that is certain, and one of the others is to be root agent, it begins nothing: what it takes
for lost may train well, and the epoch that it writes would end that.
"""

import asyncio
import random
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from gemini_lab.wire.tcp import answers

CUT_OFF_S: Final = 15.0  # after its connections have broken; also a busy machine answers by then
FEWEST: Final = 2  # others; of one alone nobody knows whose network is broken
ASKED: Final = 8  # of them at once: a rack may be gone
ANSWER_S: Final = 2.0  # for a machine's kernel


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


async def reaches_others(addresses: Mapping[str, str]) -> bool:
    """Whether the machine of any other agent answers this one.

    Args:
        addresses: Of the other agents that are registered; with fewer than `FEWEST` nobody knows.

    Raises:
        OSError: This machine lacks what a connection needs, so nobody was asked.
    """
    if len(addresses) < FEWEST:
        return True
    asked = random.sample(sorted(addresses.values()), min(ASKED, len(addresses)))
    tries = [asyncio.create_task(answers(address, timeout_s=ANSWER_S)) for address in asked]
    try:
        for answer in asyncio.as_completed(tries):
            if await answer:
                return True
    finally:
        for one in tries:
            one.cancel()
    return False
