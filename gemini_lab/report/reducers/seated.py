"""Which nodes had ranks, at any time of a run."""

from array import array
from bisect import bisect_right, insort

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import RecoveryPlanned
from gemini_lab.report.reducers.checks import MOST_KEPT, seconds, whole


class Seated:
    """Who sits where from one plan to the next, in whichever order the plans are told.

    Memory: 4 bytes for each node of every plan that has other nodes than those before it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._sets: dict[bytes, bytes] = {}
        self._plans: list[tuple[float, bytes]] = []

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        event = entry.event
        if not isinstance(event, RecoveryPlanned) or len(self._plans) >= MOST_KEPT:
            return
        at_s, _ = seconds(entry.at_s), whole(event.version or 0)  # an odd plan seats nobody
        numbers = {
            self._numbers.setdefault(name, len(self._numbers)) for name in event.members if name
        }
        packed = array("I", sorted(numbers)).tobytes()
        insort(self._plans, (at_s, self._sets.setdefault(packed, packed)))

    def had_ranks(self, node: str, at_s: float) -> bool:
        """Whether a node had ranks then; every node may have, before the first plan."""
        before = bisect_right(self._plans, at_s, key=lambda plan: plan[0])
        if before == 0:
            return True
        return self._numbers.get(node, -1) in memoryview(self._plans[before - 1][1]).cast("I")
