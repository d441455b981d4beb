"""Who sent what when: a run's events as bars and marks for the timeline.

Checkpoint bytes are *exposed* while a training collective of the same node was under way, and
while the step waited for their version to be whole; they are *hidden* the rest of the time
(`gemini_lab.report.reducers.exposure`). Where a log has no collectives, only waits count:
`Traffic.basis`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

import numpy as np

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
from gemini_lab.log.stretch import Done, Ints, Stretch
from gemini_lab.report.pyramid.bars import Bars
from gemini_lab.report.pyramid.groups import last_before, last_of
from gemini_lab.report.pyramid.pyramid import Pyramid
from gemini_lab.report.pyramid.rows import Kind, Rows
from gemini_lab.report.reducers import traffic_columns as columns
from gemini_lab.report.reducers.checks import seconds, whole
from gemini_lab.report.reducers.exposure import (
    MAX_BUSY,
    SHORTEST_EXPOSED_S,
    Busy,
    Interval,
    Judged,
    Sending,
    Told,
    judge,
)
from gemini_lab.report.reducers.marks import Mark, Marks
from gemini_lab.report.reducers.nodes import LAB, Nodes

MAX_NAMES: Final = 65_535
"""Lanes and names that a column's two bytes can tell apart."""

SHORTEST_WAIT_S: Final = 0.001
"""Shorter waits are counted like any other, but get no bar."""


@dataclass(slots=True)
class _Rank:
    """What is remembered of a rank until its traffic is judged."""

    lane: int
    done: tuple[int, int] = (-1, -1)
    whole_s: float = -inf
    told: int = -1
    open: list[Sending] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)


