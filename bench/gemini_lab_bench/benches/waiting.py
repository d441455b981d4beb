"""Waiting for a live run to get on, as benches that strike it do."""

import time
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.lab.run import Run

LIMIT_S: Final = 180.0


def wait_for(run: Run, *, iteration: int = 0, recoveries: int = 0) -> None:
    """Return when it trains, with so many iterations and recoveries behind it.

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
    """How long the run's recovery `number` took, once it is over.

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
