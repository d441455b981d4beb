"""What the events told so far come to: one handler a kind, nothing but plain state."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from gemini_lab.log.events import Event
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.settings import Settings
from gemini_lab_widgets.copies import Copies
from gemini_lab_widgets.pace import Pace
from gemini_lab_widgets.roster import Roster
from gemini_lab_widgets.tables import STEPS, Mark, Origin, Phase

MOST_RANKS: Final = 100_000
MOST_KEPT: Final = 100_000
"""Of anything but the bulk; a log with more of it is not a run's."""
LARGEST: Final = 1 << 40
NOTES: Final = 5
MARKS: Final = 100


class RunState:
    """A run as its events have told it.

    A handler raises where an event makes no sense; what it told before that stands.

    Attributes:
        name: What its job is called.
        origin: Whether it runs or is simulated.
        script: What it runs.
        settings: The job's, as far as they are known.
        has_run: Whether the log has told of a run.
        start_s: When that began, on the log's clock.
        phase: What it does now.
        detail: More on that.
        epoch: Of the newest plan.
        roster: The lab's nodes.
        copies: Which shard is whole where.
        pace: Its iterations.
        marks: Where failures were.
        receipts: The slowest of each epoch and tier: it says how long retrieval took.
        persisted: When each persistent version was whole, and after how long.
        notes: The newest remarks.
    """

    def __init__(self) -> None:
        self.name = ""
        self.origin: Origin = "measured here"
        self.script = ""
        self.settings: dict[str, Any] = {}
        self.has_run = False
        self.start_s = 0.0
        self.phase: Phase = "waiting for events"
        self.detail = ""
        self.epoch = 0
        self.roster = Roster()
        self.copies = Copies()
        self.pace = Pace()
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.receipts: dict[tuple[int, str], Event] = {}
        self.persisted: deque[tuple[float, float]] = deque(maxlen=10_000)
        self.notes: deque[str] = deque(maxlen=NOTES)
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

    def handle(self, event: Event) -> None:
        """Take in one event; kinds that tell nothing of interest are passed over."""
        if handler := self._handlers.get(event.kind):
            handler(event, event.data)

    @property
    def is_writing(self) -> bool:
        """Whether newer versions may be on their way."""
        return self.phase == "training"

    # -- the lab and its nodes -----------------------------------------------------------------

    def _lab_started(self, _: Event, data: Mapping[str, Any]) -> None:
        for name in data.get("names", ()):
            self.roster.joined(str(name))
        self.roster.root = str(data.get("root") or self.roster.root)
        self.phase = "starting"

    def _node_joined(self, event: Event, data: Mapping[str, Any]) -> None:
        self.roster.joined(str(data.get("name", event.node)))

    def _node_lost(self, event: Event, data: Mapping[str, Any]) -> None:
        self._lose(str(data.get("name", event.node)))

    def _injected(self, event: Event, data: Mapping[str, Any]) -> None:
        if data["failure"]["kind"] == "node_loss":
            self._lose(str((data.get("target") or {}).get("name", event.node)))

    def _lose(self, name: str) -> None:
        self.roster.lost(name)
        self.copies.lost(name)

    def _root_elected(self, event: Event, data: Mapping[str, Any]) -> None:
        self.roster.root = str(data.get("name", event.node))

    def _note(self, event: Event, data: Mapping[str, Any]) -> None:
        self.notes.append(f"{event.node}: {data['text']}")

    # -- the run -------------------------------------------------------------------------------

    def _run_started(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.has_run:
            return
        nodes, per_node = whole(data, "nodes"), int(data.get("workers_per_node", 1))
        if not 0 < nodes * per_node <= MOST_RANKS:
            raise ValueError("no cluster has so many ranks")
        self.has_run = True
        self.start_s = event.at_s
        self.name, self.script = str(data.get("name", "")), str(data.get("script") or "")
        self.settings = dict(data.get("settings") or {})
        simulated = bool(self.settings.get("simulated"))
        self.origin = "simulated" if simulated else "measured here"
        self.phase = "starting"
        self.copies = Copies(positions=nodes, per_node=per_node, simulated=simulated)
        if names := self.roster.names[:nodes]:
            self.copies.members[: len(names)] = names
        self._place(data)

    def _place(self, data: Mapping[str, Any]) -> None:
        """Know the placement: the log's, or what the planner makes of the settings."""
        if data.get("placement"):
            self.copies.place(Placement.from_json(data["placement"]))
            return
        settings = Settings()
        replicas = int(self.settings.get("replicas", settings.replicas))
        nodes = self.copies.positions
        self.copies.place(
            plan_placement(
                nodes=nodes,
                replicas=min(replicas, nodes),
                strategy=str(self.settings.get("strategy", settings.strategy)),
                racks=None if data.get("racks") is None else list(data["racks"])[:nodes],
            )
        )

    def _protected(self, _: Event, data: Mapping[str, Any]) -> None:
        rank = self._rank(data)
        if whole(data, "epoch", 0) < self.epoch:
            return
        self.copies.shard_bytes[rank] = whole(data, "shard_bytes")
        if rank == 0:
            self.settings = {**self.settings, **data.get("settings", {})}
            self._place(data)

    def _over(self, event: Event, data: Mapping[str, Any]) -> None:
        self.phase = "finished" if event.kind == "run_finished" else "failed"
        self.detail = str(data.get("reason", ""))

    def _rank(self, data: Mapping[str, Any]) -> int:
        rank = whole(data, "rank")
        if not self.copies.knows(rank):
            raise ValueError("the run has no such rank")
        return rank

    def _iteration(self, event: Event, data: Mapping[str, Any]) -> None:
        rank, number = self._rank(data), whole(data, "iteration")
        epoch = whole(data, "epoch", self.epoch)
        if data.get("restored"):
            return
        self.pace.ended(
            epoch=epoch, number=number, at_s=event.at_s,
            duration_s=seconds(data.get("duration_s", 0.0)),
            waited_s=seconds(data.get("waited_s", 0.0)),
        )  # fmt: skip
        if epoch >= self.epoch:
            reached = self.copies.reached
            reached[rank] = max(number, reached[rank])
            if self.phase in {"starting", "waiting for events"}:
                self.phase = "training"

    def _version_complete(self, event: Event, data: Mapping[str, Any]) -> None:
        rank, version = self._rank(data), whole(data, "version")
        epoch = whole(data, "epoch", self.epoch)
        duration_s = seconds(data["duration_s"])
        self.pace.sent(epoch=epoch, version=version, duration_s=duration_s)
        if epoch < self.epoch:
            return
        copies = self.copies
        following = whole(data, "next_version", version + 1)
        copies.completed(rank, version, following, event.at_s)
        peers = 0 if copies.placement is None else copies.placement.replicas - 1
        if copies.simulated and peers:
            copies.shard_bytes[rank] = whole(data, "sent_bytes") // peers

    # -- failures ------------------------------------------------------------------------------

    def _recovery_started(self, _: Event, data: Mapping[str, Any]) -> None:
        number = whole(data, "recovery")
        self.phase, self.detail = "recovering", ""
        for name in data.get("lost", ()):
            self._lose(str(name))
        cause = str(data.get("cause", "unknown")).replace("_", " ")
        at = whole(data, "iteration", min(self.copies.reached, default=0) + 1)
        self.marks.append(Mark(iteration=at, text=f"recovery {number}: {cause}"))

    def _recovery_step(self, _: Event, data: Mapping[str, Any]) -> None:
        if self.phase in {"starting", "recovering", "waiting for machines"}:
            self.detail = f"{STEPS.get(data['step'], str(data['step']))} done"
        if data["step"] == "retrieve" and whole(data, "epoch", self.epoch) >= self.epoch:
            self.copies.retrieved()

    def _recovery_planned(self, _: Event, data: Mapping[str, Any]) -> None:
        epoch = whole(data, "epoch")
        if epoch < self.epoch:
            return
        self.copies.planned(data)
        self.epoch = epoch
        if self.phase == "waiting for machines":
            self.phase = "recovering"
        for name in self.copies.members:
            if name is not None:
                self.roster.joined(name)

    def _recovery_waiting(self, _: Event, data: Mapping[str, Any]) -> None:
        missing = len(data.get("missing", ()))
        self.phase, self.detail = "waiting for machines", f"{missing} missing"

    def _recovery_finished(self, _: Event, __: Mapping[str, Any]) -> None:
        if self.phase not in {"finished", "failed"}:
            self.phase, self.detail = "training", ""

    def _shard_restored(self, event: Event, data: Mapping[str, Any]) -> None:
        """Keep the slowest receipt of each tier: it says how long retrieval took."""
        key = (whole(data, "epoch", self.epoch), str(data["tier"]))
        whole(data, "version")
        whole(data, "recovery", 0)
        before = self.receipts.get(key)
        if before is None:
            if len(self.receipts) < MOST_KEPT:
                self.receipts[key] = event
        elif _receipt_s(event) > _receipt_s(before):
            self.receipts[key] = event
        if whole(data, "epoch", self.epoch) >= self.epoch:
            self.copies.restored(self._rank(data))

    def _version_rejected(self, _: Event, data: Mapping[str, Any]) -> None:
        self.copies.rejected(whole(data, "version"))

    def _persist_finished(self, event: Event, data: Mapping[str, Any]) -> None:
        self.copies.persistent = max(self.copies.persistent, whole(data, "version"))
        self.persisted.append((event.at_s, seconds(data.get("duration_s", 0.0))))


def whole(data: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number of an event's data.

    Raises:
        KeyError: It is not there.
        ValueError: It is not a whole number, or an absurd one.
    """
    value = data[name] if default is None else data.get(name, default)
    number = int(value)
    if number != value or not 0 <= number <= LARGEST:
        raise ValueError(f"{name} is not a number that a run can have")
    return number


def seconds(value: Any) -> float:
    """A time, or a moment on a clock.

    Raises:
        ValueError: It is none that a clock shows.
    """
    time_s = float(value)
    if not math.isfinite(time_s) or abs(time_s) > LARGEST:
        raise ValueError("no clock says so")
    return time_s


def _receipt_s(event: Event) -> float:
    return sum(seconds(event.data.get(n, 0.0)) for n in ("retrieve_s", "verify_s", "load_s"))
