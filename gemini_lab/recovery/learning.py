"""How often machines fail, learned from the logs of earlier runs on them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.placement import Risk
from gemini_lab.seats import node_name

READ: Final = (
    events.RunStarted,
    events.RunFinished,
    events.RunFailed,
    events.NodeJoined,
    events.NodeReady,
    events.NodeLost,
    events.NodeLeaving,
    events.NodeDrained,
    events.Protected,
    events.WorkerExited,
    events.WorkerHung,
    events.RecoveryStarted,
)
"""The events that tell of machines; of a long log few lines are others'."""


class RiskReader:
    """Follows a log, and knows what was seen of each machine by then.

    A machine fails when it is lost, falls silent, or when one of its workers is killed by a signal
    or hangs. Errors of the script's own, and machines that were to go, are no failures.

    Attributes:
        risk: What was seen.
    """

    def __init__(self) -> None:
        self.risk = Risk()
        self._rack_of: Mapping[str, str] = {}
        self._node_of: dict[int, str] = {}
        self._going: set[str] = set()
        self._killed = ""  # whose worker was, before a recovery began that is due to it
        self._is_awaited = False  # whether such a recovery began before its worker's end was said
        self._last_s = 0.0

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        at_s, event = entry.at_s, entry.event
        self._last_s = at_s
        match event:
            case events.RunStarted(racks=racks):
                self._rack_of = {node_name(n): rack for n, rack in enumerate(racks or ())}
            case events.NodeJoined(name=name) | events.NodeReady(name=name):
                self.risk = self.risk.joined(name, at_s)
            case events.Protected(rank=rank):
                self._node_of[rank] = entry.node
                self.risk = self.risk.joined(entry.node, at_s)
            case events.NodeLeaving(name=name) | events.NodeDrained(name=name):
                self._going.add(name)
            case events.NodeLost(name=name) if name in self._going:
                self.risk = self.risk.left(name, at_s)
            case events.NodeLost(name=name):
                self.risk = self.risk.lost(name, at_s, rack_of=self._rack_of)
            case events.WorkerHung(rank=rank) if rank in self._node_of:
                self.risk = self.risk.failed(self._node_of[rank], at_s)
            case events.WorkerExited() | events.RecoveryStarted():
                self._take_end(at_s, entry.node, event)
            case events.RunFinished() | events.RunFailed():
                self.close()
            case _:
                pass

    def close(self) -> None:
        """Nothing more is seen of anybody."""
        self.risk = self.risk.at(self._last_s)

    def _take_end(
        self, at_s: float, node: str, event: events.WorkerExited | events.RecoveryStarted
    ) -> None:
        """A killed worker counts where a recovery answers it; which is said first is chance."""
        if isinstance(event, events.WorkerExited):
            if event.signal is not None and self._is_awaited:
                self.risk, self._is_awaited = self.risk.failed(node, at_s), False
            elif event.signal is not None:
                self._killed = node
            return
        self._is_awaited = event.cause == "worker_exited" and not self._killed
        if event.cause == "worker_exited" and self._killed:
            self.risk = self.risk.failed(self._killed, at_s)
        self._killed = ""


def learn_risk(entries: Iterable[Entry]) -> Risk:
    """What the entries of one run's log tell of its machines."""
    reader = RiskReader()
    for entry in entries:
        reader.take(entry)
    reader.close()
    return replace(reader.risk, memory_bytes={})
