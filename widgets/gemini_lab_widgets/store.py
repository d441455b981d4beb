"""From a log to tables: one store behind every view, live, replayed, simulated or exported."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import log_of, name_of
from gemini_lab.report.follower import opened
from gemini_lab.report.moments import Moments
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab.report.tables import Tables, tables_of
from gemini_lab.report.tables.recoveries import Losses
from gemini_lab.report.tables.recoveries import losses as losses_of

REFRESH_EVENTS: Final = 2_000
"""Recoveries are computed again after this many entries, or after one that concerns them."""


class EventStore:
    """A run's reducer, with the earlier runs that are shown beside it.

    Args:
        name: What to call the run; by default what its job is called.
        earlier: Stores of earlier runs.
        run: What a log came to so far, to go on with.
        moments: The run at any moment of it, where it has a log.
    """

    def __init__(
        self,
        *,
        name: str = "",
        earlier: Sequence["EventStore"] = (),
        run: RunReducer | None = None,
        moments: Moments | None = None,
    ) -> None:
        self.earlier = tuple(earlier)
        self.run = run or RunReducer(name=name)
        self.moments = moments
        self._losses: tuple[tuple[int, int], Losses] | None = None

    @classmethod
    def load(cls, path: Path | str, *, earlier: Sequence["EventStore"] = ()) -> Self:
        """Return the store of the run in a folder, or of a log file.

        Raises:
            ConfigError: No log is there.
        """
        log = log_of(Path(path))
        if not log.is_file():
            raise ConfigError(f"there is no log at {log}; name a run's folder or its log")
        reading = opened(log, name=name_of(log))
        return cls(earlier=earlier, run=reading.run, moments=reading.moments)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def traffic(self) -> TrafficBars:
        """The timeline's data."""
        return self.run.traffic

    def extend(self, entries: Iterable[Entry], *, bad_lines: int = 0) -> None:
        """Take in entries, in the order of the log."""
        self.run.extend(entries)
        self.run.unread += bad_lines

    def losses(self) -> Losses:
        every = 1 if self.run.course.is_over else REFRESH_EVENTS
        state = self.run.recoveries.changes, self.run.count // every
        if self._losses is None or self._losses[0] != state:
            self._losses = state, losses_of(self.run)
        return self._losses[1]

    def tables(self, *, now_s: float | None = None) -> Tables:
        earlier = [(store.run, store.losses()) for store in self.earlier]
        return tables_of(self.run, losses=self.losses(), earlier=earlier, now_s=now_s)


def tables_at(run: RunReducer, at_s: float, *, beside: Sequence[EventStore] = ()) -> Tables:
    """Return a snapshot of a run as it was at a moment, on the log's clock, beside earlier runs."""
    return tables_of(
        run,
        losses=losses_of(run),
        earlier=[(one.run, one.losses()) for one in beside],
        now_s=at_s,
        is_past=True,
    )
