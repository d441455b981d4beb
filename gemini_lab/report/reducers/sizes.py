"""When a run went on with another number of nodes, and why it is not as large as it is to be."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Resized, ResizeRefused, ResizeWaiting, RunFailed, RunFinished
from gemini_lab.report.reducers.checks import MOST_KEPT, whole


class Sizes:
    """Each change of a run's size.

    Attributes:
        found: The newest, in order of the log.
        waits_for: Why it is not the size that it is to be; empty if it is, or nothing was said.
    """

    def __init__(self) -> None:
        self.found: list[Resized] = []
        self.waits_for = ""

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case Resized() as said:
                whole(said.nodes)
                self.found.append(said)
                del self.found[:-MOST_KEPT]
                self.waits_for = ""
            case ResizeWaiting(nodes=nodes, reason=reason):
                self.waits_for = f"{nodes} nodes: {reason}"
            case ResizeRefused(nodes=nodes, reason=reason):
                self.waits_for = f"{nodes} nodes are refused: {reason}"
            case RunFinished() | RunFailed():
                self.waits_for = ""
