"""`gemini-lab check`: does this very script come back from failures bit-identical?"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gemini_lab.display import interrupt_says
from gemini_lab.job import Job
from gemini_lab.lab.check import (
    Checked,
    Recovered,
    Verdict,
    check_script,
    require_room,
)
from gemini_lab.lab.lab import Lab
from gemini_lab.limits import seconds, whole
from gemini_lab.log.events import DIFFERENCES
from gemini_lab.log.file import FOLDER_HELP, RUNS_FOLDER
from gemini_lab.log.witnessed import StateDifference
from gemini_lab.report.compare_runs import FirstDifference
from gemini_lab.seats import Seats
from gemini_lab.units import format_seconds

NODES: Final = 2
ITERATIONS: Final = 24
KILLS: Final = 12
NAMED: Final = 5
"""So many pieces that differ are named."""
LIMIT_S: Final = 1800.0
WIDTH: Final = 80

ENDED: Final = (
    "interrupted, so there is no verdict. None of its nodes runs any longer; what its runs did is "
    "in {}"
)
SEEDS: Final = (
    "two runs under plain torchrun are not the same, without any failure and without a lab: seed "
    "the script's random generators (weights, data order, dropout), and check again"
)
BY_PROTECTION: Final = (
    "two runs under plain torchrun are the same, and the one in a lab is not: please report this"
)
TITLES: Final[Mapping[Verdict, str]] = {
    "bit-identical": "BIT-IDENTICAL",
    "differs": "NOT BIT-IDENTICAL",
    "does not come back": "DOES NOT COME BACK",
    "differs without a failure": "OTHER NUMBERS, even without a failure",
    "not repeatable": "NOT REPEATABLE, even under plain torchrun",
    "nothing to compare": "NOTHING TO COMPARE",
}


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
        tell(f"{options.script} on {lab.nodes} nodes, up to {options.iterations} iterations a run")
        checked = check_script(
            lab,
            job,
            iterations=options.iterations,
            kills=options.kills,
            limit_s=options.limit,
            tell=tell,
        )
    if options.json:
        tell(json.dumps(checked.to_json(), indent=2))
    else:
        tell("\n".join(["", *render(checked)]))
    return 0 if checked.verdict == "bit-identical" else 1


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab check`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab check",
        description="Train some iterations of a script: in a small lab, under plain torchrun, and "
        "in the lab again, killed at each kind of place that it reached. Compare weights, "
        "optimizer, buffers, generators, batches, losses and gradient norms. What the script "
        "writes, it writes each time; its persistent tier is not used.",
    )
    number = partial(options.add_argument, metavar="N")
    number(
        "--nodes",
        type=whole("nodes", least=1),
        default=NODES,
        help="machines that train (default: %(default)s)",
    )
    number(
        "--workers-per-node",
        type=whole("workers_per_node", least=1),
        default=1,
        help="training processes per node, one per GPU (default: %(default)s)",
    )
    number(
        "--iterations",
        type=whole("iterations", least=1),
        default=ITERATIONS,
        help="iterations to train each time, at most (default: %(default)s)",
    )
    number(
        "--kills",
        type=whole("kills", least=1),
        default=KILLS,
        help="kills, at most (default: %(default)s)",
    )
    options.add_argument(
        "--limit",
        type=seconds,
        default=LIMIT_S,
        metavar="S",
        help="seconds per run, at most (default: %(default).0f)",
    )
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument("--json", action="store_true", help="print the verdict as JSON")
    options.add_argument(
        "-m", dest="module", action="store_true", help="run the script as a module"
    )
    options.add_argument("script", help="the training script")
    its = options.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    its.required = False  # by which an error would name it beside the script
    return options


def render(checked: Checked) -> Iterator[str]:
    """Yield the verdict for people."""
    scope = f"{checked.iterations} iterations by {checked.ranks} ranks on {checked.nodes} nodes"
    took = format_seconds(checked.duration_s)
    yield f"{TITLES[checked.verdict]}: {scope}, in {took}"
    compared, first = checked.shown, None if checked.shown is None else checked.shown.first
    if checked.verdict == "bit-identical" and compared is not None:
        states, values = compared.states, compared.twice.with_values
        yield from _wrapped(
            f"{len(checked.recovered)} kills survived; {states.states} states of up to "
            f"{states.pieces} pieces and {values} losses or gradient norms compared, none differs"
        )
    elif first is not None:
        yield from _rows(_of_difference(checked, first))
    if checked.verdict == "not repeatable":
        yield from _wrapped(SEEDS)
    if checked.verdict == "differs without a failure":
        yield from _wrapped(_by_protection(checked))
    if checked.failure:
        yield from _rows({"failed": checked.failure, **_of_kill(checked.after)})
    if checked.verdict != "not repeatable":
        if checked.plain is None and checked.plain_failed:
            text = f"not compared with plain torchrun: {checked.plain_failed}"
            yield from ("", *_wrapped(text, ""))
        elif checked.plain is not None and checked.plain.is_same:
            yield from _wrapped("without a failure, it computes what it does under plain torchrun")
    for one in checked.recovered:
        yield from _wrapped(f"{one.kill}: {_back(one)}")
    for kill in checked.missed:
        yield from _wrapped(f"{kill}: not done, as the script did not come there again")
    for text in _remarks(checked):
        yield from ("", *_wrapped(f"beware: {text}", ""))


def _by_protection(checked: Checked) -> str:
    if not checked.plain_failed:
        return BY_PROTECTION
    return (
        "the run in a lab is not the one under plain torchrun. A second one under plain torchrun "
        f"failed ({checked.plain_failed}), so it is not known whether the script is repeatable; "
        "seed its random generators, give it more time with --limit, and check again"
    )


def _remarks(checked: Checked) -> Iterator[str]:
    silent = None if checked.shown is None else checked.shown.twice.silent
    if not checked.failure and silent is not None:
        yield f"the {silent} differs, without effect on any of these numbers so far"
    for name in checked.unsteady:
        yield f"{name} is another one in each run, also in undisturbed ones: it was not compared"
    yield from checked.remarks
    yield from checked.hints


def _of_difference(checked: Checked, first: FirstDifference | StateDifference) -> dict[str, str]:
    names = ("plain torchrun", "again") if not checked.is_repeatable else ("undisturbed", "killed")
    if checked.verdict == "differs without a failure":
        names = ("plain torchrun", "in a lab")
    if isinstance(first, FirstDifference):
        rows = {
            "differs first": DIFFERENCES.get(first.what, first.what),
            "where": f"iteration {first.iteration}, rank {first.rank}",
            names[0]: first.undisturbed,
            names[1]: first.disturbed,
        }
    else:
        where = "at the script's end" if first.is_end else f"after iteration {first.version}"
        rows = {"differs first": "state", "where": f"{where}, rank {first.rank}"}
    state = None if checked.shown is None else checked.shown.states.first
    if state is not None and checked.shown is not None:
        values, pieces = checked.shown.values, state.pieces
        named = [f"{one} (by {values[one]:.3g})" if one in values else one for one in pieces]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        rows["1 piece" if len(named) == 1 else f"{len(named)} pieces"] = (
            ", ".join(named[:NAMED]) + more
        )
    return {**rows, **_of_kill(checked.after)}


def _of_kill(one: Recovered | None) -> dict[str, str]:
    return {} if one is None else {"after": f"{one.kill}: {_back(one)}"}


def _back(one: Recovered) -> str:
    if one.duration_s is None:
        return "no iteration was done after it"
    return f"back in {format_seconds(one.duration_s)} from version {one.version}"


def _rows(rows: Mapping[str, str]) -> Iterator[str]:
    for name, value in rows.items():
        lines = textwrap.wrap(value, WIDTH - 18) or [""]
        yield f"  {name:<16}{lines[0]}"
        yield from (f"  {'':<16}{line}" for line in lines[1:])


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
