"""From events to tables: one store behind every view, live, replayed, simulated or exported."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.events import Event
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.settings import Settings
from gemini_lab.units import format_bytes
from gemini_lab_widgets.copies import NONE, Copies, survival
from gemini_lab_widgets.feed import LOG, LogFeed
from gemini_lab_widgets.losses import Losses, losses, recoveries, wasted
from gemini_lab_widgets.pace import Baseline, Pace, iterations
from gemini_lab_widgets.tables import (
    STEPS,
    Iterations,
    Mark,
    Memory,
    NodeHealth,
    NodeRow,
    Origin,
    Phase,
    Replicas,
    Status,
    Tables,
)
from gemini_lab_widgets.traffic import Traffic

__all__ = ["EventStore", "LogFeed"]

MOST_RANKS: Final = 100_000
MOST_KEPT: Final = 100_000
"""Rare events that are kept; a log with more of them is not a run's."""
LARGEST: Final = 1 << 40
NOTES: Final = 5
LOST_SHOWN: Final = 8
REFRESH_EVENTS: Final = 2_000
"""Recoveries are worked out anew after so many events, or after one that concerns them."""

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "injected": ("failure",),
    "recovery_planned": ("version", "tier", "epoch", "members"),
    "recovery_step": ("step", "start_s", "end_s"),
    "replica_rejected": ("shard", "version"),
    "version_rejected": ("version",),
    "persist_finished": ("version",),
    "note": ("text",),
}
"""What kept events must have."""
KEPT: Final = frozenset({
    *NEEDED, "run_started", "run_finished", "run_failed", "recovery_started", "recovery_waiting",
    "recovery_finished", "persist_failed", "root_elected",
})  # fmt: skip


