"""`gemini-lab inject RUN FAILURE [PLACE]`: break something in a live run, from a shell."""

import argparse
from collections.abc import Sequence
from typing import Final, get_args

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import RUN_HELP, add_finding, finder_of
from gemini_lab.display import tell
from gemini_lab.injector.failures import FAILURES, Failure, Where, read_failure
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.limits import whole
from gemini_lab.report.columns import columns

DESCRIPTION: Final = """\
Break something in a live run, now. PLACE says where: a node's name such as
node-2, rank-2 (the node that runs rank 2) or root (the root agent's node):

  gemini-lab inject latest node_loss node-2"""

REQUESTS: Final = {
    "stop": "The run ends.",
    "give_up_progress": "The run waits no more for versions that may come back.",
}
"""What can be asked of a run beside failures."""


def parser() -> argparse.ArgumentParser:
    """The options of `gemini-lab inject`."""
    kinds = {name: meaning(kind) for name, kind in FAILURES.items()}
    options = argparse.ArgumentParser(
        prog="gemini-lab inject",
        description=f"{DESCRIPTION}\n\nfailures:\n{columns(kinds)}\n\nwhat breaks nothing:\n"
        f"{columns(REQUESTS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("run", help=RUN_HELP)
    options.add_argument(
        "failure", metavar="failure", choices=[*FAILURES, *REQUESTS], help="one of those above"
    )
    options.add_argument(
        "place",
        nargs="*",
        help="several for nodes_loss, one or two for link_cut, the rack's name for rack_loss, and "
        "none for root_loss and store_full",
    )
    options.add_argument("--shard", type=whole("shard"), help="for bit_flip: which shard's replica")
    options.add_argument("--where", choices=get_args(Where), help="for wrong_sums: in what")
    options.add_argument("--once", action="store_true", help="for wrong_sums: not each time")
    add_finding(options)
    return options


def meaning(kind: type[Failure]) -> str:
    """What a kind of failure is, in a line for people, with others as they are named here."""
    line = (kind.__doc__ or "").partition("\n")[0].replace("`", "").replace('"', "")
    for name, other in FAILURES.items():
        line = line.replace(other.__name__, name)
    return line


def command(arguments: Sequence[str]) -> int:
    """Ask the owner of a live run to make a failure happen."""
    options = parser().parse_intermixed_args(arguments)  # places may follow an option
    finder = finder_of(options)
    run = AttachedRun(finder.name, finder.way, finder.folder)
    if options.failure == "stop":
        said = run.stop()
    elif options.failure == "give_up_progress":
        said = run.give_up_progress()
    else:
        said = run.inject(
            read_failure(
                options.failure,
                options.place,
                options.shard,
                where=options.where,
                once=options.once,
            )
        )
    tell(said)
    return Exit.FINISHED
