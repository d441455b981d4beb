"""How long a failure stops training: from the injection to the next iteration that all finished.

Labs whose workers are forked from warm parents, labs in which ranks that are not lost keep their
process besides, and labs that start new interpreters take turns, so that whatever else the machine
does meets all. Each round suffers every kind of failure once. Beside a killed worker stands NVRx's
restart within the process, where NVRx is installed, with a model of the same size and nothing to
load.
"""

import argparse
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError, LaunchError
from gemini_lab.injector.failures import (
    Failure,
    LinkCut,
    NodeFreeze,
    NodeLoss,
    RootLoss,
    WorkerCrash,
)
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import ready_lab, recovery_s, wait_for
from gemini_lab_bench.peers.environments import find_python, parse_environments
from gemini_lab_bench.peers.nvrx_restarts import LOOK_S, restart_s
from gemini_lab_bench.rows import Row

FAILURES: Final[dict[str, Failure]] = {
    "worker crash": WorkerCrash("rank-1"),
    "cut link": LinkCut("rank-1", to="rank-2"),
    "node loss": NodeLoss("rank-2"),
    "root loss": RootLoss(),
    "silent node": NodeFreeze("rank-3"),
}
WAYS: Final = ("warm", "kept", "cold")
SIZE: Final = "tiny"
PEER: Final = "nvrx"
PEER_WAYS: Final[dict[str, float | None]] = {
    "NVRx as it comes": None,
    f"NVRx, looks every {LOOK_S:g} s": LOOK_S,
}
"""NVRx's ways in words, and how often it looks for failures."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that this bench has beside those of all."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="nvrx=PYTHON",
        dest="environments",
        help="a Python that has NVRx (nvidia-resiliency-ext) and torch",
    )
    parser.add_argument(
        "--install",
        type=Path,
        metavar="DIR",
        help="make an environment for NVRx here, or use the one made before",
    )


def bench(
    repeats: int, *, environments: Sequence[str] = (), install: Path | None = None
) -> list[Row]:
    """Measure every kind of failure `repeats` times, in each way in turn."""
    python, why_not = nvrx_python(environments, install)
    measured: dict[tuple[str, str], list[float]] = {}

    def note(failure: str, how: str, duration_s: float) -> None:
        measured.setdefault((failure, how), []).append(duration_s)

    for _ in range(repeats):
        for how in WAYS:
            one_round(how, note)
        if python is not None:
            for how, look_s in PEER_WAYS.items():
                note("worker crash", how, restart_s(python, size=SIZE, look_s=look_s))
    return rows_of(measured, why_not)


def rows_of(measured: Mapping[tuple[str, str], Sequence[float]], why_not: str = "") -> list[Row]:
    """Return a row for each failure and way, and each way's share of a cold start's time."""
    rows, ratios = [], []
    for failure in FAILURES:
        for how in (*WAYS, *(PEER_WAYS if failure == "worker crash" else ())):
            values = tuple(measured.get((failure, how), ()))
            rows.append(Row(f"{failure}, {how}", values, why_not=why_not))
            if values and how != "cold":
                shares = zip(values, measured[failure, "cold"], strict=True)
                share = tuple(one / cold for one, cold in shares)
                ratios.append(Row(f"{failure}, {how} / cold", share, unit=""))
    return [*rows, *ratios]


def nvrx_python(environments: Sequence[str], install: Path | None) -> tuple[Path | None, str]:
    """Return a Python that has NVRx, or why there is none."""
    try:
        python = find_python(PEER, parse_environments(environments), install)
    except LaunchError as error:
        return None, str(error)
    command = [str(python), "-c", "import nvidia_resiliency_ext.inprocess"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        last = tried.stderr.strip().splitlines()[-1:]
        return None, f"not installed ({' '.join(last)}); use --install DIR or --env nvrx=PYTHON"
    return python, ""


def one_round(how: str, note: Callable[[str, str, float], None]) -> None:
    """Suffer each kind of failure on one lab of four nodes."""
    keeps = how == "kept"
    with ready_lab(4, 1, warm=how != "cold") as lab:
        job = gpt_job(size=SIZE, iterations=10**6)
        run = lab.train(job, persistent_url=None, keep_processes=keeps)
        for number, (name, failure) in enumerate(FAILURES.items(), start=1):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + 5)
            run.inject(failure)
            note(name, how, recovery_s(run, number))
            if keeps and not run.report().recoveries[number - 1].kept:
                raise GeminiError(f"recovery {number} of {run} kept no process; its log says why")
        run.stop()
