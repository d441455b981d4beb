"""The facts of a run, its phase, and its end."""

from collections import deque
from dataclasses import asdict
from typing import Any, Final, Literal

import msgspec

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    CodeSeen,
    FailureCause,
    Iteration,
    LabStarted,
    Note,
    Protected,
    RecoveryFinished,
    RecoveryPlanned,
    RecoveryStarted,
    RecoveryStep,
    RecoveryWaiting,
    RunFailed,
    RunFinished,
    RunStarted,
)
from gemini_lab.report.recovery import STEPS
from gemini_lab.report.reducers import MOST_RANKS
from gemini_lab.report.values import Outcome

Phase = Literal[
    "waiting for events",
    "starting",
    "training",
    "recovering",
    "waiting for machines",
    "finished",
    "failed",
    "stopped",
]
ENDED: Final[frozenset[Phase]] = frozenset({"finished", "failed", "stopped"})
AFTER: Final = {
    "fence": "agents report what they hold",
    "plan": "scripts run up to protect",
    "start": "first iteration",
}
"""What comes after each step of a first start."""
STOPPED: Final = frozenset({"owner", "notice"})
"""Causes of an end that somebody wanted: such a run did not fail."""
MOST_CHANGES: Final = 100


class Course:
    """A run's facts and phase."""

    def __init__(self, *, most_notes: int | None = None) -> None:
        # What was submitted; `None` until the log tells of a run.
        self.job: RunStarted | None = None
        self.started_at_s = 0.0
        self.settings: dict[str, Any] = {}
        self.model_parallel_size = 1  # ranks that hold one model between them; 0 if unknown
        self.phase: Phase = "waiting for events"
        # More on that: a recovery's step, why the run failed or was stopped, or nothing.
        self.detail = ""
        # When it ended; `None` while it goes on, or where its log ends early.
        self.ended_at_s: float | None = None
        # Why the run failed or was stopped, for programs; `None` if it was neither.
        self.cause: FailureCause | None = None
        # The last lines of the worker because of which the run was given up.
        self.output: tuple[str, ...] = ()
        self.epoch = 0
        self.nodes = 0  # how many train, as it stands; 0 until a job is known
        # The version of an earlier run that its first start loaded; `None` if none.
        self.began_from: int | None = None
        # Remarks: when, on which node, what.
        self.notes: deque[tuple[float, str, str]] = deque(maxlen=most_notes)
        # Starts with other code than before, in order of the log.
        self.code_changes: deque[CodeSeen] = deque(maxlen=MOST_CHANGES)

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case Iteration():  # the most frequent one first
                pass
            case RunStarted():
                self._start(entry.at_s, event)
            case Protected(rank=0) if event.epoch >= self.epoch:
                self.settings = {**self.settings, **asdict(event.settings)}
                self.model_parallel_size = event.model_parallel_size
            case Note():
                self.notes.append((entry.at_s, entry.node, event.text))
            case CodeSeen(changed=[_, *_]):
                self.code_changes.append(event)
            case RunFinished() | RunFailed():
                self._end(entry.at_s, event)
            case RecoveryPlanned():
                if event.epoch >= self.epoch:
                    self.nodes = len(event.members)
                if event.recovery == 0 and event.tier == "persistent":
                    self.began_from = event.version
                self.epoch = max(self.epoch, event.epoch)
        if self.ended_at_s is None:
            self._follow(entry)

    def _start(self, at_s: float, job: RunStarted) -> None:
        if self.job is not None:
            return
        if not 0 < job.nodes * job.workers_per_node <= MOST_RANKS:
            raise ValueError(f"no cluster has {job.nodes} x {job.workers_per_node} ranks")
        self.job, self.started_at_s = job, at_s
        self.nodes = self.nodes or job.nodes
        self.settings = {**job.settings, **self.settings}
        if job.simulated is not None:
            self.settings |= {"simulated": True, **msgspec.structs.asdict(job.simulated)}

    def _end(self, at_s: float, event: RunFinished | RunFailed) -> None:
        if self.ended_at_s is not None and at_s < self.ended_at_s:
            return
        self.ended_at_s = at_s
        if isinstance(event, RunFailed):
            self.phase = "stopped" if event.cause in STOPPED else "failed"
            self.detail, self.output = event.reason, event.output
            self.cause = event.cause
        else:
            self.phase, self.detail = "finished", ""

    def _follow(self, entry: Entry) -> None:
        match entry.event:
            case LabStarted() | RunStarted():
                self.phase = "starting"
            case Iteration(restored=False, epoch=epoch) if epoch >= self.epoch:
                if self.phase in {"starting", "waiting for events"}:
                    self.phase, self.detail = "training", ""
            case RecoveryStarted():
                self.phase, self.detail = "recovering", ""
            case RecoveryPlanned() if self.phase == "waiting for machines":
                self.phase = "recovering"
            case RecoveryPlanned() if self.phase == "starting":
                self.detail = "nodes import what workers need"
            case RecoveryStep(step=step) if self.phase == "starting":
                self.detail = AFTER.get(step, self.detail)
            case RecoveryStep(step=step) if self.phase == "recovering":
                self.detail = f"{STEPS.get(step, step)} done"
            case RecoveryWaiting(missing=missing, reason=reason):
                self.phase = "waiting for machines"
                self.detail = reason or f"{len(missing)} missing"
            case RecoveryFinished():
                self.phase, self.detail = "training", ""

    # -- answers ---------------------------------------------------------------------------------

    @property
    def is_simulated(self) -> bool:
        return self.job is not None and self.job.simulated is not None

    @property
    def is_over(self) -> bool:
        return self.ended_at_s is not None

    @property
    def ranks(self) -> int:
        """Training processes, as it stands; 0 until a job is known."""
        return 0 if self.job is None else self.nodes * self.job.workers_per_node

    @property
    def outcome(self) -> Outcome:
        """How it ended; `"unfinished"` if the log does not say."""
        match self.phase:
            case "finished" | "failed" | "stopped" as ended:
                return ended
        return "unfinished"
