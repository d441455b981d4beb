"""A run's events as bars and marks for the timeline.

Checkpoint bytes are *exposed* while a training collective of the same node was under way, and
while the step waited for their version to be whole; they are *hidden* the rest of the time
(`gemini_lab.report.reducers.exposure`). Where a log has no collectives, only waits count:
`TrafficBars.basis`.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Collectives,
    Iteration,
    IterationBegun,
    Protected,
    RecoveryStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    ShardRestored,
    Transfer,
    VersionComplete,
)
from gemini_lab.report.bars import Bars, Kind, Rows
from gemini_lab.report.pyramid import Pyramid
from gemini_lab.report.reducers import seconds, whole
from gemini_lab.report.reducers.exposure import (
    SHORTEST_EXPOSED_S,
    Busy,
    Interval,
    Judged,
    Sending,
    judge,
)
from gemini_lab.report.reducers.nodes import LAB, Nodes
from gemini_lab.report.reducers.recoveries import Marks, TimelineMark

MAX_NAMES: Final = 65_535
"""Lanes and names that a column's two bytes can tell apart."""

SHORTEST_WAIT_S: Final = 0.001
"""Shorter waits are counted like any other, but get no bar."""


@dataclass(slots=True)
class Rank:
    """The state of a rank until its traffic is judged."""

    lane: int  # where it sits
    done: tuple[int, int] = (-1, -1)  # epoch and number of the iteration that it told last
    whole_s: float = -inf  # when its newest version was whole
    told: int = -1  # the version whose transfers it told last
    open: list[Sending] = field(default_factory=list)  # what it sent, and is not judged
    waits: list[Interval] = field(default_factory=list)  # when it waited for checkpoints


