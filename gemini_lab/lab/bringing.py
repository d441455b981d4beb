"""Asking the operator for machines, for as long as they are wanted."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.lab.cluster import Audience
from gemini_lab.launch.operator import Operator
from gemini_lab.node.config import NONE_COME_KEY, AgentUp
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.sealed_store import SealedStore

FIRST_RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 60.0


class Bringing:
    """Brings machines that are missing.

    Args:
        operator: Where they come from.
        store: Where a run that is short hears that none comes.
        connect: Connects to agents that were brought.
        count_living: How many agents live now.
        audience: Is told why none comes.

    Attributes:
        wanted: Agents, by the newest word of a root agent.
    """

    def __init__(
        self,
        *,
        operator: Operator,
        store: SealedStore,
        connect: Callable[[Sequence[AgentUp]], Awaitable[None]],
        count_living: Callable[[], int],
        audience: Audience,
    ) -> None:
        self.wanted = 0
        self._operator, self._store = operator, store
        self._connect, self._count_living, self._audience = connect, count_living, audience
        self._coming = 0
        self._waits = 0
        self._has_ended = False

    @property
    def is_under_way(self) -> bool:
        """Whether a machine is on its way."""
        return self._coming > 0

    def end(self) -> None:
        """Ask for none any more."""
        self._has_ended = True

    async def bring(self) -> None:
        """Ask the operator for the machines that are missing and not already on their way.

        An operator that has none now may have some later: it is asked again, ever later, for as
        long as they are wanted. Of several calls that wait for that the newest asks for all.
        """
        pause_s = FIRST_RETRY_S
        while (count := self._missing) > 0 and not self._has_ended:
            self._coming += count
            try:
                await self._connect(await asyncio.to_thread(self._operator.bring, count))
            except GeminiError as error:  # what is impossible now may be mended meanwhile
                self._audience.take_note(
                    f"no new node: {error}; the operator is asked again in {pause_s:.0f} s"
                )
                await asyncio.to_thread(self._say_none_come)
            finally:
                self._coming -= count
            self._waits += 1
            wait = self._waits
            await asyncio.sleep(pause_s)
            if wait != self._waits:
                return
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    @property
    def _missing(self) -> int:
        return self.wanted - self._count_living() - self._coming

    def _say_none_come(self) -> None:
        """Have a run that is short know: it may go on with what there is."""
        with suppress(StoreUnavailableError):
            self._store.put(NONE_COME_KEY, str(time.time_ns()))
