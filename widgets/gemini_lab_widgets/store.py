"""From events to tables: one store behind every view, live, replayed, simulated or exported."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.log.events import Event
from gemini_lab.log.file import LOG_FILE
from gemini_lab.log.follow import LogFeed
from gemini_lab_widgets import snapshot
from gemini_lab_widgets.losses import Losses, losses, recoveries, wasted
from gemini_lab_widgets.pace import Baseline, iterations
from gemini_lab_widgets.run_state import MOST_KEPT, RunState, seconds, whole
from gemini_lab_widgets.tables import Iterations, Tables
from gemini_lab_widgets.traffic import Traffic

__all__ = ["EventStore", "LogFeed"]

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
        name: What to call the run; by default what its job is called.
        earlier: Stores of earlier runs, shown beside this one.

    Attributes:
        count: Events taken in.
        unread: Those among them that could not be made sense of.
        newest_s: The latest time told, on the log's clock; `None` before the first event.
        traffic: What the timeline draws.
        run: What the events come to.
    """

    def __init__(self, *, name: str = "", earlier: Sequence["EventStore"] = ()) -> None:
        self.earlier = tuple(earlier)
        self.count = 0
        self.unread = 0
        self.newest_s: float | None = None
        self.traffic = Traffic()
        self.run = RunState()
        self._name = name
        self._kept: list[Event] = []
        self._losses: tuple[tuple[int, int], Losses] | None = None

    @property
    def name(self) -> str:
        """What the run is called."""
        return self._name or self.run.name

    @classmethod
    def load(cls, path: Path | str, *, earlier: Sequence["EventStore"] = ()) -> Self:
        """The store of the run in a folder, or of a log file.

        Raises:
            ConfigError: No log is there.
        """
        feed = LogFeed(Path(path))
        if not feed.path.is_file():
            raise ConfigError(f"there is no log at {feed.path}; name a run's folder or its log")
        name = feed.path.absolute().parent.name if feed.path.name == LOG_FILE else feed.path.stem
        store = cls(name=name, earlier=earlier)
        while events := feed.poll():
            store.extend(events)
        store.unread += feed.bad_lines
        return store

    def extend(self, events: Iterable[Event]) -> None:
        """Take in events, in the order in which they were told."""
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take in one event; what makes no sense is counted and left out."""
        self.count += 1
        try:
            at_s = seconds(event.at_s)
            if self.newest_s is None:
                self.run.start_s = at_s
            if self.newest_s is None or at_s > self.newest_s:
                self.newest_s = at_s
            self.run.handle(event)
            if event.kind in KEPT:
                self._keep(event)
            self.traffic.add(event)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            self.unread += 1

    def _keep(self, event: Event) -> None:
        for name in NEEDED.get(event.kind, ()):
            event.data[name]
        if event.kind.startswith("recovery_") or "recovery" in event.data:
            whole(event.data, "recovery")
        if event.data.get("version") is not None:
            whole(event.data, "version")
        if len(self._kept) < MOST_KEPT:
            self._kept.append(event)

    def losses(self) -> Losses:
        """Recoveries and wasted time so far."""
        run = self.run
        state = (len(self._kept) + len(run.receipts), self.count // REFRESH_EVENTS)
        if self._losses is None or self._losses[0] != state:
            found = Losses(origin=run.origin)
            if run.has_run:
                kept = [*self._kept, *run.receipts.values()]
                found = losses(kept, run.pace, origin=run.origin, persisted=list(run.persisted))
            self._losses = (state, found)
        return self._losses[1]

    def tables(self, *, now_s: float | None = None) -> Tables:
        """A snapshot for the views.

        Args:
            now_s: The moment on the log's clock, so that ages grow while a live run is silent; by
                default that of the newest event.
        """
        mine, paces = self.losses(), self._iterations()
        earlier = [(store.name, store.losses()) for store in self.earlier]
        return Tables(
            status=snapshot.status(
                self.run,
                name=self.name,
                now_s=max(self.newest_s or 0.0, now_s or 0.0),
                losses=mine,
                overhead=paces.overhead,
                unread=self.unread,
            ),
            replicas=snapshot.replicas(self.run),
            memory=snapshot.memory(self.run),
            recoveries=recoveries(mine, earlier),
            iterations=paces,
            wasted=wasted(mine, earlier),
        )

    def _iterations(self) -> Iterations:
        baselines = [
            Baseline(
                name=store.name,
                pace=store.run.pace,
                is_without=store.run.settings.get("scheme") == "none"
                and store.run.script == self.run.script,
            )
            for store in self.earlier
        ]
        return iterations(self.run.pace, marks=tuple(self.run.marks), baselines=baselines)