class Traffic:
    """Bars and marks of a run, in the order in which the log tells them.

    A sending is judged when its rank has ended the iteration after it, so that everything it may
    have met is known, or when the run ends; until then its bytes are open.

    Memory: `bars.ROW_BYTES` for each of `limit` bars; when it is full, the oldest quarter goes, and
    is in the pyramid alone.

    Args:
        nodes: Who sits where; takes an entry before this does.
        limit: How many bars to keep here.
        pyramid: Where all of them go; `None` to let the oldest be lost.

    Attributes:
        bars: The newest ones.
        pyramid: All but those that were not settled; `None` where none is kept.
        lanes: Node names; a bar's `lane` and `peer` point here.
        costs_s: For each lane the seconds that training waited for checkpoints or shared its
            network with them.
        names: Names of collectives; a bar's `name` points here.
        newest_s: The latest time told, on the log's clock; None before the first.
        origin_s: When the run started, or its first event.
        is_over: Whether the run ended.
        is_simulated: Whether the simulator wrote the log.
        basis: What hidden and exposed were judged by: `"collectives"` and waits, or `"waits"`
            alone.
        hidden_bytes: Sent while nobody minded.
        exposed_bytes: Sent while training used the network or waited.
        replicas: Copies of each shard, the owner's counted; 1 where the log does not say.
    """

    def __init__(
        self, nodes: Nodes, *, limit: int = 1_000_000, pyramid: Pyramid | None = None
    ) -> None:
        self.pyramid = pyramid
        self.bars = Bars(limit, settle=None if pyramid is None else self._settle)
        self.lanes: list[str] = []
        self.costs_s: list[float] = []
        self.names: list[str] = [""]
        self.newest_s: float | None = None
        self.origin_s: float | None = None
        self.is_over = False
        self.is_simulated = False
        self.basis: Literal["collectives", "waits"] = "waits"
        self.hidden_bytes = 0.0
        self.exposed_bytes = 0.0
        self.replicas = 1
        self._nodes = nodes
        self._lane_of: dict[str, int] = {}
        self._name_of: dict[str, int] = {"": 0}
        self._ranks: dict[int, _Rank] = {}
        self._is_blocking = False
        self._rack_of: dict[str, str] = {}
        self._busy: dict[int, Busy] = {}
        self._failures = Marks()
        self._changes = 0

    @property
    def marks(self) -> list[Mark]:
        """Failures and recoveries."""
        return self._failures.marks

    @property
    def changes(self) -> int:
        """Counts changes of `marks` and of everything else that is no bar."""
        return self._failures.changes + self._changes + len(self._nodes.comings)

    @property
    def racks(self) -> list[str]:
        """The rack of each lane's node; empty where the log does not say."""
        return [self._rack_of.get(node, "") for node in self.lanes]

    @property
    def comings(self) -> list[tuple[float, str, bool]]:
        """When a node was gone, or came back: the moment, its name, whether it is there then."""
        return self._nodes.comings

    def _settle(self, rows: Rows) -> None:
        """Put bars into the pyramid."""
        if self.pyramid is not None:
            self.pyramid.append(rows)

    @property
    def open_bytes(self) -> float:
        """Sent, but not judged yet."""
        return sum(sending.size_bytes for rank in self._ranks.values() for sending in rank.open)

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
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
        """Take in what is not told in every iteration."""
        at_s, event = entry.at_s, entry.event
        match event:
            case ShardRestored(tier="peer"):
                self._restored(entry.node, at_s, event)
            case RunStarted():
                seated = zip(self._nodes.members, event.racks or (), strict=False)
                self._rack_of |= {node: rack for node, rack in seated if node is not None}
                self.origin_s, self.is_over = at_s, False
                self.is_simulated = event.simulated is not None
                self._changes += 1
            case Protected():
                self._sit(event.rank, entry.node)
                self._is_blocking = event.settings.scheme == "blocking"
                if event.placement is not None:
                    self.replicas = event.placement.replicas
                elif not event.settings.adapt_replicas:
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
            lane = self._lane(node)
            names = [self._name(name) for name, _ in event.kinds]
            self.bars.add_collectives(event, lane=lane, names=names)
            self._busy.setdefault(lane, Busy()).add(event, until_s=until_s)
        if self.basis == "waits":
            self.basis = "collectives"
            self._changes += 1

    def _iteration(self, node: str, at_s: float, event: Iteration) -> None:
        rank, key = self._sit(event.rank, node), (event.epoch, event.iteration)
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
        rank = self._sit(event.rank, node)
        rank.told = event.version
        peer = self._nodes.node_of(event.peer)
        self._sent(
            Kind.TRANSFER,
            event.rank,
            rank,
            seconds(event.start_s),
            seconds(event.end_s),
            size_bytes=float(event.sent_bytes),
            version=event.version,
            peer=-1 if peer is None else self._lane(peer),
            part=-1 if event.span is None else event.span,
        )

    def _version_complete(self, node: str, at_s: float, event: VersionComplete) -> None:
        rank, size_bytes = self._sit(event.rank, node), float(event.sent_bytes)
        start_s = at_s - seconds(event.duration_s)
        rank.whole_s = at_s
        if self._is_blocking:
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
        rank: _Rank,
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
        receiver = self._nodes.node_of(event.shard) if node == LAB else node
        self.bars.add(
            Kind.RESTORE,
            start_s,
            start_s + event.retrieve_s,
            lane=self._lane(str(event.holder)),
            size_bytes=float(event.size_bytes),
            number=event.version,
            rank=event.shard,
            peer=self._lane(receiver or node),
        )

    # -- many lines at once --------------------------------------------------------------------

    def takes(self, stretch: Stretch) -> bool:
        """Whether it is as usual: all are known and sit where they sat, and nothing is repeated."""
        lanes = [self._lane_of.get(node, -1) for node in stretch.nodes]
        sitting = set(zip(stretch.rank.tolist(), stretch.node.tolist(), strict=True))
        peers = {self._nodes.node_of(peer) for peer in set(stretch.sent.peer.tolist())}
        new_names = {name for kinds in stretch.called.told for name, _ in kinds}
        return (
            self.origin_s is not None
            and len(self.names) + len(new_names) < MAX_NAMES
            and all(peer is None or peer in self._lane_of for peer in peers)
            and all(r in self._ranks and self._ranks[r].lane == lanes[n] for r, n in sitting)
            and not self._is_too_busy(stretch, lanes)
            and not self._is_repeated(stretch)
        )

    def _is_too_busy(self, stretch: Stretch, lanes: list[int]) -> bool:
        """Whether a lane may have more collectives than are remembered."""
        called = stretch.called
        calls = np.bincount(stretch.node[called.line], called.count, len(lanes)).tolist()
        busy = [self._busy[lane].count if lane in self._busy else 0 for lane in lanes]
        return any(old + new > MAX_BUSY for old, new in zip(busy, calls, strict=True))

    def _is_repeated(self, stretch: Stretch) -> bool:
        """Whether a rank tells an iteration twice, one after the other."""
        number, rank = stretch.done.iteration, stretch.rank[stretch.done.line]
        order = np.argsort(rank, kind="stable")
        same = (np.diff(number[order]) == 0) & (np.diff(rank[order]) == 0)
        ranks, first = np.unique(rank, return_index=True)
        told = zip(ranks.tolist(), number[first].tolist(), strict=True)
        return bool(same.any()) or any(
            self._ranks[each].done == (stretch.epoch, iteration) for each, iteration in told
        )

    def take_stretch(self, stretch: Stretch) -> None:
        """Take in a stretch of which `takes` says that it is as usual."""
        lanes = np.array([self._lane_of[node] for node in stretch.nodes], np.int64)
        lane, line = lanes[stretch.node], stretch.done.line
        start_s = stretch.at_s[line] - stretch.done.duration_s
        keep_s = start_s - stretch.done.duration_s
        steps = columns.Steps(line, stretch.rank[line], lane[line], start_s, keep_s)
        ranks = {rank: self._ranks[rank] for rank in np.unique(stretch.rank).tolist()}
        sendings, sending_bars = self._sendings(stretch, lane, ranks)
        waits, wait_bars = self._waits(stretch, steps, ranks)
        busy = [
            (at, told) for at in lanes.tolist() if at in self._busy for told in self._busy[at].told
        ]
        network = columns.network(stretch.called, lane[stretch.called.line], busy)
        by = columns.judged_by(sendings, steps)
        exposures = columns.judge(sendings, by, steps, network, waits)
        self.bars.extend(
            *columns.in_order(
                [
                    self._call_bars(stretch, lane),
                    *sending_bars,
                    exposures.bars(steps),
                    _step_bars(stretch, steps),
                    wait_bars,
                ]
            )
        )
        self._count_all(exposures, steps, stretch.done)
        self._remember(stretch, ranks)
        for rank in ranks.values():
            rank.open, rank.waits = [], []
        for number, sending in sendings.some(by < 0).each():
            ranks[number].open.append(sending)
        for row in np.flatnonzero(columns.is_kept(waits, steps.rank, steps)).tolist():
            wait = float(waits.start_s[row]), float(waits.end_s[row])
            ranks[int(waits.owner[row])].waits.append(wait)
        told: dict[int, list[Told]] = {at: [] for at in lanes.tolist()}
        for row in np.flatnonzero(columns.is_kept(network.spans, steps.lane, steps)).tolist():
            told[int(network.spans.owner[row])].append(network.told(row))
        for at, kept in told.items():
            self._busy.setdefault(at, Busy()).keep(kept)
        self.newest_s = max(-inf if self.newest_s is None else self.newest_s, stretch.newest_s)

    def _sendings(
        self, stretch: Stretch, lane: Ints, ranks: Mapping[int, _Rank]
    ) -> tuple[columns.Sendings, list[columns.Bars]]:
        """What was under way and what is from here on, and the bars of that."""
        sent, whole = stretch.sent, stretch.whole
        sender, owner = stretch.rank[sent.line], stretch.rank[whole.line]
        peers = {peer: self._nodes.node_of(peer) for peer in set(sent.peer.tolist())}
        lane_of = {p: -1 if node is None else self._lane_of[node] for p, node in peers.items()}
        peer = np.array([lane_of[each] for each in sent.peer.tolist()], np.int64)
        before = last_before(sender, sent.line, owner, whole.line)
        told = np.array([ranks[rank].told for rank in owner.tolist()], np.int64)
        told[before >= 0] = sent.version[before[before >= 0]]
        alone = (told != whole.version) & (whole.sent_bytes > 0)
        at_s = stretch.at_s[whole.line]
        new = columns.Sendings(
            np.append(sent.line, whole.line[alone]),
            np.append(sender, owner[alone]),
            np.append(sent.start_s, (at_s - whole.duration_s)[alone]),
            np.append(sent.end_s, at_s[alone]),
            np.append(sent.sent_bytes, whole.sent_bytes[alone]).astype(np.float64),
            np.append(sent.version, whole.version[alone]),
            np.append(peer, np.full(alone.sum(), -1)),
        )
        old = [(number, each) for number, rank in ranks.items() for each in rank.open]
        made = [
            columns.sending_bars(
                new.some(np.arange(len(sent.line))), Kind.TRANSFER, lane, sent.span
            ),
            columns.sending_bars(
                new.some(np.arange(len(sent.line), len(new.line))), Kind.VERSION, lane
            ),
            columns.bars(
                Kind.COMPLETE,
                whole.line,
                at_s,
                at_s,
                lane=lane[whole.line],
                size_bytes=whole.sent_bytes.astype(np.float64),
                number=whole.version,
                rank=owner,
            ),
        ]
        return columns.Sendings.of(old).followed_by(new), made

    def _waits(
        self, stretch: Stretch, steps: columns.Steps, ranks: Mapping[int, _Rank]
    ) -> tuple[columns.Spans, columns.Bars]:
        """When ranks waited, and the bars of that."""
        done, whole = stretch.done, stretch.whole
        owner, at_s = stretch.rank[whole.line], stretch.at_s[whole.line]
        before = last_before(owner, whole.line, steps.rank, steps.line)
        whole_s = np.array([ranks[rank].whole_s for rank in steps.rank.tolist()], np.float64)
        whole_s[before >= 0] = at_s[before[before >= 0]]
        ended_s = stretch.at_s[steps.line]
        end_s = np.where((steps.start_s <= whole_s) & (whole_s <= ended_s), whole_s, ended_s)
        start_s = end_s - done.waited_s
        is_any, is_seen = done.waited_s > 0, done.waited_s >= SHORTEST_WAIT_S
        old = [(number, *wait) for number, rank in ranks.items() for wait in rank.waits]
        blocked = np.full(len(whole.line), self._is_blocking)
        new_line = np.append(steps.line[is_any], whole.line[blocked])
        order = np.argsort(new_line, kind="stable")
        waits = columns.Spans(
            np.append(
                np.array([number for number, _, _ in old], np.int64),
                np.append(steps.rank[is_any], owner[blocked])[order],
            ),
            np.append(np.full(len(old), -1), new_line[order]),
            np.append(
                [start for _, start, _ in old],
                np.append(start_s[is_any], (at_s - whole.duration_s)[blocked])[order],
            ),
            np.append([end for _, _, end in old], np.append(end_s[is_any], at_s[blocked])[order]),
        )
        seen = columns.bars(
            Kind.WAIT,
            steps.line[is_seen],
            start_s[is_seen],
            end_s[is_seen],
            lane=steps.lane[is_seen],
            number=done.iteration[is_seen],
            rank=steps.rank[is_seen],
        )
        return waits, seen

    def _call_bars(self, stretch: Stretch, lane: Ints) -> columns.Bars:
        called = stretch.called
        names = [[0] * len(kinds) for kinds in called.told]
        for which in dict.fromkeys(called.kinds[called.count > 0].tolist()):
            names[which] = [self._name(name) for name, _ in called.told[which]]
        if len(called.line) and self.basis == "waits":
            self.basis = "collectives"
            self._changes += 1
        return columns.call_bars(called, lane[called.line], stretch.rank[called.line], names)

    def _count_all(self, exposures: columns.Exposures, steps: columns.Steps, done: Done) -> None:
        """Count what was exposed and hidden, and what training felt, in the order of telling."""
        sizes = zip(exposures.sendings.size_bytes.tolist(), exposures.sizes().tolist(), strict=True)
        for size_bytes, exposed_bytes in sizes:
            self.exposed_bytes += exposed_bytes
            self.hidden_bytes += size_bytes - exposed_bytes
        waited = np.flatnonzero(done.waited_s > 0)
        step = np.append(exposures.step[exposures.of], waited)
        order = np.argsort(step, kind="stable")
        felt_s = np.append(exposures.end_s - exposures.start_s, done.waited_s[waited])
        costs_s = np.array(self.costs_s)
        np.add.at(costs_s, steps.lane[step[order]], felt_s[order])
        self.costs_s[:] = costs_s.tolist()

    def _remember(self, stretch: Stretch, ranks: Mapping[int, _Rank]) -> None:
        """Know of each rank what it told last."""
        sent, whole, done = stretch.sent, stretch.whole, stretch.done
        for rank, row in zip(*last_of(stretch.rank[sent.line]), strict=True):
            ranks[rank].told = int(sent.version[row])
        for rank, row in zip(*last_of(stretch.rank[whole.line]), strict=True):
            ranks[rank].whole_s = float(stretch.at_s[whole.line[row]])
        for rank, row in zip(*last_of(stretch.rank[done.line]), strict=True):
            ranks[rank].done = stretch.epoch, int(done.iteration[row])

    # -- hidden or exposed ---------------------------------------------------------------------

    def _judge(self, number: int, rank: _Rank, *, until_s: float, keep_s: float) -> None:
        """Judge what the rank had sent by `until_s`; forget what was over before `keep_s`."""
        ready = [sending for sending in rank.open if sending.end_s <= until_s]
        busy = self._busy.setdefault(rank.lane, Busy())
        if ready:
            rank.open = [sending for sending in rank.open if sending.end_s > until_s]
            from_s, to_s = min(one.start_s for one in ready), max(one.end_s for one in ready)
            for judged in judge(ready, [*busy.near(from_s, to_s), *rank.waits]):
                self._count(number, rank.lane, judged)
        rank.waits = [wait for wait in rank.waits if wait[1] > keep_s]
        busy.forget(keep_s)

    def _judge_all(self) -> None:
        for number, rank in self._ranks.items():
            self._judge(number, rank, until_s=inf, keep_s=-inf)
            rank.waits.clear()
        self._busy.clear()

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

    # -- names ---------------------------------------------------------------------------------

    def _sit(self, number: int, node: str) -> _Rank:
        """The rank, on the node that speaks for it."""
        lane = self._lane(node)
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = _Rank(lane=lane)
        elif rank.lane != lane:  # a recovery moved it
            rank.lane = lane
        return rank

    def _lane(self, node: str) -> int:
        lane = _number(node, self._lane_of, self.lanes)
        if lane == len(self.costs_s):
            self.costs_s.append(0.0)
        return lane

    def _name(self, name: str) -> int:
        return _number(name, self._name_of, self.names)


def _step_bars(stretch: Stretch, steps: columns.Steps) -> columns.Bars:
    waited_us = np.rint(stretch.done.waited_s * 1e6)
    return columns.bars(
        Kind.ITERATION,
        steps.line,
        steps.start_s,
        stretch.at_s[steps.line],
        lane=steps.lane,
        number=stretch.done.iteration,
        rank=steps.rank,
        part=np.minimum(waited_us, 2**31 - 1).astype(np.int64),
    )


def _end_of(event: Collectives) -> float:
    """A moment before which all collectives of an iteration ended.

    Raises:
        ValueError: No run takes so long, or sends so much.
    """
    for _, size_bytes in event.kinds:
        whole(size_bytes)
    latest_us = whole(sum(map(abs, event.gaps_us))) + whole(max(map(abs, event.durations_us)))
    return seconds(event.began_s) + latest_us / 1e6


def _number(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    """The place of `text` in `texts`, where it is added if it is new."""
    number = numbers.get(text)
    if number is None:
        if len(texts) >= MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} different names")
        number = numbers[text] = len(texts)
        texts.append(text)
    return number
