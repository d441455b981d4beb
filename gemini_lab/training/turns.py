"""A job that trains in turns with another one, for `gemini-lab bench`: this side is a rank's."""

import socket
from pathlib import Path
from typing import Final

TURN: Final = b"."
"""A rank sends this when its turn is over, and receives it when the next one begins."""
LIMIT_S: Final = 300.0
"""The longest time of a turn, or of a job's start."""


class Turns:
    """The turns of a rank.

    Args:
        address: The Unix socket of the bench that gives turns to this job's ranks.
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
        """Wait until the next turn begins, or until the bench has closed the connection."""
        self._giver.sendall(TURN)
        self._giver.recv(1)
