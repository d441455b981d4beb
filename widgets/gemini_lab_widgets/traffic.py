"""Who sent what when: a run's events as bars and marks for the timeline.

Checkpoint bytes are *exposed* while a training collective of the same node was under way, and
while the step waited for their version to be whole; they are *hidden* the rest of the time
(`gemini_lab_widgets.exposure`). Where a log has no collectives, only waits count: `Traffic.basis`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Final, Literal

from gemini_lab.log.events import Event
from gemini_lab_widgets.bars import Bars, Kind
from gemini_lab_widgets.exposure import Interval, Judged, Sending, judge

MAX_NAMES: Final = 65_535
"""Lanes and names that a column's two bytes can tell apart."""

SHORTEST_WAIT_S: Final = 0.001
SHORTEST_EXPOSED_S: Final = 0.0001
"""Shorter waits and exposed parts are counted like any other, but get no bar."""

MAX_BUSY: Final = 100_000
"""Collectives of one node that are remembered for judging, if no iteration ever ends there."""


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

    Args:
        limit: How many bars to keep.

    Attributes:
        bars: The columns.
        lanes: Node names; a bar's `lane` and `peer` point here.
        names: Names of collectives; a bar's `name` points here.
        marks: Failures and recoveries.
        changes: Counts changes of `marks` and of everything else that is no bar.
        newest_s: The latest time told, on the log's clock; None before the first.
        origin_s: When the run started, or its first event.
        is_over: Whether the run ended.
        is_simulated: Whether the simulator wrote the log.
        basis: What hidden and exposed were judged by: `"collectives"` and waits, or `"waits"`
            alone.
        hidden_bytes: Sent while nobody minded.
        exposed_bytes: Sent while training used the network or waited.
        replicas: Copies of each shard, the owner's counted; 1 where the log does not say.
        skipped: Events that could not be read.
    """

    def __init__(self, limit: int = 1_000_000) -> None:
        self.bars = Bars(limit)
        self.lanes: list[str] = []
        self.names: list[str] = [""]
        self.marks: list[Mark] = []
        self.changes = 0
        self.newest_s: float | None = None
        self.origin_s: float | None = None
        self.is_over = False
        self.is_simulated = False
        self.basis: Literal["collectives", "waits"] = "waits"
        self.hidden_bytes = 0.0
        self.exposed_bytes = 0.0
        self.replicas = 1
        self.skipped = 0
        self._lane_of: dict[str, int] = {}
        self._name_of: dict[str, int] = {"": 0}
        self._ranks: dict[int, _Rank] = {}
        self._seats: dict[int, str] = {}
        self._ranks_per_node = 1
        self._is_blocking = False
        self._busy: dict[int, list[Interval]] = {}
        self._recoveries: dict[int, int] = {}
        self._readers: dict[str, Callable[[Event, Mapping[str, Any]], None]] = {
            "run_started": self._run_started, "protected": self._protected,
            "collectives": self._collectives,
            "iteration": self._iteration, "transfer": self._transfer,
            "version_complete": self._version_complete, "shard_restored": self._restored,
            "injected": self._injected, "node_lost": self._node_lost,
            "worker_exited": self._noticed, "worker_hung": self._noticed,
            "recovery_started": self._recovery_started,
            "recovery_planned": self._recovery_planned,
            "recovery_finished": self._recovery_finished,
            "run_finished": self._over, "run_failed": self._over,
        }  # fmt: skip

    @property
    def open_bytes(self) -> float:
        """Sent, but not judged yet."""
        return sum(sending.size_bytes for rank in self._ranks.values() for sending in rank.open)

    def add(self, event: Event) -> None:
        """Take in one event; one that cannot be read is counted and left out."""
        reader = self._readers.get(event.kind)
        if reader is None:
            return
        try:
            _finite(event.at_s)
            if self.origin_s is None:
                self.origin_s = event.at_s
            reader(event, event.data)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError):
            self.skipped += 1
            return
        if self.newest_s is None or event.at_s > self.newest_s:
            self.newest_s = event.at_s

    # -- the run -------------------------------------------------------------------------------

    def _run_started(self, event: Event, data: Mapping[str, Any]) -> None:
        self.origin_s = event.at_s
        self.is_over = False
        self.is_simulated = bool((data.get("settings") or {}).get("simulated", False))
        self._ranks_per_node = max(1, int(data.get("workers_per_node", 1)))
        self.changes += 1

    def _protected(self, event: Event, data: Mapping[str, Any]) -> None:
        self._sit(int(data["rank"]), event.node)
        settings, placement = data.get("settings") or {}, data.get("placement") or {}
        self._is_blocking = settings.get("scheme") == "blocking"
        self.replicas = max(1, int(placement.get("replicas", self.replicas)))

    def _over(self, event: Event, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._judge_all()
        self.is_over = True
        self.changes += 1

    # -- traffic -------------------------------------------------------------------------------

    def _collectives(self, event: Event, data: Mapping[str, Any]) -> None:
        lane, rank, began_s = self._lane(event.node), int(data["rank"]), float(data["began_s"])
        columns = (data["names"], data["sizes_bytes"], data["starts_s"], data["ends_s"])
        for name, size_bytes, from_s, to_s in zip(*columns, strict=True):
            start_s, end_s = _finite(began_s + from_s), _finite(began_s + to_s)
            self._use(lane, (start_s, end_s))
            self.bars.add(
                Kind.COLLECTIVE, start_s, end_s, lane=lane, size_bytes=float(size_bytes),
                number=int(data["iteration"]), rank=rank, name=self._name(str(name)),
            )  # fmt: skip
        if self.basis == "waits":
            self.basis = "collectives"
            self.changes += 1

    def _iteration(self, event: Event, data: Mapping[str, Any]) -> None:
        number, key = int(data["rank"]), (int(data.get("epoch", 0)), int(data["iteration"]))
        rank = self._sit(number, event.node)
        if data.get("restored") or key == rank.done:  # told again, from a version or with values
            return
        rank.done = key
        duration_s, waited_s = float(data["duration_s"]), float(data.get("waited_s", 0.0))
        start_s = event.at_s - duration_s
        self._judge(number, rank, until_s=start_s, keep_s=start_s - duration_s)
        self.bars.add(
            Kind.ITERATION, start_s, event.at_s, lane=rank.lane, number=key[1], rank=number,
            part=min(round(waited_s * 1e6), 2**31 - 1),
        )  # fmt: skip
        if waited_s > 0:
            end_s = rank.whole_s if start_s <= rank.whole_s <= event.at_s else event.at_s
            wait = (end_s - waited_s, end_s)
            rank.waits.append(wait)
            if waited_s >= SHORTEST_WAIT_S:
                self.bars.add(Kind.WAIT, *wait, lane=rank.lane, number=key[1], rank=number)

    def _transfer(self, event: Event, data: Mapping[str, Any]) -> None:
        number = int(data["rank"])
        rank = self._sit(number, event.node)
        rank.told = int(data["version"])
        span = data.get("span")
        self._sent(
            Kind.TRANSFER, number, rank, *_interval(data), size_bytes=float(data["sent_bytes"]),
            version=rank.told, peer=self._peer(data.get("peer")), part=-1 if span is None else span,
        )  # fmt: skip

    def _version_complete(self, event: Event, data: Mapping[str, Any]) -> None:
        number, version = int(data["rank"]), int(data["version"])
        start_s, size_bytes = event.at_s - float(data["duration_s"]), float(data["sent_bytes"])
        rank = self._sit(number, event.node)
        rank.whole_s = event.at_s
        if self._is_blocking:
            rank.waits.append((start_s, event.at_s))
        if rank.told != version and size_bytes > 0:
            self._sent(
                Kind.VERSION, number, rank, start_s, event.at_s, size_bytes=size_bytes,
                version=version, peer=-1, part=-1,
            )  # fmt: skip
        self.bars.add(
            Kind.COMPLETE, event.at_s, event.at_s, lane=rank.lane, size_bytes=size_bytes,
            number=version, rank=number,
        )  # fmt: skip

    def _sent(
        self, kind: Kind, number: int, rank: _Rank, start_s: float, end_s: float, *,
        size_bytes: float, version: int, peer: int, part: int,
    ) -> None:  # fmt: skip
        self.bars.add(
            kind, start_s, end_s, lane=rank.lane, size_bytes=size_bytes, number=version,
            part=part, rank=number, peer=peer,
        )  # fmt: skip
        rank.open.append(
            Sending(start_s=start_s, end_s=end_s, size_bytes=size_bytes, version=version, peer=peer)
        )

    def _restored(self, event: Event, data: Mapping[str, Any]) -> None:
        if data["tier"] != "peer":
            return
        retrieve_s = float(data["retrieve_s"])
        taken_s = retrieve_s + float(data.get("verify_s", 0.0)) + float(data.get("load_s", 0.0))
        rank = int(data["shard"])
        receiver = self._seats.get(rank, event.node) if event.node == "lab" else event.node
        start_s = event.at_s - taken_s
        self.bars.add(
            Kind.RESTORE, start_s, start_s + retrieve_s, lane=self._lane(str(data["holder"])),
            size_bytes=float(data["size_bytes"]), number=int(data["version"]), rank=rank,
            peer=self._lane(receiver),
        )  # fmt: skip

    # -- failures ------------------------------------------------------------------------------

    def _injected(self, event: Event, data: Mapping[str, Any]) -> None:
        node = str((data.get("target") or {}).get("name", event.node))
        what = str(data["failure"]["kind"]).replace("_", " ")
        self._mark(Mark(kind="injected", start_s=event.at_s, lane=node, text=f"{what} on {node}"))

    def _node_lost(self, event: Event, data: Mapping[str, Any]) -> None:
        node = str(data.get("name", event.node))
        self._mark(Mark(kind="lost", start_s=event.at_s, lane=node, text=f"{node} is gone"))

    def _noticed(self, event: Event, data: Mapping[str, Any]) -> None:
        what = "exited" if event.kind == "worker_exited" else "hangs"
        text = f"rank {int(data['rank'])} on {event.node} {what}"
        self._mark(Mark(kind="noticed", start_s=event.at_s, lane=event.node, text=text))

    def _recovery_started(self, event: Event, data: Mapping[str, Any]) -> None:
        self._judge_all()
        self._recoveries[int(data["recovery"])] = len(self.marks)
        started_s = float(data.get("failed_at_s", event.at_s))
        text = f"recovery {int(data['recovery'])}"
        self._mark(Mark(kind="recovery", start_s=started_s, text=text))

    def _recovery_planned(self, event: Event, data: Mapping[str, Any]) -> None:  # noqa: ARG002
        for position, node in enumerate(data["members"]):
            for local in range(self._ranks_per_node):
                self._seats[position * self._ranks_per_node + local] = str(node)

    def _recovery_finished(self, event: Event, data: Mapping[str, Any]) -> None:
        place = self._recoveries.get(int(data["recovery"]))
        if place is not None:
            text = f"{self.marks[place].text}, from version {data.get('version')}"
            self.marks[place] = replace(self.marks[place], end_s=event.at_s, text=text)
            self.changes += 1

    def _mark(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.changes += 1

    # -- hidden or exposed ---------------------------------------------------------------------

    def _use(self, lane: int, interval: Interval) -> None:
        """Remember when training used a node's network."""
        busy = self._busy.setdefault(lane, [])
        busy.append(interval)
        if len(busy) > MAX_BUSY:
            del busy[: MAX_BUSY // 2]

    def _judge(self, number: int, rank: _Rank, *, until_s: float, keep_s: float) -> None:
        """Judge what the rank had sent by `until_s`; forget what was over before `keep_s`."""
        ready = [sending for sending in rank.open if sending.end_s <= until_s]
        busy = self._busy.get(rank.lane, [])
        if ready:
            rank.open = [sending for sending in rank.open if sending.end_s > until_s]
            for judged in judge(ready, [*busy, *rank.waits]):
                self._count(number, rank.lane, judged)
        rank.waits = [wait for wait in rank.waits if wait[1] > keep_s]
        self._busy[rank.lane] = [interval for interval in busy if interval[1] > keep_s]

    def _judge_all(self) -> None:
        for number, rank in self._ranks.items():
            self._judge(number, rank, until_s=inf, keep_s=-inf)
            rank.waits.clear()
        self._busy.clear()

    def _count(self, number: int, lane: int, judged: Judged) -> None:
        sending = judged.sending
        self.exposed_bytes += judged.exposed_bytes
        self.hidden_bytes += sending.size_bytes - judged.exposed_bytes
        whole_s = sending.end_s - sending.start_s
        for start_s, end_s in judged.exposed:
            if end_s - start_s < SHORTEST_EXPOSED_S < whole_s:
                continue
            share = (end_s - start_s) / whole_s if whole_s > 0 else 1.0
            self.bars.add(
                Kind.EXPOSED, start_s, end_s, lane=lane, size_bytes=sending.size_bytes * share,
                number=sending.version, rank=number, peer=sending.peer,
            )  # fmt: skip

    # -- names ---------------------------------------------------------------------------------

    def _sit(self, number: int, node: str) -> _Rank:
        """The rank, on the node that speaks for it."""
        lane = self._lane(node)
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = _Rank(lane=lane)
        elif rank.lane != lane:  # a recovery moved it
            rank.lane = lane
        self._seats[number] = node
        return rank

    def _peer(self, peer: object) -> int:
        """The lane of a rank or of a node's name; -1 if it is not known."""
        node = self._seats.get(peer) if isinstance(peer, int) else peer
        return self._lane(node) if isinstance(node, str) else -1

    def _lane(self, node: str) -> int:
        return _number(node, self._lane_of, self.lanes)

    def _name(self, name: str) -> int:
        return _number(name, self._name_of, self.names)


def _interval(data: Mapping[str, Any]) -> Interval:
    return _finite(float(data["start_s"])), _finite(float(data["end_s"]))


def _finite(time_s: float) -> float:
    if not isfinite(time_s):
        raise ValueError(f"{time_s} is not a time")
    return time_s


def _number(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    """The place of `text` in `texts`, where it is added if it is new."""
    number = numbers.get(text)
    if number is None:
        if len(texts) >= MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} different names")
        number = numbers[text] = len(texts)
        texts.append(text)
    return number
