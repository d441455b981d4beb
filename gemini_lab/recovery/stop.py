"""All ranks stop where an iteration ends with a whole version, as the root agent follows it.

What comes then, nothing is done again: workers start anew with other seats.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.messages import Hold
from gemini_lab.recovery.protocol import AgentJoined, Instruction, Send, WriteState
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import listed

Living = Mapping[str, AgentJoined]

LATE_S: Final = 20.0
"""So long after the word, those are named that still train."""


def what_for(state: RootState) -> str:
    """Return the planned `RecoveryStarted.cause` for which all ranks stop; empty if they do not."""
    if state.drain.holding:
        return events.DRAIN
    if state.resize.resizing:
        return events.RESIZE
    return events.REPLICAS if state.copies.is_replacing else ""


class Stop:
    """The ranks that have stopped.

    Attributes:
        is_under_way: Whether they were told to.
    """

    def __init__(self) -> None:
        self.is_under_way = False
        self._since_s = 0.0
        self._held: set[int] = set()
        self._is_late_told = False

    def restart(self) -> None:
        """Forget which ranks have stopped, because all workers end."""
        self.is_under_way = self._is_late_told = False
        self._held = set()

    def begin(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Order all ranks to stop, after the reason is stored."""
        self.restart()
        self.is_under_way, self._since_s = True, at_s
        yield WriteState(state=state)
        for member in dict.fromkeys(state.members):
            if member in living:
                yield Send(to=str(member), order=Hold(epoch=state.epoch))

    def ask_again(self, state: RootState, node: str) -> Iterator[Instruction]:
        """Send the order again after a connection broke, because it may have been lost."""
        if self.is_under_way:
            yield Send(to=node, order=Hold(epoch=state.epoch))

    def is_complete(self, rank: int, state: RootState) -> bool:
        """Note that a rank has stopped; return whether all have, after the same version."""
        self._held.add(rank)
        return self.is_under_way and state.phase == "running" and self._held >= set(state.ranks)

    def late(self, at_s: float, ranks: Collection[int]) -> str:
        """Return, once, which ranks have not stopped for long; else an empty text."""
        passed_s = at_s - self._since_s
        if not self.is_under_way or self._is_late_told or passed_s < LATE_S:
            return ""
        self._is_late_told = True
        away = listed([rank for rank in ranks if rank not in self._held])
        return (
            f"training is to continue with other nodes; rank {away} has not come to the end of its "
            f"iteration in {passed_s:.0f} s, and is waited for"
        )
