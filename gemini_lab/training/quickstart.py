"""The main job: train on four nodes, through three failures, to the same numbers.

First a run that never fails, then the same job with a worker killed, a whole node killed, and the
node with the root agent killed. What is printed comes from the two event logs.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gemini_lab.display import interrupt_says
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.injector.failures import NodeLoss, RootLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.progress_bars import show_progress
from gemini_lab.lab.submission import Submission
from gemini_lab.limits import whole
from gemini_lab.log.file import FOLDER_HELP, LOG_FILE, RUNS_FOLDER
from gemini_lab.report import Comparison, RunReport
from gemini_lab.report.text import BLOCKS, Ink, ink_for, render
from gemini_lab.seats import Seats

SIZE: Final = "small"
FEWEST: Final = 4
"""With fewer iterations, three failures would not come one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the main job."""

    undisturbed: RunReport  # the run that never failed
    disturbed: RunReport  # the run with failures
    comparison: Comparison  # whether every loss of every rank is the same, bit by bit

    @property
    def verdict(self) -> str:
        """Return the survived failures, and whether all losses are the same."""
        survived = len(self.disturbed.recoveries)
        beside = "losses compared with those of the run that never failed"
        return f"{survived} failures survived; {beside}:\n{self.comparison}"


def gpt_job(*, size: str = SIZE, iterations: int = 24, **options: object) -> Job:
    """Return the lab's own training job: a byte-level GPT on text, under DeepSpeed ZeRO-3.

    Args:
        size: A named size, see `gemini_lab.training.gpt.SIZES`.
        iterations: Optimizer steps.
        options: Further options of `gemini_lab.training.gpt_job`, such as `corpus=` or `seed=`.
    """
    args = ["--size", size, "--iterations", str(iterations)]
    for name, value in options.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        args += ["--" + name.replace("_", "-"), text]
    return Job(script="gemini_lab.training.gpt_job", args=args, module=True, name=f"gpt-{size}")


def main_scenario(iterations: int, *, ranks: int) -> Scenario:
    """Kill a worker, a node and the root's node at a quarter, a half and three quarters."""
    return (
        Scenario()
        .add(WorkerCrash(f"rank-{min(1, ranks - 1)}"), iteration=max(1, iterations // 4))
        .add(NodeLoss(f"rank-{min(2, ranks - 1)}"), iteration=max(2, iterations // 2))
        .add(RootLoss(), iteration=max(3, 3 * iterations // 4))
    )


def loss_table(undisturbed: RunReport, disturbed: RunReport, *, rows: int = 8) -> str:
    """Return rank 0's losses of both runs side by side, in decimal and exact hexadecimal."""
    pairs = [
        (number, loss, disturbed.losses.get((number, rank)))
        for (number, rank), loss in sorted(undisturbed.losses.items())
        if rank == 0
    ]
    step = max(1, len(pairs) // rows)
    shown = [pair for pair in pairs if pair[0] % step == 0 or pair is pairs[-1]]
    lines = ["iteration   never failed                     with failures"]
    for number, ours, theirs in shown:
        other = "none" if theirs is None else f"{theirs:.6f} {theirs.hex()}"
        lines.append(f"{number:9}   {ours:.6f} {ours.hex():<23} {other}")
    return "\n".join(lines)


def summary(result: Result, *, ink: Ink = BLOCKS) -> str:
    """Return the report of the run with failures, both runs' losses, and the verdict."""
    table = loss_table(result.undisturbed, result.disturbed)
    return f"{render(result.disturbed, ink=ink)}\n\n{table}\n\n{result.verdict}"


def run_main_job(
    lab: Lab, job: Job, scenario: Scenario, *, iterations: int, keep_processes: bool
) -> Result:
    """Run `job` twice on `lab`, once undisturbed, and show the progress."""
    print("first, a run that never fails:")  # noqa: T201
    undisturbed = lab.train(job, name="undisturbed", persistent_url=None)
    show_progress(undisturbed, total=iterations)
    undisturbed.wait()
    print("\nnow the same job with failures:")  # noqa: T201
    disturbed = lab.train(
        job,
        name="with-failures",
        scenario=scenario,
        persist_every_iterations=10,
        keep_processes=keep_processes,
    )
    show_progress(disturbed, total=iterations)
    disturbed.wait()
    reports = undisturbed.report(), disturbed.report()
    return Result(
        undisturbed=reports[0], disturbed=reports[1], comparison=reports[1].losses_match(reports[0])
    )


def _ended(folder: Path) -> str:
    return (
        "interrupted; none of its nodes runs any longer. What its runs did is in "
        f"{folder.absolute()}; the same command starts again"
    )


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab quickstart`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab quickstart", description=(__doc__ or "").splitlines()[0]
    )
    number = partial(options.add_argument, metavar="N")
    number(
        "--nodes",
        type=whole("nodes"),
        default=LabConfig.nodes,
        help="machines that train (default: %(default)s)",
    )
    number(
        "--standbys",
        type=whole("standbys"),
        default=LabConfig.standbys,
        help="machines that wait to replace a lost one (default: %(default)s)",
    )
    number(
        "--iterations",
        type=whole("iterations"),
        default=24,
        help="iterations of the job (default: %(default)s)",
    )
    options.add_argument(
        "--size", default=SIZE, help="size of the GPT: tiny, small, 300m, 1b (default: %(default)s)"
    )
    options.add_argument(
        "--corpus", metavar="PATH", help="text to train on (default: Python's own)"
    )
    options.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE",
        help="inject the failures in this file (default: three)",
    )
    options.add_argument(
        "--keep-processes",
        action="store_true",
        help="keep the processes of ranks that are not lost",
    )
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    return options


def asked_for(options: argparse.Namespace) -> tuple[Job, Scenario]:
    """Check the job and its failures before anything is started, and return both.

    Raises:
        ConfigError: It cannot.
    """
    config = LabConfig(nodes=options.nodes, standbys=options.standbys)
    if options.iterations < FEWEST:
        raise ConfigError(
            f"{options.iterations} iterations leave no room for three failures; give at least "
            f"{FEWEST}"
        )
    if (options.size, options.corpus) != (SIZE, None):
        from gemini_lab.training import corpus, gpt  # noqa: PLC0415 - imports torch: seconds

        gpt.named_size(options.size)
        if options.corpus is not None:
            corpus.require_text(options.corpus)
    scenario = main_scenario(options.iterations, ranks=options.nodes)
    if options.scenario:
        scenario = Scenario.load(options.scenario)
    text = {"corpus": options.corpus} if options.corpus else {}
    job = gpt_job(size=options.size, iterations=options.iterations, **text)
    Submission.checked(config, job, scenario=scenario, name=None, resume=False, settings={})
    return job, scenario


def command(arguments: list[str]) -> int:
    """Run `gemini-lab quickstart`; the exit status is 0 only if losses are bit-identical."""
    options = parser().parse_args(arguments)
    job, scenario = asked_for(options)
    machines = Seats(nodes=options.nodes, standbys=options.standbys).in_words
    print(f"starting {machines}", flush=True)  # noqa: T201
    with (
        interrupt_says(lambda: _ended(options.folder)),
        Lab(options.nodes, options.standbys, folder=options.folder) as lab,
    ):
        result = run_main_job(
            lab,
            job,
            scenario,
            iterations=options.iterations,
            keep_processes=options.keep_processes,
        )
    log = options.folder / result.disturbed.name / LOG_FILE
    print(f"\n{summary(result, ink=ink_for(sys.stdout.encoding))}\n\nlog: {log}")  # noqa: T201
    if not result.comparison:
        raise GeminiError(f"the losses differ: {result.comparison.first_difference}")
    return 0
