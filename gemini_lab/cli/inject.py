"""`gemini-lab inject RUN FAILURE [PLACE]`: break something in a live run, from a shell."""

import argparse
from typing import Final, get_args

from gemini_lab.injector.failures import FAILURES, Where, read_failure
from gemini_lab.lab.control import ask
from gemini_lab.log.file import find_run
from gemini_lab.recovery.messages import GiveUpProgress, InjectFailure, StopRun

REQUESTS: Final[dict[str, StopRun | GiveUpProgress]] = {
    "stop": StopRun(),
    "give_up_progress": GiveUpProgress(),
}
"""What can be asked of a run beside failures."""


def command(arguments: list[str]) -> int:
    """Ask the lab of a live run to make a failure happen."""
    parser = argparse.ArgumentParser(prog="gemini-lab inject", description=command.__doc__)
    parser.add_argument("run", help="the run's folder or name, or 'latest'")
    parser.add_argument(
        "failure",
        choices=[*FAILURES, *REQUESTS],
        help="what breaks; stop ends the run; give_up_progress has it wait no more for versions "
        "that may come back",
    )
    parser.add_argument("place", nargs="*", help="node-2, rank-2 (the node of that rank) or root")
    parser.add_argument("--shard", type=int, help="for bit_flip: which shard's replica")
    parser.add_argument("--where", choices=get_args(Where), help="for wrong_sums: in what")
    parser.add_argument("--once", action="store_true", help="for wrong_sums: not each time")
    options = parser.parse_args(arguments)
    folder = find_run(options.run)
    if options.failure in REQUESTS:
        print(ask(folder, REQUESTS[options.failure]))  # noqa: T201
        return 0
    failure = read_failure(
        options.failure,
        options.place,
        options.shard,
        where=options.where,
        once=options.once,
    )
    print(ask(folder, InjectFailure(failure=failure.to_json())))  # noqa: T201
    return 0
