"""Whether a user's own script comes back from failures bit-identical: tried, in a small lab.

The script runs twice as it is. Once a worker and then a node are killed, each when training is well
under way; once nothing is. Both are ended when there is enough to compare.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.failures import Failure, NodeLoss, WorkerCrash
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent, Note, RecoveryFinished, Unprotected
from gemini_lab.log.file import read_log
from gemini_lab.report.twice import Twice, accounts, compare
from gemini_lab.units import format_seconds

AFTER: Final = 2
"""Iterations that a recovery must be followed by, before the next thing happens."""
FEWEST: Final = 6
"""Iterations below which two failures have no room."""
FEWEST_NODES: Final = 2
"""Nodes below which nobody is left with a lost one's shards."""
GLANCE_S: Final = 0.1
Verdict = Literal["bit-identical", "differs", "not repeatable", "nothing to compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A failure that was caused, and how training came back.

    Attributes:
        failure: What was broken, for people.
        iteration: The newest that every rank had done then.
        version: What training went on from.
        duration_s: Until the first iteration after it.
    """

    failure: str
    iteration: int
    version: int
    duration_s: float


class Disturbance:
    """What breaks when: a worker, and once training is back a node; then it is enough.

    Args:
        iterations: About how many the run shall have in all.
        ranks: Training processes.

    Attributes:
        recovered: The failures that training has come back from.
        is_over: Whether training came back from both and enough iterations followed.
    """

    def __init__(self, *, iterations: int, ranks: int) -> None:
        self.recovered: list[Recovered] = []
        self.is_over = False
        self._iterations = iterations
        self._coming: list[tuple[int, Failure]] = [
            (iterations // 3, WorkerCrash(f"rank-{min(1, ranks - 1)}")),
            (2 * iterations // 3, NodeLoss(f"rank-{ranks - 1}")),
        ]
        self._struck: tuple[int, Failure] | None = None
        self._not_before = 1

    @property
    def is_survived(self) -> bool:
        """Whether training came back from both."""
        return not self._coming and self._struck is None

    def take(self, event: AnyEvent, *, iteration: int) -> Failure | None:
        """What breaks now, if anything does.

        Args:
            event: What has just happened.
            iteration: The newest that every rank has done.
        """
        if self._struck is not None:
            if isinstance(event, RecoveryFinished):
                self._note(event)
            return None
        due = self._coming[0][0] if self._coming else self._iterations
        if iteration < max(due, self._not_before):
            return None
        if not self._coming:
            self.is_over = True
            return None
        _, failure = self._coming.pop(0)
        self._struck = iteration, failure
        return failure

    def _note(self, event: RecoveryFinished) -> None:
        assert self._struck is not None
        iteration, failure = self._struck
        self._struck, self._not_before = None, event.iteration + AFTER
        self.recovered.append(
            Recovered(
                failure=str(failure),
                iteration=iteration,
                version=event.version,
                duration_s=event.duration_s,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        script: What was run.
        nodes: On how many.
        ranks: By how many processes.
        iterations: How many both runs have.
        recovered: The failures that training came back from.
        twice: What both runs computed, compared.
        remarks: What was said on the way.
    """

    script: str
    nodes: int
    ranks: int
    iterations: int
    recovered: tuple[Recovered, ...]
    twice: Twice
    remarks: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """In a word or two."""
        if self.twice.first is not None:
            is_early = self.twice.first.iteration <= self.recovered[0].version
            return "not repeatable" if is_early else "differs"
        return "bit-identical" if self.twice.is_same else "nothing to compare"

    @property
    def after(self) -> Recovered | None:
        """The failure after which the runs part."""
        first = self.twice.first
        before = [one for one in self.recovered if first and one.version < first.iteration]
        return before[-1] if before else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return {"verdict": self.verdict, **asdict(self), "twice": self.twice.to_json()}


def require_room(*, nodes: int, iterations: int) -> None:
    """Refuse a check without room for a worker's loss and a node's, before anything starts.

    Raises:
        ConfigError: There are too few iterations, or nodes.
    """
    if iterations < FEWEST:
        raise ConfigError(f"{iterations} iterations leave no room; give at least {FEWEST}")
    if nodes < FEWEST_NODES:
        raise ConfigError(
            "a node is killed, and another one has to keep its shards; give at least "
            f"{FEWEST_NODES} nodes (got {nodes})"
        )


def check_script(
    lab: Lab, job: Job, *, iterations: int, limit_s: float, tell: Callable[[str], None]
) -> Checked:
    """Train `job` on `lab` with failures and without, and compare.

    Args:
        lab: With a standby, and nothing under way.
        job: The script; it runs twice for real, so what it writes is written.
        iterations: About how many to train each time.
        limit_s: How long each run may take.
        tell: Is told what happens, a line at a time.

    Raises:
        ConfigError: There are too few iterations or nodes, or the script never calls `protect`.
        RunFailedError: The script failed, took too long, or ended before both failures.
    """
    require_room(nodes=lab.nodes, iterations=iterations)
    ranks = lab.nodes * lab.workers_per_node
    disturbance = Disturbance(iterations=iterations, ranks=ranks)
    tell("with failures")
    disturbed = _train(lab, job, "with-failures")
    _follow(disturbed, disturbance, limit_s=limit_s, tell=tell)
    reached = disturbed.iteration
    tell("undisturbed")
    undisturbed = _train(lab, job, "undisturbed")
    _wait_until(undisturbed, lambda: undisturbed.iteration >= reached, limit_s=limit_s)
    tell(f"  iteration {undisturbed.iteration}: enough")
    logs = [list(read_log(run.log)) for run in (undisturbed, disturbed)]
    return Checked(
        script=job.script,
        nodes=lab.nodes,
        ranks=ranks,
        iterations=min(reached, undisturbed.iteration),
        recovered=tuple(disturbance.recovered),
        twice=compare(*(accounts(log, until=reached) for log in logs)),
        remarks=tuple(dict.fromkeys(e.event.text for e in logs[1] if isinstance(e.event, Note))),
    )


def _train(lab: Lab, job: Job, how: str) -> Run:
    """Start it; the script's persistent tier is left alone."""
    name = f"check-{job.word}-{how}"
    return lab.train(job, name=name, persistent_url=None, on_divergence="warn")


def _follow(
    run: Run, disturbance: Disturbance, *, limit_s: float, tell: Callable[[str], None]
) -> None:
    """Break what is to be broken, until it is enough.

    Raises:
        RunFailedError: The script ended before, or failed.
    """
    told = 0

    def watch(entry: Entry) -> None:
        """On the lab's thread."""
        nonlocal told
        failure = disturbance.take(entry.event, iteration=run.iteration)
        for one in disturbance.recovered[told:]:
            took = format_seconds(one.duration_s)
            tell(f"    training again after {took}, from version {one.version}")
        told = len(disturbance.recovered)
        if failure is not None:
            tell(f"  iteration {run.iteration}: {failure}")
            run.inject(failure)

    forget = run.watch(watch)
    try:
        _wait_until(run, lambda: disturbance.is_over, limit_s=limit_s)
    finally:
        forget()
    if not disturbance.is_survived:
        raise RunFailedError(
            f"the script ended after iteration {run.iteration}, before a worker and a node could "
            "be killed and training had come back twice; give it more iterations, or ask for fewer "
            "with --iterations"
        )
    tell(f"  iteration {run.iteration}: enough")


def _wait_until(run: Run, is_enough: Callable[[], bool], *, limit_s: float) -> None:
    """Wait for it or for the run's end, and end the run.

    Raises:
        ConfigError: The script never called `protect`.
        RunFailedError: The run failed by itself, or it took too long.
    """
    unprotected = threading.Event()
    forget = run.watch(
        lambda entry: unprotected.set() if isinstance(entry.event, Unprotected) else None
    )
    give_up_s = time.monotonic() + limit_s
    while not (is_enough() or run.is_over_within(GLANCE_S)) and time.monotonic() < give_up_s:
        pass
    forget()
    has_enough, was_over = is_enough(), run.is_over
    if not was_over:
        run.stop()
    with suppress(RunFailedError):
        run.wait(60)
    if unprotected.is_set():
        raise ConfigError("the script never calls gemini_lab.protect, so there is nothing to check")
    if was_over and run.failure is not None:
        run.wait()  # says why, with the worker's last lines
    if not was_over and not has_enough:
        raise RunFailedError(
            f"after {format_seconds(limit_s)} the run was {run.phase} at iteration "
            f"{run.iteration}; ask for fewer iterations, or allow more time with --limit"
        )
