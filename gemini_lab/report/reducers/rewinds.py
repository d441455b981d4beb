"""When training went back to a version in memory, and why."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Rewound
from gemini_lab.report.reducers.checks import MOST_KEPT, whole


class Rewinds:
    """Each time once, though every rank says it.

    Attributes:
        found: The newest, in order of the log; what the first rank said.
        total: How many there were, also before those that are kept.
    """

    def __init__(self) -> None:
        self.found: list[Rewound] = []
        self.total = 0
        self._newest = (-1, -1)  # epoch, and how many there were in it

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case Rewound() as said if (whole(said.epoch), whole(said.rewinds)) > self._newest:
                self._newest = (said.epoch, said.rewinds)
                self.total += 1
                self.found.append(said)
                del self.found[:-MOST_KEPT]
