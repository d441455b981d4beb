"""How long a failure stops training: from the injection to the next iteration that all finished.

Labs whose workers are forked from warm parents and labs that start new interpreters take turns, so
that whatever else the machine does meets both. Each round suffers every kind of failure once.
"""

import tempfile
from pathlib import Path
from typing import Final

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


def bench(repeats: int) -> list[Row]:
    """Measure every kind of failure `repeats` times, warm and cold in turn."""
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gemini_lab-bench-") as folder:
        for number in range(repeats):
            for how in ("warm", "cold"):
                took = one_round(Path(folder) / f"{how}-{number}", warm=how == "warm")
                for failure, duration_s in took.items():
                    measured.setdefault((failure, how), []).append(duration_s)
    rows = [
        Row(name=f"{failure}, {how}", values=tuple(measured[failure, how]))
        for failure in FAILURES
        for how in ("warm", "cold")
    ]
    ratios = [
        Row(
            name=f"{failure}, warm / cold",
            unit="",
            values=tuple(
                warm / cold
                for warm, cold in zip(
                    measured[failure, "warm"], measured[failure, "cold"], strict=True
                )
            ),
        )
        for failure in FAILURES
    ]
    return [*rows, *ratios]


def one_round(folder: Path, *, warm: bool) -> dict[str, float]:
    """Seconds without training for each kind of failure, on one lab of four nodes."""
    took: dict[str, float] = {}
    with Lab(4, 1, folder=folder, warm=warm) as lab:
        lab.wait_until_ready()
        run = lab.train(gpt_job(size="tiny", iterations=10**6), persistent_url=None)
        for number, (name, failure) in enumerate(FAILURES.items(), start=1):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + 5)
            run.inject(failure)
            took[name] = recovery_s(run, number)
        run.stop()
    return took
