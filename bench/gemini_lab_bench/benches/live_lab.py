"""A lab for a bench's own runs, and the waits for a run that the bench strikes."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run

LIMIT_S: Final = 180.0
RUN_LIMIT_S: Final = 600.0


@contextmanager
def ready_lab(
    nodes: int, standbys: int = 0, *, warm: bool = True, below: Path | None = None
) -> Iterator[Lab]:
    """Open a lab in a folder of its own, which goes with it, and wait until it is ready."""
    with (
        tempfile.TemporaryDirectory(prefix="gemini_lab-bench-", dir=below) as folder,
        Lab(nodes, standbys, folder=Path(folder), warm=warm) as lab,
    ):
        lab.wait_until_ready()
        yield lab


def finished(lab: Lab, job: Job) -> Run:
    """Run a job to its end.

    Raises:
        GeminiError: It did not finish.
    """
    run = lab.train(job, persistent_url=None).wait(RUN_LIMIT_S)
    if run.report().outcome != "finished":
        raise GeminiError(f"{run} did not finish: {run.report().reason}")
    return run


def wait_for(run: Run, *, iteration: int = 0, recoveries: int = 0) -> None:
    """Wait until it trains, with so many iterations and recoveries behind it.

    Raises:
        GeminiError: It failed, or nothing new was heard of it for `LIMIT_S`.
    """
    heard, heard_s = None, time.monotonic()
    while run.iteration < iteration or run.recoveries < recoveries or run.phase != "training":
        if (now := (run.iteration, run.recoveries, run.phase)) != heard:
            heard, heard_s = now, time.monotonic()
        if run.failure or time.monotonic() - heard_s > LIMIT_S:
            raise GeminiError(f"{run} does not get on: {run.failure or 'nothing is heard of it'}")
        time.sleep(0.02)


def recovery_s(run: Run, number: int) -> float:
    """Wait until the run's recovery `number` is over, and return how long it took.

    Raises:
        GeminiError: It is not, in `LIMIT_S`.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s and not run.failure:
        recoveries = run.report().recoveries
        duration_s = recoveries[number - 1].duration_s if len(recoveries) >= number else None
        if duration_s is not None:
            return duration_s
        time.sleep(0.2)
    raise GeminiError(f"recovery {number} of {run} was not over in {LIMIT_S:.0f} s: {run.failure}")
