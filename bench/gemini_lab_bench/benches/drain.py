"""How long a planned drain stops training, and whether anything is done again after it.

One lab's nodes are drained in turn, the root agent's too. Each is killed when it has no ranks any
more, as its machine would be taken, and the operator brings another standby. Then the same job
trains as far without a drain, and the losses of both are compared.
"""

import argparse
import time
from dataclasses import replace
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.lab.run import Run
from gemini_lab.log.events import DRAIN, NodeDrained
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import LIMIT_S, ready_lab, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = 4
BETWEEN: Final = 5  # iterations
LAYER_S: Final = 0.05  # emulated: what computes is an accelerator, and standbys start meanwhile


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the choice of one way."""
    ways = ("kept", "anew")
    parser.add_argument("--only", choices=ways, help="processes are kept, or all restart")


def bench(repeats: int, *, only: str | None = None) -> list[Row]:
    """Drain `repeats` nodes of a lab, one after the other, and of one that keeps processes."""
    rows = []
    for way, how in {"anew": "all restart", "kept": "the others keep their process"}.items():
        if only in {None, way}:
            found = drained(repeats, keeps=way == "kept")
            rows += [replace(row, name=f"{how}: {row.name}") for row in found]
    return rows


def drained(repeats: int, *, keeps: bool) -> list[Row]:
    """Return what so many drains of one lab came to."""
    with ready_lab(NODES, 1) as lab:
        job = gpt_job(size="tiny", iterations=10**6, layer_s=LAYER_S)
        run = lab.train(job, persistent_url=None, keep_processes=keeps)
        for number in range(repeats):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + BETWEEN)
            node = run.members[number % NODES]
            run.drain(node)
            _wait_until_drained(run, node)
            run.inject(NodeLoss(node))
            say(f"drain {number + 1} of {repeats}")
        wait_for(run, iteration=run.iteration + BETWEEN)
        run.stop()
        report = run.report()
        say(f"the same {run.iteration} iterations, undisturbed")
        job = gpt_job(size="tiny", iterations=10**6)  # faster, to the same losses
        undisturbed = lab.train(job, persistent_url=None)
        wait_for(undisturbed, iteration=run.iteration)
        undisturbed.stop()
        other = undisturbed.report()
    return [*rows_of(report), differing(report, other)]


def differing(report: RunReport, undisturbed: RunReport) -> Row:
    """Count the losses that differ from a run's without drains, of those that both have."""
    here, there = report.losses, undisturbed.losses
    both = here.keys() & there.keys()
    return single(
        "losses that differ from an undisturbed run's, in all",
        sum(here[at] != there[at] for at in both),
        {"compared": len(both)},
    )


def rows_of(report: RunReport) -> list[Row]:
    """Return what the drains of a run came to."""
    drains = [one for one in report.recoveries if one.cause == DRAIN]
    steps = [one.duration_s for one in report.iterations if one.rank == 0]
    return [
        Row("training stood still", tuple(one.duration_s or 0.0 for one in drains)),
        Row("an iteration", tuple(steps), settings={"layer_s": LAYER_S}),
        Row(
            "iterations done again, a drain",
            tuple(float(one.lost_by_any) for one in drains),
            unit="",
        ),
        single("restarts for other reasons, in all", len(report.recoveries) - len(drains)),
        single(
            "iterations that came out otherwise when done again, in all", len(report.divergences)
        ),
    ]


def _wait_until_drained(run: Run, node: str) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    done = NodeDrained(name=node)
    while all(said.event != done for said in run.events(done.kind)):
        if run.failure or time.monotonic() > give_up_s:
            raise GeminiError(f"{node} still has ranks after {LIMIT_S:.0f} s: {run.failure}")
        time.sleep(0.1)
