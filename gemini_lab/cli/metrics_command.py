"""`gemini-lab metrics`: a run's metrics, served for Prometheus or sent to where they are drawn."""

import time
from collections.abc import Sequence
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.follow_commands import finder_of, parser_of
from gemini_lab.display import interrupt_says, tell
from gemini_lab.lab.attached import watched
from gemini_lab.lab.metric_sinks import HOW, LOOPBACK, sender, serve_metrics, text_of
from gemini_lab.limits import whole

PORT: Final = 9408
LOOK_S: Final = 1.0
DESCRIPTION: Final = """Serve a run's metrics for Prometheus until Ctrl-C, also after the run's end.
With --to, send them until the run ends."""


def command(arguments: Sequence[str]) -> int:
    """Serve until interrupted: what a run ended with can be read on. Or send until it is over."""
    options = parser_of("metrics", DESCRIPTION)
    options.add_argument(
        "--port",
        type=whole("port"),
        default=PORT,
        help="port to serve them at (default: %(default)s); 0 takes a free one",
    )
    options.add_argument(
        "--address", default=LOOPBACK, help="address to listen on (default: %(default)s)"
    )
    options.add_argument("--once", action="store_true", help="print them once, and serve nothing")
    options.add_argument(
        "--to",
        action="append",
        metavar="WHERE",
        help=f"send them to {HOW}, and serve nothing; may be repeated",
    )
    asked = options.parse_args(arguments)
    finder = finder_of(asked)
    told_no_more = f"{finder.name}'s metrics are no longer told; that changes nothing for the run"
    with interrupt_says(lambda: told_no_more), watched(finder) as run:
        if asked.once:
            tell(text_of(run).rstrip("\n"))
            return Exit.FINISHED
        if asked.to:
            with sender(run, finder.name, asked.to) as sending:
                sending.wait()
            return Exit.FAILED if sending.failing else Exit.FINISHED
        with serve_metrics(run, port=asked.port, address=asked.address) as port:
            where = f"http://{asked.address}:{port}/metrics"
            tell(f"metrics of {finder.name} are at {where}; Ctrl-C ends this")
            while True:
                time.sleep(LOOK_S)
