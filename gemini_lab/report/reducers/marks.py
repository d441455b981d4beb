"""Where failures and recoveries were in time: what the timeline marks across all its lanes."""

from dataclasses import dataclass, replace
from typing import Literal

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Diverged,
    Injected,
    LossNotFinite,
    NodeDrained,
    NodeLeaving,
    NodeLost,
    RecoveryFinished,
    RecoveryStarted,
    ReplicasPlaced,
    Resized,
    ResizeRefused,
    Rewound,
    WorkerExited,
    WorkerHung,
    WrongSums,
)
from gemini_lab.report.reducers.checks import MOST_KEPT, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that concerns the whole timeline.

    Attributes:
        kind: `"injected"`, `"noticed"` (a failure), `"lost"` (a node is gone) or `"recovery"`.
        start_s: When it happened or began, on the log's clock.
        end_s: When it was over; None while it is not, or if it has no length.
        lane: Name of the node concerned, or `""`.
        text: For people.
    """

    kind: Literal["injected", "noticed", "lost", "recovery"]
    start_s: float
    end_s: float | None = None
    lane: str = ""
    text: str = ""


class Marks:
    """Failures and recoveries, in the order in which the log tells them.

    Attributes:
        marks: All of them; a recovery's gets its end when that is told.
        changes: Counts changes of `marks`.
    """

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.changes = 0
        self._recoveries: dict[int, int] = {}
        self._wrong = (-1, -1)  # epoch and iteration of the newest wrong sums: the same
        self._rewound = (-1, -1)  # epoch and number of the newest rewind: every rank says it

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        at_s, node, event = entry.at_s, entry.node, entry.event
        match event:
            case Injected():
                text = f"{event.failure.replace('_', ' ')} on {node}"
                self._mark(Mark(kind="injected", start_s=at_s, lane=node, text=text))
            case NodeLost(name=name):
                self._mark(Mark(kind="lost", start_s=at_s, lane=name, text=f"{name} is gone"))
            case NodeLeaving(name=name):
                self._mark(Mark(kind="noticed", start_s=at_s, lane=name, text=f"{name} is to go"))
            case NodeDrained(name=name):
                text = f"{name} has no ranks any more"
                self._mark(Mark(kind="noticed", start_s=at_s, lane=name, text=text))
            case Resized() | ReplicasPlaced() | ResizeRefused():
                text = f"{event}"
                self._mark(Mark(kind="noticed", start_s=at_s, text=text))
            case WorkerExited() | WorkerHung():
                what = "exited" if isinstance(event, WorkerExited) else "hangs"
                text = f"rank {event.rank} on {node} {what}"
                self._mark(Mark(kind="noticed", start_s=at_s, lane=node, text=text))
            case Diverged():
                text = f"DIVERGED: rank {event.rank}, iteration {event.iteration}: {event.differs}"
                self._mark(Mark(kind="noticed", start_s=at_s, text=text))
            case LossNotFinite():
                text = f"NOT FINITE: {event}"
                self._mark(Mark(kind="noticed", start_s=at_s, text=text))
            case Rewound() as said if (said.epoch, said.rewinds) > self._rewound:
                self._rewound = said.epoch, said.rewinds
                text = f"WENT BACK: {said}"
                started_s = at_s - seconds(said.duration_s)
                self._mark(Mark(kind="recovery", start_s=started_s, end_s=at_s, text=text))
            case WrongSums() as said if (said.epoch, said.iteration) > self._wrong:
                self._wrong = said.epoch, said.iteration
                self._mark(Mark(kind="noticed", start_s=at_s, text=f"WRONG SUMS: {said}"))
            case RecoveryStarted(recovery=number):
                started_s = seconds(event.failed_at_s)
                self._recoveries[number] = len(self.marks)
                self._mark(Mark(kind="recovery", start_s=started_s, text=f"recovery {number}"))
            case RecoveryFinished(recovery=number) if number in self._recoveries:
                place = self._recoveries[number]
                text = f"{self.marks[place].text}, from version {event.version}"
                self.marks[place] = replace(self.marks[place], end_s=at_s, text=text)
                self.changes += 1

    def _mark(self, mark: Mark) -> None:
        if len(self.marks) >= MOST_KEPT:
            raise OverflowError(f"more than {MOST_KEPT} failures")
        self.marks.append(mark)
        self.changes += 1
