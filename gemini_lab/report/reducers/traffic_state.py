"""What is known of a run's traffic so far: who sits where, and what is not judged yet."""

from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from gemini_lab.report.pyramid.bars import Bars
from gemini_lab.report.reducers.exposure import Busy, Interval, Sending
from gemini_lab.report.reducers.nodes import Nodes

MAX_NAMES: Final = 65_535
"""Lanes and names that a column's two bytes can tell apart."""

SHORTEST_WAIT_S: Final = 0.001
"""Shorter waits are counted like any other, but get no bar."""


@dataclass(slots=True)
class Rank:
    """What is remembered of a rank until its traffic is judged.

    Attributes:
        lane: Where it sits.
        done: Epoch and number of the iteration that it told last.
        whole_s: When its newest version was whole.
        told: The version whose transfers it told last.
        open: What it sent, and is not judged.
        waits: When it waited for checkpoints.
    """

    lane: int
    done: tuple[int, int] = (-1, -1)
    whole_s: float = -inf
    told: int = -1
    open: list[Sending] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)


class TrafficState:
    """What taking in a line, or a stretch of lines, reads and changes.

    Args:
        nodes: Who sits where; takes an entry before this does.
        bars: The newest ones.

    Attributes:
        nodes: As given.
        bars: As given.
        lanes: Node names; a bar's `lane` and `peer` point here.
        costs_s: For each lane the seconds that training waited for checkpoints or shared its
            network with them.
        names: Names of collectives; a bar's `name` points here.
        ranks: What is remembered of each.
        busy: For each lane, when training used its network.
        newest_s: The latest time told, on the log's clock; None before the first.
        origin_s: When the run started, or its first event.
        basis: What hidden and exposed were judged by: `"collectives"` and waits, or `"waits"`
            alone.
        is_blocking: Whether training waits while checkpoints are sent.
        hidden_bytes: Sent while nobody minded.
        exposed_bytes: Sent while training used the network or waited.
    """

    def __init__(self, nodes: Nodes, bars: Bars) -> None:
        self.nodes = nodes
        self.bars = bars
        self.lanes: list[str] = []
        self.costs_s: list[float] = []
        self.names: list[str] = [""]
        self.ranks: dict[int, Rank] = {}
        self.busy: dict[int, Busy] = {}
        self.newest_s: float | None = None
        self.origin_s: float | None = None
        self.basis: Literal["collectives", "waits"] = "waits"
        self.is_blocking = False
        self.hidden_bytes = 0.0
        self.exposed_bytes = 0.0
        self._lane_of: dict[str, int] = {}
        self._name_of: dict[str, int] = {"": 0}
        self._changes = 0

    @property
    def open_bytes(self) -> float:
        """Sent, but not judged yet."""
        return sum(sending.size_bytes for rank in self.ranks.values() for sending in rank.open)

    def sit(self, number: int, node: str) -> Rank:
        """The rank, on the node that speaks for it."""
        lane = self.lane(node)
        rank = self.ranks.get(number)
        if rank is None:
            rank = self.ranks[number] = Rank(lane=lane)
        elif rank.lane != lane:  # a recovery moved it
            rank.lane = lane
        return rank

    def lane(self, node: str) -> int:
        """The lane of a node, a new one for a new node."""
        lane = _number(node, self._lane_of, self.lanes)
        if lane == len(self.costs_s):
            self.costs_s.append(0.0)
        return lane

    def known_lane(self, node: str) -> int:
        """The lane of a node; -1 where it has none."""
        return self._lane_of.get(node, -1)

    def name(self, name: str) -> int:
        """The number of a collective's name, a new one for a new name."""
        return _number(name, self._name_of, self.names)

    def judge_by_collectives(self) -> None:
        """Note that the log tells collectives."""
        if self.basis == "waits":
            self.basis = "collectives"
            self._changes += 1


def _number(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    """The place of `text` in `texts`, where it is added if it is new."""
    number = numbers.get(text)
    if number is None:
        if len(texts) >= MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} different names")
        number = numbers[text] = len(texts)
        texts.append(text)
    return number
