"""Whether all workers live, asked where a connection between them broke.

A worker whose peer has died often knows it before that one's agent does, so the root agent asks. An
agent answers after all that it has said of workers that ended, and not where one of them has: that
one's end is on its way, with its words.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from gemini_lab.recovery.messages import CallRoll
from gemini_lab.recovery.protocol import AgentJoined, Send
from gemini_lab.recovery.root_state import RootState

ANSWER_S: Final = 0.5
"""For the answers; who gives none may be gone, which is noticed otherwise, or just be slow."""


class RollCall:
    """Which nodes' workers all live.

    Attributes:
        is_under_way: Whether nodes were asked, and have not all answered.
    """

    def __init__(self) -> None:
        self.is_under_way = False
        self._since_s = 0.0
        self._open: set[str | None] = set()

    def restart(self) -> None:
        """The workers end, or stand still: what was asked is answered."""
        self.is_under_way = False

    def begin(
        self, at_s: float, state: RootState, living: Mapping[str, AgentJoined]
    ) -> Iterator[Send]:
        """Ask all nodes that train, unless they are asked already."""
        if self.is_under_way:
            return
        self.is_under_way, self._since_s = True, at_s
        self._open = {*state.members}
        for member in dict.fromkeys(state.members):
            if member in living:
                yield Send(to=str(member), order=CallRoll(epoch=state.epoch))

    def hear(self, node: str) -> bool:
        """All workers of a node live; whether now those of all nodes do."""
        self._open.discard(node)
        return self.is_under_way and not self._open

    def is_late(self, at_s: float) -> bool:
        """Whether it is to be done without the answers that are missing."""
        return self.is_under_way and at_s - self._since_s >= ANSWER_S