class TrafficBars:
    """Bars and marks of a run, in the order in which the log tells them.

    A sending is judged when its rank has ended the iteration after it, so that everything it may
    have met is known, or when the run ends; until then its bytes are open.

    Memory: `bars.ROW_BYTES` for each of `limit` bars; when it is full, the oldest quarter goes, and
    is in the pyramid alone.

    Args:
        pyramid: Where all of them go; `None` to let the oldest be lost.
    """

    def __init__(
        self, nodes: Nodes, *, limit: int = 1_000_000, pyramid: Pyramid | None = None
    ) -> None:
        bars = Bars(limit, settle=None if pyramid is None else self._settle)
        self.nodes = nodes
        self.bars = bars
        self.lanes: list[str] = []  # node names; a bar's `lane` and `peer` point here
        # For each lane the seconds that training waited for checkpoints or shared its network with
        # them.
        self.costs_s: list[float] = []
        self.names: list[str] = [""]  # names of collectives; a bar's `name` points here
        self.ranks: dict[int, Rank] = {}
        self.busy: dict[int, Busy] = {}  # for each lane, when training used its network
        # The latest time told, on the log's clock; None before the first.
        self.newest_s: float | None = None
        self.origin_s: float | None = None  # when the run started, or its first event
        # What hidden and exposed were judged by: `"collectives"` and waits, or `"waits"` alone.
        self.basis: Literal["collectives", "waits"] = "waits"
        self.is_blocking = False
        self.hidden_bytes = 0.0  # sent while nobody minded
        self.exposed_bytes = 0.0  # sent while training used the network or waited
        self._lane_of: dict[str, int] = {}
        self._name_of: dict[str, int] = {"": 0}
        self._changes = 0
        self.pyramid = pyramid  # all but those that were not settled; `None` where none is kept
        self.is_over = False
        self.is_simulated = False
        self.replicas = 1  # copies of each shard, the owner's counted; 1 where the log does not say
        self._is_placed = False  # whether a placement was told
        self._rack_of: dict[str, str] = {}
        self._failures = Marks()

    @property
    def open_bytes(self) -> float:
        return sum(sending.size_bytes for rank in self.ranks.values() for sending in rank.open)

    def sit(self, number: int, node: str) -> Rank:
        """Return the rank; its lane is now that of the node that speaks for it."""
        lane = self.lane(node)
        rank = self.ranks.get(number)
        if rank is None:
            rank = self.ranks[number] = Rank(lane=lane)
        elif rank.lane != lane:  # a recovery moved it
            rank.lane = lane
        return rank

    def lane(self, node: str) -> int:
        lane = _number(node, self._lane_of, self.lanes)
        if lane == len(self.costs_s):
            self.costs_s.append(0.0)
        return lane

    def name(self, name: str) -> int:
        return _number(name, self._name_of, self.names)

    @property
    def marks(self) -> list[TimelineMark]:
        return self._failures.marks

    @property
    def changes(self) -> int:
        return self._failures.changes + self._changes + len(self.nodes.comings)

    @property
    def racks(self) -> list[str]:
        """The rack of each lane's node; empty where the log does not say."""
        return [self._rack_of.get(node, "") for node in self.lanes]

    def _settle(self, rows: Rows) -> None:
        if self.pyramid is not None:
            self.pyramid.append(rows)

    def take(self, entry: Entry) -> None:
        at_s, event = seconds(entry.at_s), entry.event
        if self.origin_s is None:
            self.origin_s = at_s
        match event:
            case Collectives():
                self._collectives(entry.node, event)
            case Transfer():
                self._transfer(entry.node, event)
            case Iteration():
                self._iteration(entry.node, at_s, event)
            case VersionComplete():
                self._version_complete(entry.node, at_s, event)
            case IterationBegun():
                pass
            case _:
                self._follow(entry)
        if self.newest_s is None or at_s > self.newest_s:
            self.newest_s = at_s

    def _follow(self, entry: Entry) -> None:
        at_s, event = entry.at_s, entry.event
        match event:
            case ShardRestored(tier="peer"):
                self._restored(entry.node, at_s, event)
            case RunStarted():
                seated = zip(self.nodes.members, event.racks or (), strict=False)
                self._rack_of |= {node: rack for node, rack in seated if node is not None}
                self.origin_s, self.is_over = at_s, False
                self.is_simulated = event.simulated is not None
                self._changes += 1
            case Protected():
                self.sit(event.rank, entry.node)
                self.is_blocking = event.settings.scheme == "blocking"
                if event.placement is not None:
                    self.replicas, self._is_placed = event.placement.replicas, True
                elif not (self._is_placed or event.settings.adapt_replicas):
                    self.replicas = event.settings.replicas
            case RunFinished() | RunFailed():
                self._judge_all()
                self.is_over = True
                self._changes += 1
            case RecoveryStarted():
                self._judge_all()
        self._failures.take(entry)

    # -- traffic -------------------------------------------------------------------------------

    def _collectives(self, node: str, event: Collectives) -> None:
        if event.order:
            until_s = seconds(_end_of(event))
            lane = self.lane(node)
            names = [self.name(name) for name, _ in event.kinds]
            self.bars.add_collectives(event, lane=lane, names=names)
            self.busy.setdefault(lane, Busy()).add(event, until_s=until_s)
        if self.basis == "waits":
            self.basis = "collectives"
            self._changes += 1

    def _iteration(self, node: str, at_s: float, event: Iteration) -> None:
        rank, key = self.sit(event.rank, node), (event.epoch, event.iteration)
        if event.restored or key == rank.done:  # told again, from a version or with values
            return
        start_s, waited_s = at_s - seconds(event.duration_s), seconds(event.waited_s)
        rank.done = key
        self._judge(event.rank, rank, until_s=start_s, keep_s=start_s - event.duration_s)
        self.bars.add(
            Kind.ITERATION,
            start_s,
            at_s,
            lane=rank.lane,
            number=event.iteration,
            rank=event.rank,
            part=min(round(waited_s * 1e6), 2**31 - 1),
        )
        if waited_s > 0:
            end_s = rank.whole_s if start_s <= rank.whole_s <= at_s else at_s
            wait = (end_s - waited_s, end_s)
            self.costs_s[rank.lane] += waited_s
            rank.waits.append(wait)
            if waited_s >= SHORTEST_WAIT_S:
                self.bars.add(
                    Kind.WAIT, *wait, lane=rank.lane, number=event.iteration, rank=event.rank
                )

    def _transfer(self, node: str, event: Transfer) -> None:
        rank = self.sit(event.rank, node)
        rank.told = event.version
        peer = self.nodes.node_of(event.peer)
        self._sent(
            Kind.TRANSFER,
            event.rank,
            rank,
            seconds(event.start_s),
            seconds(event.end_s),
            size_bytes=float(event.sent_bytes),
            version=event.version,
            peer=-1 if peer is None else self.lane(peer),
            part=-1 if event.span is None else event.span,
        )

    def _version_complete(self, node: str, at_s: float, event: VersionComplete) -> None:
        rank, size_bytes = self.sit(event.rank, node), float(event.sent_bytes)
        start_s = at_s - seconds(event.duration_s)
        rank.whole_s = at_s
        if self.is_blocking:
            rank.waits.append((start_s, at_s))
        if rank.told != event.version and size_bytes > 0:
            self._sent(
                Kind.VERSION,
                event.rank,
                rank,
                start_s,
                at_s,
                size_bytes=size_bytes,
                version=event.version,
                peer=-1,
                part=-1,
            )
        self.bars.add(
            Kind.COMPLETE,
            at_s,
            at_s,
            lane=rank.lane,
            size_bytes=size_bytes,
            number=event.version,
            rank=event.rank,
        )

    def _sent(
        self,
        kind: Kind,
        number: int,
        rank: Rank,
        start_s: float,
        end_s: float,
        *,
        size_bytes: float,
        version: int,
        peer: int,
        part: int,
    ) -> None:
        self.bars.add(
            kind,
            start_s,
            end_s,
            lane=rank.lane,
            size_bytes=size_bytes,
            number=version,
            part=part,
            rank=number,
            peer=peer,
        )
        rank.open.append(
            Sending(start_s=start_s, end_s=end_s, size_bytes=size_bytes, version=version, peer=peer)
        )

    def _restored(self, node: str, at_s: float, event: ShardRestored) -> None:
        start_s = at_s - seconds(event.retrieve_s + event.verify_s + event.load_s)
        receiver = self.nodes.node_of(event.shard) if node == LAB else node
        self.bars.add(
            Kind.RESTORE,
            start_s,
            start_s + event.retrieve_s,
            lane=self.lane(str(event.holder)),
            size_bytes=float(event.size_bytes),
            number=event.version,
            rank=event.shard,
            peer=self.lane(receiver or node),
        )

    # -- hidden or exposed ---------------------------------------------------------------------

    def _judge(self, number: int, rank: Rank, *, until_s: float, keep_s: float) -> None:
        """Judge what the rank had sent by `until_s`; forget what was over before `keep_s`."""
        ready = [sending for sending in rank.open if sending.end_s <= until_s]
        busy = self.busy.setdefault(rank.lane, Busy())
        if ready:
            rank.open = [sending for sending in rank.open if sending.end_s > until_s]
            from_s, to_s = min(one.start_s for one in ready), max(one.end_s for one in ready)
            for judged in judge(ready, [*busy.near(from_s, to_s), *rank.waits]):
                self._count(number, rank.lane, judged)
        rank.waits = [wait for wait in rank.waits if wait[1] > keep_s]
        busy.forget(keep_s)

    def _judge_all(self) -> None:
        for number, rank in self.ranks.items():
            self._judge(number, rank, until_s=inf, keep_s=-inf)
            rank.waits.clear()
        self.busy.clear()

    def _count(self, number: int, lane: int, judged: Judged) -> None:
        sending, exposed_bytes = judged.sending, judged.exposed_bytes
        self.exposed_bytes += exposed_bytes
        self.hidden_bytes += sending.size_bytes - exposed_bytes
        whole_s = sending.end_s - sending.start_s
        for start_s, end_s in judged.exposed:
            self.costs_s[lane] += end_s - start_s
            if end_s - start_s < SHORTEST_EXPOSED_S < whole_s:
                continue
            share = (end_s - start_s) / whole_s if whole_s > 0 else 1.0
            self.bars.add(
                Kind.EXPOSED,
                start_s,
                end_s,
                lane=lane,
                size_bytes=sending.size_bytes * share,
                number=sending.version,
                rank=number,
                peer=sending.peer,
            )


def _end_of(event: Collectives) -> float:
    """Return a moment before which all collectives of an iteration ended.

    Raises:
        ValueError: No run takes so long, or sends so much.
    """
    for _, size_bytes in event.kinds:
        whole(size_bytes)
    latest_us = whole(sum(map(abs, event.gaps_us))) + whole(max(map(abs, event.durations_us)))
    return seconds(event.began_s) + latest_us / 1e6


def _number(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    """Return the place of `text` in `texts`; it is added if it is new."""
    number = numbers.get(text)
    if number is None:
        if len(texts) >= MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} different names")
        number = numbers[text] = len(texts)
        texts.append(text)
    return number
