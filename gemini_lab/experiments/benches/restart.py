"""How long a failure stops training: from the injection to the next iteration that all finished.

Labs whose workers are forked from warm parents, labs in which ranks that are not lost keep their
process besides, and labs that start new interpreters take turns, so that whatever else the machine
does meets all. Each round suffers every kind of failure once.
"""

import tempfile
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.experiments.bench import Row
from gemini_lab.experiments.benches.waiting import recovery_s, wait_for
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.injector.failures import Failure, NodeFreeze, NodeLoss, RootLoss, WorkerCrash
from gemini_lab.lab.lab import Lab

FAILURES: Final[dict[str, Failure]] = {
    "worker crash": WorkerCrash("rank-1"),
    "node loss": NodeLoss("rank-2"),
    "root loss": RootLoss(),
    "silent node": NodeFreeze("rank-3"),
}
WAYS: Final = ("warm", "kept", "cold")


def bench(repeats: int) -> list[Row]:
    """Measure every kind of failure `repeats` times, in each way in turn."""
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gemini_lab-bench-") as folder:
        for number in range(repeats):
            for how in WAYS:
                for failure, duration_s in one_round(Path(folder) / f"{how}-{number}", how).items():
                    measured.setdefault((failure, how), []).append(duration_s)
    rows = [
        Row(name=f"{failure}, {how}", values=tuple(measured[failure, how]))
        for failure in FAILURES
        for how in WAYS
    ]
    ratios = [
        Row(
            name=f"{failure}, {how} / cold",
            unit="",
            values=tuple(
                one / cold
                for one, cold in zip(measured[failure, how], measured[failure, "cold"], strict=True)
            ),
        )
        for failure in FAILURES
        for how in WAYS[:-1]
    ]
    return [*rows, *ratios]


def one_round(folder: Path, how: str) -> dict[str, float]:
    """Seconds without training for each kind of failure, on one lab of four nodes."""
    took: dict[str, float] = {}
    keeps = how == "kept"
    with Lab(4, 1, folder=folder, warm=how != "cold") as lab:
        lab.wait_until_ready()
        job = gpt_job(size="tiny", iterations=10**6)
        run = lab.train(job, persistent_url=None, keep_processes=keeps)
        for number, (name, failure) in enumerate(FAILURES.items(), start=1):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + 5)
            run.inject(failure)
            took[name] = recovery_s(run, number)
            if keeps and not run.report().recoveries[number - 1].kept:
                raise GeminiError(f"recovery {number} of {run} kept no process; its log says why")
        run.stop()
    return took
