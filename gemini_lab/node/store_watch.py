"""When an agent reads the store: at its first look, when something changed, and now and then.

A watch only rings; what is so is always read anew, at one revision. So a watch that broke, missed
something or fell behind a compaction needs no repair but another look, and a change between two
looks cannot be half seen.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gemini_lab.node.control_store import ControlStore

HEAD: Final = ("epoch", "lab", "root", "term")
"""The keys that every agent follows; all others concern the root agent alone."""
REREAD_S: Final = 10.0  # the store is read this often even if no watch rings
SPREAD_S: Final = 1.0  # in which agents look that hear the news from the root agent anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the store had at one revision.

    Attributes:
        items: The keys that were read, with their values.
        is_whole: Whether these are all keys, and not only those of `HEAD`.
    """

    items: dict[str, str]
    is_whole: bool


class StoreWatch:
    """What one agent knows of the store, and whether that may be old.

    Args:
        store: The lab's, to read.
        streams: The same store, to watch.
        clock: A clock that nobody sets.
    """

    def __init__(
        self,
        store: ControlStore,
        streams: ControlStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._streams = store, streams
        self._clock = clock
        self._turn = asyncio.Lock()  # one look at a time
        self._watch: object | None = None  # the one that stands
        self._is_whole = False  # whether it is on all keys
        self._rung_s: float | None = clock()  # since when something is to be read
        self._spread_s = 0.0  # by which those wait who have time
        self._read_s = -REREAD_S
        self._last: Reading | None = None

    def is_due(self, *, is_urgent: bool = True) -> bool:
        """Whether to read now.

        Args:
            is_urgent: Whether a change is to be seen at once. Thousands that all looked at the
                same moment would hold up the one who made the change.
        """
        now_s = self._clock()
        if self._rung_s is not None:
            return is_urgent or now_s >= self._rung_s + self._spread_s
        return now_s >= self._read_s + REREAD_S

    def ring(self) -> None:
        """Have the store be read again."""
        if self._rung_s is None:
            self._rung_s, self._spread_s = self._clock(), random.uniform(0, SPREAD_S)

    async def read(self, *, whole: bool) -> Reading:
        """What the store has now.

        The watch begins before the look, so that no change falls between the two.

        Args:
            whole: Read and follow all keys, as only the root agent does.

        Raises:
            StoreUnavailableError: It does not answer; the next look is due at once.
        """
        async with self._turn:
            has_rung, self._rung_s = self._rung_s is not None, None
            try:
                await self._follow(whole=whole)
                items = await (self._store.items() if whole else self._store.get(HEAD))
                reading = Reading(items=items, is_whole=whole)
            except BaseException:
                self.ring()
                raise
            is_known = self._last is not None and self._last.is_whole == whole
            if is_known and not has_rung and reading != self._last:
                self._watch = None  # it should have rung: have another one
                self.ring()
            self._read_s, self._last = self._clock(), reading
            return reading

    async def _follow(self, *, whole: bool) -> None:
        """Have a watch on what is read."""
        if self._watch is not None and self._is_whole == whole:
            return
        watch = self._watch = object()  # the one before ends

        def tell(*, has_ended: bool) -> None:
            if has_ended and self._watch is watch:
                self._watch = None
            self.ring()

        try:
            await self._streams.watch(None if whole else HEAD, tell)
        except BaseException:
            self._watch = None
            raise
        self._is_whole = whole
