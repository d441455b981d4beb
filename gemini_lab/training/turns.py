"""A job that trains in turns with another one, for `gemini-lab bench`: this side is a rank's."""

import socket
from pathlib import Path
from typing import Final

TURN: Final = b"."
"""What a rank sends when its turn is over, and gets when the next one begins."""
LIMIT_S: Final = 300.0
"""For how long one turn, or a job's start, may last."""


class Turns:
    """The turns of a rank.

    Args:
        address: The Unix socket of whoever gives turns to this job's ranks.
        iterations: Of a turn.
    """

    def __init__(self, address: Path, iterations: int) -> None:
        self._iterations = iterations
        self._giver = socket.socket(socket.AF_UNIX)
        self._giver.settimeout(2 * LIMIT_S)
        self._giver.connect(str(address))

    def are_over(self, done: int) -> bool:
        """Return whether a turn ends after this many iterations; the first begins before any."""
        return done % self._iterations == 0

    def wait(self) -> None:
        """Return when the next turn begins, or when nobody gives turns any more."""
        self._giver.sendall(TURN)
        self._giver.recv(1)
