"""`gemini-lab chaos`: break real runs at random, and see that everything holds."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.display import columns, complain, tell
from gemini_lab.errors import ConfigError
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.limits import seconds, whole
from gemini_lab_bench.chaos.campaign import CampaignPlan, campaign, load_now
from gemini_lab_bench.chaos.faults import Schedule
from gemini_lab_bench.chaos.kinds import KINDS, USUAL, named
from gemini_lab_bench.chaos.means import check, lacking, possible
from gemini_lab_bench.chaos.result import CampaignResult, summed
from gemini_lab_bench.world import seeds

WHAT_HOLDS: Final = """\
Break real runs on this machine at random moments, and check what must hold:
each loss is that of a run without faults, bit by bit; one root agent a term,
and one history; nothing saved is lost without a user's request; training
resumes within the limit; the log has all of it; no process is left. Exits with
1 if a check fails, and saves the smallest schedule that shows it, for --replay."""


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab chaos`."""
    listed = columns({name: kind.text for name, kind in KINDS.items()})
    options = argparse.ArgumentParser(
        prog="gemini-lab chaos",
        description=f"{WHAT_HOLDS}\n\nkinds of faults:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = partial(options.add_argument, metavar="N")
    number(
        "--faults", type=whole("faults"), default=20, help="faults in all (default: %(default)s)"
    )
    number(
        "--seed",
        type=whole("seed"),
        default=0,
        help="seed of everything random (default: %(default)s)",
    )
    options.add_argument(
        "--kinds",
        help="kinds of faults, separated by commas, or patterns such as 'tier_*' (default: all but "
        "those that need a job of their own): "
        + ", ".join(name for name in KINDS if name not in USUAL),
    )
    options.add_argument(
        "--by-time",
        action="store_true",
        help="draw quick faults more often than slow ones (default: all equally often)",
    )
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
        "--faults-a-run",
        type=whole("faults"),
        default=12,
        help="faults per run (default: %(default)s)",
    )
    options.add_argument(
        "--minutes",
        type=seconds,
        metavar="N",
        help="minutes after which faults stop and the run ends (default: never)",
    )
    number(
        "--load",
        type=whole("load"),
        nargs="?",
        const=4,
        default=0,
        help="keep the machine busy with so many processes (4 without N; default: 0)",
    )
    options.add_argument(
        "--limit",
        type=seconds,
        default=120.0,
        metavar="S",
        help="seconds without progress that count as a hang (default: %(default)s)",
    )
    options.add_argument(
        "--keep-processes",
        action="store_true",
        help="keep the processes of ranks that are not lost",
    )
    number(
        "--tries",
        type=whole("tries"),
        default=6,
        help="runs to make a failing schedule smaller, at most (default: %(default)s)",
    )
    options.add_argument(
        "--simulated",
        type=seeds.parsed,
        metavar="A:B",
        help="break simulated labs of real agents instead, with these seeds, on a virtual clock; "
        "A: goes on until it is interrupted; of one seed alone, print all that happens",
    )
    options.add_argument(
        "--coverage",
        action="store_true",
        help="with --simulated: print which faults struck in which phase, and what no seed reached",
    )
    options.add_argument("--replay", type=Path, metavar="FILE", help="one schedule again")
    options.add_argument(
        "--folder",
        type=Path,
        default=Path("gemini-chaos"),
        help="for the runs, and for diagrams of seeds that break (default: %(default)s)",
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="also write every fault here")
    options.add_argument(
        "--table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="start nothing: one table of what campaigns wrote by --json",
    )
    return options


def plan_of(options: argparse.Namespace) -> CampaignPlan:
    """Return the campaign that the options mean.

    Raises:
        ConfigError: A number is impossible, or a kind is not known.
    """
    for name in ("faults", "nodes", "faults_a_run", "limit", "minutes"):
        if (value := getattr(options, name)) is not None and not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above zero (got {value})")
    kinds = named(options.kinds.split(",")) if options.kinds else USUAL
    if options.kinds:
        check(kinds, without=lacking())
    else:
        kinds, _ = possible(kinds, without=lacking())
    return CampaignPlan(
        faults=options.faults,
        seed=options.seed,
        kinds=kinds,
        nodes=options.nodes,
        standbys=options.standbys,
        a_run=min(options.faults, options.faults_a_run),
        limit_s=options.limit,
        load=options.load,
        tries=options.tries,
        folder=options.folder.absolute(),
        by_time=options.by_time,
        keeps=options.keep_processes,
        most_s=None if options.minutes is None else options.minutes * 60,
    )


def command(arguments: list[str]) -> int:
    """Run a campaign, or one schedule again."""
    options = parser().parse_args(arguments)
    if options.table:
        tell(summed([CampaignResult.read(path) for path in options.table]))
        return Exit.FINISHED
    if options.simulated is not None:
        chosen = options.simulated
        if chosen[1:] or options.coverage:
            holds = seeds.explore(chosen, folder=options.folder, covers=options.coverage)
        else:
            holds = seeds.show(chosen[0], folder=options.folder)
        return Exit.FINISHED if holds else Exit.FAILED
    if not sys.platform.startswith("linux"):
        raise ConfigError("a campaign finds processes through /proc, so it needs Linux")
    plan = plan_of(options)
    replayed = None
    if options.replay is not None:
        replayed = [Schedule.load(options.replay)]
        check([fault.kind for fault in replayed[0].faults], without=lacking())
    elif not options.kinds:
        for reason in possible(USUAL, without=lacking())[1]:
            tell(f"left out: {reason}")
    result = campaign(plan, schedules=replayed, record=options.json)
    tell(f"\n{result}")
    tell(
        f"on {result.machine['system']}, {result.machine['cores']} cores, load "
        f"{result.machine['load_1_min']:.1f} before and {load_now():.1f} after"
        + (f", {plan.load} processes that kept it busy" if plan.load else "")
        + f"; seed {plan.seed}"
    )
    if options.json:
        result.write(options.json)
        tell(f"written to {options.json}")
    if result.failures:
        return Exit.FAILED
    if result.was_interrupted:
        complain("gemini-lab chaos: interrupted: of what was left nothing is known")
        return Exit.INTERRUPTED
    return Exit.FINISHED
