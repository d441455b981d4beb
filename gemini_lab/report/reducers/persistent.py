"""What the run wrote to the persistent tier, and what did not get there."""

from collections import deque
from typing import Final

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import PersistFailed, PersistFinished
from gemini_lab.report.reducers.checks import MOST_KEPT, seconds, whole

TIMED: Final = 10_000
"""Newest versions of which it is known when they were whole."""


class Persistent:
    """Versions in the persistent tier.

    Attributes:
        size_bytes: Of all that was written.
        versions: Which are whole there.
        written: When each was whole, and how long it took.
        failed: Versions that did not get there.
        failures: Why a version did not get there, for people.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.failed = 0
        self.versions: set[int] = set()
        self.written: deque[tuple[float, float]] = deque(maxlen=TIMED)
        self.failures: deque[str] = deque(maxlen=MOST_KEPT)

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case PersistFinished() as done:
                version, size_bytes = whole(done.version), whole(done.size_bytes)
                self.written.append((entry.at_s, seconds(done.duration_s)))
                self.versions.add(version)
                self.size_bytes += size_bytes
            case PersistFailed() as failed:
                self.failed += 1
                self.failures.append(f"version {failed.version}: {failed.reason}")
