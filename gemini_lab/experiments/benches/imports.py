"""How long a failure stops a job whose libraries take long to import, imported ahead or not.

transformers' Trainer on two nodes and a standby. Labs whose warm parents import what the script was
seen to import and labs whose parents do not take turns. In each, a worker is killed and then a
node, once all parents are ready.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.experiments.bench import Row
from gemini_lab.experiments.benches.waiting import LIMIT_S, wait_for
from gemini_lab.injector.failures import Failure, NodeLoss, WorkerCrash
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.log.events import Note

NODES: Final = 2
STANDBYS: Final = 1
FAILURES: Final[dict[str, Failure]] = {
    "worker crash": WorkerCrash("rank-1"),
    "node loss": NodeLoss("rank-1"),
}
ARMS: Final = {"ahead": True, "by the script": False}
IMPORTED: Final = "modules of the script's libraries imported already"


def bench(repeats: int) -> list[Row]:
    """Measure both failures `repeats` times, with imports ahead and without, in turn."""
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gemini_lab-bench-") as folder:
        for number in range(repeats):
            for how, ahead in ARMS.items():
                for failure, took_s in one_round(Path(folder) / f"{number}-{ahead}", ahead).items():
                    measured.setdefault((failure, how), []).append(took_s)
    rows = []
    for failure in FAILURES:
        arms = [measured[failure, how] for how in ARMS]
        rows += [
            Row(name=f"{failure}, imported {how}", values=tuple(measured[failure, how]))
            for how in ARMS
        ]
        ratios = tuple(ahead / plain for ahead, plain in zip(*arms, strict=True))
        rows.append(Row(name=f"{failure}, ahead / by the script", unit="", values=ratios))
    return rows


def one_round(folder: Path, ahead: bool) -> dict[str, float]:  # noqa: FBT001 - an arm's only choice
    """Seconds without training for each failure, on one lab.

    Raises:
        ConfigError: transformers is not installed.
        GeminiError: Training does not get on.
    """
    try:
        import transformers  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'gemini-lab[transformers]'") from error
    job = Job(
        script="gemini_lab.training.trainer_job", module=True, args=["--iterations", "1000000"]
    )
    with Lab(NODES, STANDBYS, folder=folder) as lab:
        lab.wait_until_ready()
        run = lab.train(job, persistent_url=None, import_ahead=ahead)
        wait_for(run, iteration=5)
        if ahead:
            _wait_until_imported(run)
        for number, failure in enumerate(FAILURES.values(), start=1):
            run.inject(failure)
            wait_for(run, recoveries=number, iteration=run.iteration + 5)
        report = run.report()
        run.stop()
    took = [one.duration_s for one in report.recoveries]
    if len(took) != len(FAILURES) or None in took:
        raise GeminiError(f"{run} had other failures, too: recoveries took {took} s")
    return {failure: one or 0.0 for failure, one in zip(FAILURES, took, strict=True)}


def _wait_until_imported(run: Run) -> None:
    """Return when workers on every node can be forked from a parent with the imports."""
    give_up_s = time.monotonic() + LIMIT_S
    while _ready(run) < NODES + STANDBYS:
        if run.failure or time.monotonic() > give_up_s:
            raise GeminiError(f"{run} does not import ahead: {run.failure or run.report().notes}")
        time.sleep(0.1)


def _ready(run: Run) -> int:
    notes = [entry.event for entry in run.events("note")]
    return sum(isinstance(one, Note) and IMPORTED in one.text for one in notes)
