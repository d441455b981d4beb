"""Logs of two real runs of one job, where no nodes can start: one to learn from, one to predict.

Two nodes with three standbys, on one machine of two busy cores, trained a tiny GPT for 34 and for
27 iterations, and lost workers and nodes by a scenario each. Chunks, collectives and remarks are
left out of the logs.
"""

import gzip
import tempfile
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import LOG_FILE
from gemini_lab.report.reducer import FOR_REPORT, RunReducer

FOLDER: Final = Path(__file__).with_name("runs")


def recorded_run(name: str) -> RunReducer:
    """Return what the log of the run called `name` comes to.

    Raises:
        ConfigError: There is none of that name.
    """
    packed = FOLDER / f"{name}.jsonl.gz"
    if not packed.is_file():
        known = ", ".join(sorted(one.name.split(".")[0] for one in FOLDER.glob("*.gz")))
        raise ConfigError(f"no run {name!r} was recorded; choose from {known}")
    with tempfile.TemporaryDirectory(prefix="gemini_lab-recorded-") as below:
        folder = Path(below) / name
        folder.mkdir()
        (folder / LOG_FILE).write_bytes(gzip.decompress(packed.read_bytes()))
        return RunReducer.load(folder, keep=FOR_REPORT)


def recorded_scenario() -> Scenario:
    """Return the scenario that `four_failures` was played by, from its file."""
    return Scenario.load(FOLDER / "four_failures.json")
