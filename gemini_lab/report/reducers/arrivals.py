"""How long new machines took to come, from when they were asked for."""

from collections import deque

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    DrainWaiting,
    LabStarted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeRequested,
)
from gemini_lab.report.reducers.checks import MOST_KEPT


class Arrivals:
    """Machines that came in place of others, those that were asked for first coming first.

    A request may be told twice, as by a root agent that takes over; so there is one for each
    machine that is gone or is to go, and it counts from the first one told after that.

    Attributes:
        waits_s: From a request until the machine's agent was there, one a machine.
    """

    def __init__(self) -> None:
        self.waits_s: deque[float] = deque(maxlen=MOST_KEPT)
        self._known: set[str] = set()
        self._lost: set[str] = set()
        self._unordered = 0
        self._ordered_s: deque[float] = deque(maxlen=MOST_KEPT)

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case LabStarted(names=names):
                self._known.update(names[:MOST_KEPT])
            case NodeLost(name=name) | NodeLeaving(name=name) if self._is_there(name):
                self._lost.add(name)
                self._unordered += 1
            case DrainWaiting(name=name, is_given_up=True):
                self._stay(name)
            case NodeRequested():
                self._ordered_s.extend([entry.at_s] * min(self._unordered, MOST_KEPT))
                self._unordered = 0
            case NodeJoined(name=name) if len(self._known) < MOST_KEPT:
                self._join(name, entry.at_s)

    def _is_there(self, name: str) -> bool:
        return name in self._known and name not in self._lost

    def _join(self, name: str, at_s: float) -> None:
        self._stay(name)  # it may only have been silent
        if name not in self._known and self._ordered_s:
            self.waits_s.append(max(0.0, at_s - self._ordered_s.popleft()))
        self._known.add(name)

    def _stay(self, name: str) -> None:
        if name not in self._lost:
            return
        self._lost.discard(name)
        if self._unordered:
            self._unordered -= 1
        elif self._ordered_s:
            self._ordered_s.pop()
