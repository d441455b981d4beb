"""When a lab has lost all of its nodes, and what it does about it: a decision, without any I/O."""

from typing import Final, Literal

LOOK_S: Final = 1.0
LOST_S: Final = 3.0  # after this long without any agent, new machines are asked for
ALONE_S: Final = 60.0  # after this long without any, and none on its way, a run has ended

Verdict = Literal["wait", "bring", "end"]


class Alone:
    """How long a lab has been without any agent.

    No root agent is left then that would ask for machines, so the lab itself does, once. That the
    store still names agents, whose leases have not run out, or does not answer, delays it.
    """

    def __init__(self) -> None:
        self._alone_s = 0.0
        self._has_asked = False

    def look(self, *, is_connected: bool, is_coming: bool, is_empty: bool) -> Verdict:
        """What is to be done now, asked every `LOOK_S`.

        Args:
            is_connected: Whether any agent is.
            is_coming: Whether a machine is on its way: it takes its time.
            is_empty: Whether the store has answered, and names no agent.
        """
        if is_connected:
            self._alone_s, self._has_asked = 0.0, False
            return "wait"
        if not is_coming:
            self._alone_s += LOOK_S
        if self._alone_s >= ALONE_S:
            return "end"
        if self._alone_s > LOST_S and is_empty and not self._has_asked:
            self._has_asked = True
            return "bring"
        return "wait"
