"""What the log of a run under way has told so far: who is where, and what moment it is."""

import time
from pathlib import Path
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LOG_FILE
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.reducer import FOR_PROGRESS
from gemini_lab_bench.chaos.kinds import Moment

AFTER_STEP: Final[dict[str, Moment]] = {
    "fence": "inventory",
    "start": "retrieve",
    "retrieve": "warm_up",
}
"""A step is told when it is over: so what begins then."""


class LogSoFar:
    """Follows one run's log.

    Args:
        folder: The run's.
        iterations: Of its job.
    """

    def __init__(self, folder: Path, *, iterations: int) -> None:
        self.entries: list[Entry] = []  # all of it so far
        self.progress = 0  # how often the iteration that every rank has finished has changed
        # When, by this process's clock, each moment came last.
        self.since_s: dict[Moment, float] = {}
        self.named_wrong: set[str] = set()  # the nodes that were found to compute wrong
        self._iterations = iterations
        log = folder / LOG_FILE  # which is not there yet
        self._log = LogFollower.of(folder.name, log, keep=FOR_PROGRESS)
        self._run = self._log.run
        self._holders: tuple[tuple[int, ...], ...] = ()
        self._done = 0

    def poll(self) -> None:
        for entry in self._log.entries():
            self.entries.append(entry)
            self._follow(entry.event)

    def _follow(self, event: events.AnyEvent) -> None:
        match event:
            case events.Protected(placement=placement) if placement is not None:
                self._holders = placement.holders
            case events.WrongSums():
                self.named_wrong |= {*event.nodes}
            case events.RecoveryStarted():
                self._note("fence")
            case events.RecoveryPlanned():
                self._note("plan")
                self._note("start")
                self._done = event.version or 0  # to go back to it is no progress
            case events.RecoveryStep() if event.step in AFTER_STEP:
                self._note(AFTER_STEP[event.step])
            case events.PersistStarted():
                self._note("save")
            case events.PersistFinished():
                self._note("commit")
            case events.Iteration(restored=False):
                if event.iteration >= self._iterations:
                    self._note("end")
                self._count()

    def _note(self, moment: Moment) -> None:
        self.since_s[moment] = time.monotonic()

    def _count(self) -> None:
        done = self._run.reached.done()
        self.progress += done != self._done
        self._done = done

    @property
    def bad_lines(self) -> int:
        return self._log.bad_lines

    @property
    def is_over(self) -> bool:
        return self._run.course.is_over

    @property
    def waits_for(self) -> str:
        """The reason why the run waits, in its own words; empty if it does not."""
        return self._run.course.detail if self._run.course.phase == "waiting for machines" else ""

    @property
    def root(self) -> str:
        return self._run.nodes.root

    @property
    def standbys(self) -> list[str]:
        return self._run.nodes.standbys

    def node_of(self, rank: int) -> str | None:
        return self._run.nodes.node_of(rank)

    def keepers_of(self, shard: int) -> list[str | None]:
        """Return the nodes that keep a shard, its owner first; one worker a node."""
        ranks = self._holders[shard] if shard < len(self._holders) else (shard,)
        return [self.node_of(rank) for rank in ranks]
