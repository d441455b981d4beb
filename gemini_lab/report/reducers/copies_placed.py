"""When copies were placed anew because the risk had changed, and why that is not enough."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import ReplicasPlaced, ReplicasShort, RunFailed, RunFinished
from gemini_lab.report.reducers.checks import MOST_KEPT


class CopiesPlaced:
    """Each change of who keeps what.

    Attributes:
        found: The newest, in order of the log.
        short: Why the target is not reached; empty if it is, or nothing was said.
    """

    def __init__(self) -> None:
        self.found: list[ReplicasPlaced] = []
        self.short = ""

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case ReplicasPlaced() as said:
                self.found.append(said)
                del self.found[:-MOST_KEPT]
                self.short = ""
            case ReplicasShort(reason=reason):
                self.short = reason
            case RunFinished() | RunFailed():
                self.short = ""