class EventStore:
    """A run's events, reduced as they come to what views draw.

    Bulk events (iterations, versions, traffic) become columns of numbers and are not kept.

    Args:
        earlier: Stores of earlier runs, shown beside this one.

    Attributes:
        count: Events taken in.
        unread: Those among them that could not be made sense of.
        name: That of the run's folder, if it was loaded from one, else its job's.
        newest_s: The latest time told, on the log's clock; `None` before the first event.
        traffic: What the timeline draws.
    """

    def __init__(self, *, earlier: Sequence["EventStore"] = ()) -> None:
        self.earlier = tuple(earlier)
        self.count = 0
        self.unread = 0
        self.newest_s: float | None = None
        self.traffic = Traffic()
        self.name = ""
        self.origin: Origin = "measured here"
        self.script = ""
        self.settings: dict[str, Any] = {}
        self.pace = Pace()
        self._copies = Copies()
        self._start_s: float | None = None
        self._has_run = False
        self._phase: Phase = "waiting for events"
        self._detail = ""
        self._epoch = 0
        self._root = ""
        self._nodes: dict[str, None] = {}
        self._lost: dict[str, None] = {}
        self._lost_count = 0
        self._marks: list[Mark] = []
        self._kept: list[Event] = []
        self._receipts: dict[tuple[Any, str], Event] = {}
        self._persisted: deque[tuple[float, float]] = deque(maxlen=10_000)
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._losses: tuple[tuple[int, int], Losses] | None = None
        self._handlers: dict[str, Callable[[Event, Mapping[str, Any]], None]] = {
            "lab_started": self._lab_started,
            "node_joined": self._node_joined,
            "node_lost": self._node_lost,
            "root_elected": self._root_elected,
            "run_started": self._run_started,
            "run_finished": self._over,
            "run_failed": self._over,
            "protected": self._protected,
            "iteration": self._iteration,
            "version_complete": self._version_complete,
            "injected": self._injected,
            "recovery_started": self._recovery_started,
            "recovery_step": self._recovery_step,
            "recovery_planned": self._recovery_planned,
            "recovery_waiting": self._recovery_waiting,
            "recovery_finished": self._recovery_finished,
            "shard_restored": self._shard_restored,
            "version_rejected": self._version_rejected,
            "persist_finished": self._persist_finished,
            "note": self._note,
        }

    @classmethod
    def load(cls, path: Path | str, *, earlier: Sequence["EventStore"] = ()) -> Self:
        """The store of the run in a folder, or of a log file.

        Raises:
            ConfigError: No log is there.
        """
        feed = LogFeed(Path(path))
        if not feed.path.is_file():
            raise ConfigError(f"there is no log at {feed.path}; name a run's folder or its log")
        store = cls(earlier=earlier)
        while events := feed.poll():
            store.extend(events)
        store.unread += feed.bad_lines
        if feed.path.name == LOG:
            store.name = feed.path.absolute().parent.name
        return store

    def extend(self, events: Iterable[Event]) -> None:
        """Take in events, in the order in which they were told."""
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take in one event; what makes no sense is counted and left out."""
        self.count += 1
        try:
            at_s = _seconds(event.at_s)
            if self.newest_s is None or at_s > self.newest_s:
                self.newest_s = at_s
            if self._start_s is None:
                self._start_s = at_s
            data = event.data
            if handler := self._handlers.get(event.kind):
                handler(event, data)
            if event.kind in KEPT:
                self._keep(event)
            self.traffic.add(event)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            self.unread += 1

    def _keep(self, event: Event) -> None:
        for name in NEEDED.get(event.kind, ()):
            event.data[name]
        if event.kind.startswith("recovery_"):
            _whole(event.data, "recovery")
        if len(self._kept) < MOST_KEPT:
            self._kept.append(event)

    # -- the lab and its nodes -----------------------------------------------------------------

    def _lab_started(self, _: Event, data: Mapping[str, Any]) -> None:
        self._nodes |= dict.fromkeys(str(name) for name in data.get("names", ()))
        self._root = str(data.get("root") or self._root)
        self._phase = "starting"

    def _node_joined(self, event: Event, data: Mapping[str, Any]) -> None:
        name = str(data.get("name", event.node))
        self._nodes[name] = None
        self._lost.pop(name, None)

    def _node_lost(self, event: Event, data: Mapping[str, Any]) -> None:
        self._lose(str(data.get("name", event.node)))

    def _injected(self, event: Event, data: Mapping[str, Any]) -> None:
        if data["failure"]["kind"] == "node_loss":
            self._lose(str((data.get("target") or {}).get("name", event.node)))

    def _lose(self, name: str) -> None:
        self._lost_count += name not in self._lost
        self._lost[name] = None
        self._copies.lost(name)

    def _root_elected(self, event: Event, data: Mapping[str, Any]) -> None:
        self._root = str(data.get("name", event.node))

    def _note(self, event: Event, data: Mapping[str, Any]) -> None:
        self._notes.append(f"{event.node}: {data['text']}")

    # -- the run -------------------------------------------------------------------------------

    def _run_started(self, event: Event, data: Mapping[str, Any]) -> None:
        if self._has_run:
            return
        nodes, per_node = _whole(data, "nodes"), int(data.get("workers_per_node", 1))
        if not 0 < nodes * per_node <= MOST_RANKS:
            raise ValueError("no cluster has so many ranks")
        self._has_run = True
        self._start_s = event.at_s
        self.name, self.script = str(data.get("name", "")), str(data.get("script") or "")
        self.settings = dict(data.get("settings") or {})
        simulated = bool(self.settings.get("simulated"))
        self.origin = "simulated" if simulated else "measured here"
        self._phase = "starting"
        self._copies = Copies(positions=nodes, per_node=per_node, simulated=simulated)
        if names := list(self._nodes)[:nodes]:
            self._copies.members[: len(names)] = names
        self._place(data)

    def _place(self, data: Mapping[str, Any]) -> None:
        """Know the placement: the log's, or what the planner makes of the settings."""
        if data.get("placement"):
            self._copies.place(Placement.from_json(data["placement"]))
            return
        settings = Settings()
        replicas = int(self.settings.get("replicas", settings.replicas))
        nodes = self._copies.positions
        self._copies.place(
            plan_placement(
                nodes=nodes,
                replicas=min(replicas, nodes),
                strategy=str(self.settings.get("strategy", settings.strategy)),
                racks=None if data.get("racks") is None else list(data["racks"])[:nodes],
            )
        )

    def _protected(self, _: Event, data: Mapping[str, Any]) -> None:
        rank = self._rank(data)
        if _whole(data, "epoch", 0) < self._epoch:
            return
        self._copies.shard_bytes[rank] = _whole(data, "shard_bytes")
        if rank == 0:
            self.settings = {**self.settings, **data.get("settings", {})}
            self._place(data)

    def _over(self, event: Event, data: Mapping[str, Any]) -> None:
        self._phase = "finished" if event.kind == "run_finished" else "failed"
        self._detail = str(data.get("reason", ""))

    def _rank(self, data: Mapping[str, Any]) -> int:
        rank = _whole(data, "rank")
        if not self._copies.knows(rank):
            raise ValueError("the run has no such rank")
        return rank

    def _iteration(self, event: Event, data: Mapping[str, Any]) -> None:
        rank, number = self._rank(data), _whole(data, "iteration")
        epoch = _whole(data, "epoch", self._epoch)
        if data.get("restored"):
            return
        self.pace.ended(
            epoch=epoch, number=number, at_s=event.at_s,
            duration_s=_seconds(data.get("duration_s", 0.0)),
            waited_s=_seconds(data.get("waited_s", 0.0)),
        )  # fmt: skip
        if epoch >= self._epoch:
            reached = self._copies.reached
            reached[rank] = max(number, reached[rank])
            if self._phase in {"starting", "waiting for events"}:
                self._phase = "training"

    def _version_complete(self, event: Event, data: Mapping[str, Any]) -> None:
        rank, version = self._rank(data), _whole(data, "version")
        epoch = _whole(data, "epoch", self._epoch)
        duration_s = _seconds(data["duration_s"])
        self.pace.sent(epoch=epoch, version=version, duration_s=duration_s)
        if epoch < self._epoch:
            return
        copies = self._copies
        following = _whole(data, "next_version", version + 1)
        copies.completed(rank, version, following, event.at_s)
        peers = 0 if copies.placement is None else copies.placement.replicas - 1
        if copies.simulated and peers:
            copies.shard_bytes[rank] = _whole(data, "sent_bytes") // peers

    # -- failures ------------------------------------------------------------------------------

    def _recovery_started(self, _: Event, data: Mapping[str, Any]) -> None:
        number = _whole(data, "recovery")
        self._phase, self._detail = "recovering", ""
        for name in data.get("lost", ()):
            self._lose(str(name))
        cause = str(data.get("cause", "unknown")).replace("_", " ")
        if len(self._marks) < MOST_KEPT:
            at = _whole(data, "iteration", min(self._copies.reached, default=0) + 1)
            self._marks.append(Mark(iteration=at, text=f"recovery {number}: {cause}"))

    def _recovery_step(self, _: Event, data: Mapping[str, Any]) -> None:
        if self._phase in {"starting", "recovering", "waiting for machines"}:
            self._detail = f"{STEPS.get(data['step'], str(data['step']))} done"
        if data["step"] == "retrieve" and _whole(data, "epoch", self._epoch) >= self._epoch:
            self._copies.retrieved()

    def _recovery_planned(self, _: Event, data: Mapping[str, Any]) -> None:
        epoch = _whole(data, "epoch")
        if epoch < self._epoch:
            return
        self._copies.planned(data)
        self._epoch = epoch
        if self._phase == "waiting for machines":
            self._phase = "recovering"
        for name in self._copies.members:
            if name is not None:
                self._nodes[name] = None
                self._lost.pop(name, None)

    def _recovery_waiting(self, _: Event, data: Mapping[str, Any]) -> None:
        missing = len(data.get("missing", ()))
        self._phase, self._detail = "waiting for machines", f"{missing} missing"

    def _recovery_finished(self, _: Event, __: Mapping[str, Any]) -> None:
        if self._phase not in {"finished", "failed"}:
            self._phase, self._detail = "training", ""

    def _shard_restored(self, event: Event, data: Mapping[str, Any]) -> None:
        """Keep the slowest receipt of each tier: it says how long retrieval took."""
        key = (data.get("epoch"), str(data["tier"]))
        _whole(data, "version")
        before = self._receipts.get(key)
        if before is None or _receipt_s(event) > _receipt_s(before):
            self._receipts[key] = event
        if _whole(data, "epoch", self._epoch) >= self._epoch:
            self._copies.restored(self._rank(data))

    def _version_rejected(self, _: Event, data: Mapping[str, Any]) -> None:
        self._copies.rejected(_whole(data, "version"))

    def _persist_finished(self, event: Event, data: Mapping[str, Any]) -> None:
        self._copies.persistent = max(self._copies.persistent, _whole(data, "version"))
        self._persisted.append((event.at_s, _seconds(data.get("duration_s", 0.0))))

    # -- tables --------------------------------------------------------------------------------

    def tables(self, *, now_s: float | None = None) -> Tables:
        """A snapshot for the views.

        Args:
            now_s: The moment on the log's clock, so that ages grow while a live run is silent; by
                default that of the newest event.
        """
        now_s = max(self.newest_s or 0.0, now_s or 0.0)
        mine, paces = self.losses(), self._iterations()
        earlier = [(store.name, store.losses()) for store in self.earlier]
        return Tables(
            status=self._status(now_s, mine, paces),
            replicas=self._replicas(),
            memory=self._memory(),
            recoveries=recoveries(mine, earlier),
            iterations=paces,
            wasted=wasted(mine, earlier),
        )

    def losses(self) -> Losses:
        """Recoveries and wasted time so far."""
        state = (len(self._kept) + len(self._receipts), self.count // REFRESH_EVENTS)
        if self._losses is None or self._losses[0] != state:
            kept = [*self._kept, *self._receipts.values()]
            found = Losses(origin=self.origin)
            if self._has_run:
                persisted = list(self._persisted)
                found = losses(kept, self.pace, origin=self.origin, persisted=persisted)
            self._losses = (state, found)
        return self._losses[1]

    @property
    def _is_writing(self) -> bool:
        return self._phase == "training"

    def _iterations(self) -> Iterations:
        baselines = [
            Baseline(
                name=store.name,
                pace=store.pace,
                is_without=store.settings.get("scheme") == "none" and store.script == self.script,
            )
            for store in self.earlier
        ]
        return iterations(self.pace, marks=self._marks[-NOTES * 20 :], baselines=baselines)

    def _status(self, now_s: float, mine: Losses, paces: Iterations) -> Status:
        copies, start_s = self._copies, self._start_s or 0.0
        survivable = copies.survivable()
        version = copies.newest()
        whole_at_s = copies.whole_at_s(version)
        return Status(
            run=self.name,
            origin=self.origin,
            phase=self._phase,
            detail=self._detail,
            now_s=now_s - start_s,
            iteration=min(copies.reached, default=0),
            overhead=paces.overhead,
            whole_version=version,
            whole_age_s=None if whole_at_s is None else max(0.0, now_s - whole_at_s),
            survivable=None if survivable is None else survivable[0],
            survivable_version=None if survivable is None else survivable[1],
            persistent_version=self._persistent,
            nodes=(*self._positions(), *self._spares(), *self._gone()),
            lost_nodes=self._lost_count,
            recoveries=mine.total,
            wasted_s=mine.wasted_s,
            conditions=tuple(self._conditions()),
            notes=tuple(self._notes),
            unread=self.unread,
        )

    @property
    def _persistent(self) -> int | None:
        return None if self._copies.persistent == NONE else self._copies.persistent

    def _positions(self) -> list[NodeRow]:
        busy: NodeHealth = "starting" if self._phase == "starting" else "training"
        if self._phase in {"recovering", "waiting for machines"}:
            busy = "recovering"
        return [
            NodeRow(
                name=name or "no node",
                position=position,
                health="lost" if position in self._copies.gone else busy,
                is_root=name == self._root,
            )
            for position, name in enumerate(self._copies.members)
        ]

    def _spares(self) -> list[NodeRow]:
        seated = set(self._copies.members)
        return [
            NodeRow(name=name, position=None, health="standby", is_root=name == self._root)
            for name in self._nodes
            if name not in seated and name not in self._lost
        ]

    def _gone(self) -> list[NodeRow]:
        seated = set(self._copies.members)
        lost = [name for name in self._lost if name not in seated][-LOST_SHOWN:]
        return [NodeRow(name=name, position=None, health="lost") for name in lost]

    def _replicas(self) -> Replicas:
        copies = self._copies
        placement = copies.placement
        return Replicas(
            strategy="" if placement is None else placement.strategy,
            replicas=0 if placement is None else placement.replicas,
            groups=() if placement is None else placement.groups,
            nodes=tuple(self._positions()),
            standbys=tuple(self._spares()),
            copies=copies.rows(writing=self._is_writing),
            what_if=copies.what_if(),
            survival=() if placement is None else survival(placement),
            version=copies.newest(),
            persistent_version=self._persistent,
        )

    def _memory(self) -> Memory:
        rows = self._copies.memory(writing=self._is_writing)
        notes = []
        if not rows:
            notes.append("the log has not told the size of a shard yet")
        elif self._copies.simulated:
            notes.append("simulated: a shard's size follows from what a version sends")
        if rows:
            notes.append("the log states no limit of a node's memory; the outline is what its "
                         "buffers take, two for each shard that it keeps")  # fmt: skip
        if self.settings.get("scheme") in {"naive", "interleaved", "gemini"}:
            size = format_bytes(int(self.settings.get("buffer_bytes", 0)))
            notes.append(f"beside that, {size} of sub-buffers between wire and memory")
        return Memory(rows=rows, limit_bytes=None, notes=tuple(notes))

    def _conditions(self) -> Iterable[str]:
        settings = self.settings
        if scheme := settings.get("scheme"):
            yield f"scheme {scheme}"
        if link := settings.get("link_bytes_per_s"):
            yield f"each node on a link paced to {format_bytes(float(link))}/s"
        if rate := settings.get("copy_bytes_per_s"):
            yield f"sub-buffers emptied at {format_bytes(float(rate))}/s"
        if self.origin == "simulated":
            yield f"{settings.get('policy', 'simulated')}: {settings.get('assumptions', '')}"


def _whole(data: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number of the data that is not absurd."""
    value = data[name] if default is None else data.get(name, default)
    number = int(value)
    if number != value or not 0 <= number <= LARGEST:
        raise ValueError(f"{name} is no number that a run has")
    return number


def _seconds(value: Any) -> float:
    time_s = float(value)
    if not math.isfinite(time_s) or abs(time_s) > LARGEST:
        raise ValueError("no clock says so")
    return time_s


def _receipt_s(event: Event) -> float:
    return sum(_seconds(event.data.get(n, 0.0)) for n in ("retrieve_s", "verify_s", "load_s"))
