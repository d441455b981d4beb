"""All ranks stop where an iteration ends with a whole version, as the root agent follows it.

What comes then, nothing is done again: workers start anew with other seats.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.messages import Hold
from gemini_lab.recovery.protocol import Instruction, NodeJoined, Send, WriteState
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import listed

Living = Mapping[str, NodeJoined]

LATE_S: Final = 20.0
"""So long after the word, those are named that still train."""


def what_for(state: RootState) -> str:
    """For what the ranks stop: a `RecoveryStarted.cause` for which nothing failed; empty if not."""
    if state.drain.holding:
        return events.DRAIN
    if state.resize.resizing:
        return events.RESIZE
    return events.REPLICAS if state.copies.is_replacing else ""


class Stop:
    """Who of the ranks has stopped.

    Attributes:
        is_under_way: Whether they were told to.
    """

    def __init__(self) -> None:
        self.is_under_way = False
        self._since_s = 0.0
        self._held: set[int] = set()
        self._is_late_told = False

    def restart(self) -> None:
        """The workers end: none of them holds any more."""
        self.is_under_way = self._is_late_told = False
        self._held = set()

    def begin(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Have all ranks stop, once it is written what for."""
        self.restart()
        self.is_under_way, self._since_s = True, at_s
        yield WriteState(state=state)
        for member in dict.fromkeys(state.members):
            if member in living:
                yield Send(to=str(member), order=Hold(epoch=state.epoch))

    def ask_again(self, state: RootState, node: str) -> Iterator[Instruction]:
        """A connection broke and came back: the word, or the answer to it, may have been lost."""
        if self.is_under_way:
            yield Send(to=node, order=Hold(epoch=state.epoch))

    def is_complete(self, rank: int, state: RootState) -> bool:
        """A rank has stopped; whether now all have, after the same version."""
        self._held.add(rank)
        return self.is_under_way and state.phase == "running" and self._held >= set(state.ranks)

    def late(self, at_s: float, ranks: Collection[int]) -> str:
        """Who has not stopped for long, once and in words; empty if there is nothing to say."""
        passed_s = at_s - self._since_s
        if not self.is_under_way or self._is_late_told or passed_s < LATE_S:
            return ""
        self._is_late_told = True
        away = listed([rank for rank in ranks if rank not in self._held])
        return (
            f"training is to go on with other nodes; rank {away} has not come to the end of its "
            f"iteration in {passed_s:.0f} s, and is waited for"
        )
