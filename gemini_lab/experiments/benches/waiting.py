"""Waiting for a live run to get on, as benches that strike it do."""

import time
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.lab.run import Run

LIMIT_S: Final = 180.0


def wait_for(run: Run, *, iteration: int = 0, recoveries: int = 0) -> None:
    """Return when it trains, with so many iterations and recoveries behind it.

    Raises:
        GeminiError: It failed, or does not get there.
    """
    give_up_s = time.monotonic() + LIMIT_S
    while run.iteration < iteration or run.recoveries < recoveries or run.phase != "training":
        if run.failure or time.monotonic() > give_up_s:
            raise GeminiError(f"{run} does not get on: {run.failure or 'nothing is heard of it'}")
        time.sleep(0.02)
