"""`gemini-lab check`: does this very script come back from failures bit-identical?"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from gemini_lab.experiments.check import Checked, Recovered, check_script, require_room
from gemini_lab.job import Job
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.lab.lab import Lab
from gemini_lab.limits import seconds, whole
from gemini_lab.log.events import DIFFERENCES
from gemini_lab.log.file import FOLDER_HELP, RUNS_FOLDER
from gemini_lab.report.twice import FirstDifference
from gemini_lab.seats import Seats
from gemini_lab.units import format_seconds

NODES: Final = 2
ITERATIONS: Final = 18
LIMIT_S: Final = 1800.0
WIDTH: Final = 80

ENDED: Final = (
    "interrupted, so there is no verdict. None of its nodes runs any more; what its runs did is in "
    "{}"
)
SEEDS: Final = (
    "the script computes other numbers each time it is started, without any failure: seed its "
    "random generators (weights, data order, dropout), and check again"
)


def command(arguments: list[str]) -> int:
    """Run `gemini-lab check`; the exit status is 1 where the script is not proven bit-identical."""
    options = parser().parse_args(arguments)
    job = Job(script=options.script, args=options.args, module=options.module)
    job.check()
    tell = partial(print, file=sys.stderr, flush=True)
    seats = Seats(nodes=options.nodes, standbys=1, workers_per_node=options.workers_per_node)
    require_room(nodes=options.nodes, iterations=options.iterations)
    tell(f"starting {seats.in_words}")
    with (
        interrupt_says(lambda: ENDED.format(options.folder.absolute())),
        Lab(
            options.nodes, 1, workers_per_node=options.workers_per_node, folder=options.folder
        ) as lab,
    ):
        tell(f"{options.script} on {lab.nodes} nodes, about {options.iterations} iterations, twice")
        checked = check_script(
            lab, job, iterations=options.iterations, limit_s=options.limit, tell=tell
        )
    if options.json:
        tell(json.dumps(checked.to_json(), indent=2))
    else:
        tell("\n".join(["", *render(checked)]))
    return 0 if checked.verdict == "bit-identical" else 1


def parser() -> argparse.ArgumentParser:
    """The options of `gemini-lab check`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab check",
        description="Train some iterations of a script twice in a small lab, once with a worker "
        "and then a node killed, and compare every loss, gradient norm, batch, random state and "
        "learning rate. What the script writes, it writes twice; its persistent tier is not used.",
    )
    number = partial(options.add_argument, metavar="N")
    number(
        "--nodes",
        type=whole("nodes", least=1),
        default=NODES,
        help="machines that train (%(default)s)",
    )
    number(
        "--workers-per-node",
        type=whole("workers_per_node", least=1),
        default=1,
        help="training processes on each, one per GPU (%(default)s)",
    )
    number(
        "--iterations",
        type=whole("iterations", least=1),
        default=ITERATIONS,
        help="about how many to train each time (%(default)s)",
    )
    options.add_argument(
        "--limit",
        type=seconds,
        default=LIMIT_S,
        metavar="S",
        help="seconds that each run may take (%(default).0f)",
    )
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument("--json", action="store_true", help="the verdict as JSON")
    options.add_argument("-m", dest="module", action="store_true", help="the script is a module")
    options.add_argument("script", help="the training script")
    its = options.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    its.required = False  # by which an error would name it beside the script
    return options


def render(checked: Checked) -> Iterator[str]:
    """The verdict for people."""
    twice = checked.twice
    scope = f"{checked.iterations} iterations by {checked.ranks} ranks on {checked.nodes} nodes"
    if checked.verdict == "bit-identical":
        yield f"BIT-IDENTICAL: {scope}, {len(checked.recovered)} failures survived;"
        yield f"  {twice.with_values} losses or gradient norms compared, none differs"
    elif checked.verdict == "nothing to compare":
        yield "NOTHING TO COMPARE: neither a loss nor a gradient norm is known of these iterations"
        yield from _wrapped("log the loss: protected.log(loss=loss.item()) before engine.step()")
    elif twice.first is not None:
        is_own = checked.verdict == "not repeatable"
        yield "NOT REPEATABLE, even without a failure" if is_own else "NOT BIT-IDENTICAL"
        yield from _table(twice.first, None if is_own else checked.after)
        yield from _wrapped(f"likely: {SEEDS if is_own else twice.first.cause}")
    if twice.silent is not None:
        yield ""
        text = f"beware: the {twice.silent} differs, without effect on any of these numbers so far"
        yield from _wrapped(text, "")
        yield from _wrapped(f"likely: {twice.silent.cause}")
    for remark in checked.remarks:
        yield from ("", *_wrapped(f"beware: {remark}", ""))


def _table(first: FirstDifference, after: Recovered | None) -> Iterator[str]:
    what = DIFFERENCES.get(first.what, first.what)
    rows = {
        "differs first": what,
        "where": f"iteration {first.iteration}, rank {first.rank}",
        "undisturbed": first.undisturbed,
        "with failures": first.disturbed,
    }
    if after is not None:
        took = format_seconds(after.duration_s)
        rows["after"] = (
            f"{after.failure} at iteration {after.iteration}: back in {took} from version "
            f"{after.version}"
        )
    for name, value in rows.items():
        yield f"  {name:<15}{value}"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
