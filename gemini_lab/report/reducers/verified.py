"""Which iterations were computed again on other machines, and who computed wrong."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import SumsVerified, WrongSums
from gemini_lab.report.reducers.checks import MOST_KEPT, seconds, whole


class VerifiedSums:
    """What was verified, and each time that machines came to different numbers.

    Attributes:
        count: Iterations of which all machines computed the same.
        newest: The newest of them; `None` for none.
        took_s: What that took, all together.
        wrong: Each time that they did not, once though every rank says it; the newest.
        total: How many of these there were, also before those that are kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self.newest: int | None = None
        self.took_s = 0.0
        self.wrong: list[WrongSums] = []
        self.total = 0
        self._last: tuple[int, int, str] = (-1, -1, "")

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case SumsVerified() as said:
                self.count += 1
                self.newest = whole(said.iteration)
                self.took_s += seconds(said.duration_s)
            case WrongSums() as said:
                key = whole(said.epoch), whole(said.iteration), said.work
                if key == self._last:
                    return
                self._last = key
                self.total += 1
                self.wrong.append(said)
                del self.wrong[:-MOST_KEPT]
                if said.goes_back:
                    self.newest = whole(said.version)
