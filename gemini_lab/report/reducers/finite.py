"""While the losses of a run were no numbers."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import LossFinite, LossNotFinite
from gemini_lab.report.reducers.checks import MOST_KEPT, whole
from gemini_lab.report.values import NotFinite


class Finite:
    """When losses were NaN or infinite, as the root agent noticed.

    Attributes:
        found: In order of the log; the last may not be over.
    """

    def __init__(self) -> None:
        self.found: list[NotFinite] = []

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case LossNotFinite(iteration=iteration) as noticed:
                whole(iteration)
                # A root that was just elected says it again.
                if len(self.found) < MOST_KEPT and self.under_way is None:
                    self.found.append(NotFinite(began=noticed))
            case LossFinite(iteration=iteration) if self.under_way is not None:
                self.found[-1] = NotFinite(began=self.found[-1].began, ended=whole(iteration))

    @property
    def under_way(self) -> NotFinite | None:
        """What is not over, if it is so."""
        return self.found[-1] if self.found and self.found[-1].ended is None else None
