"""`gemini-lab metrics`: a run's metrics, served for Prometheus or sent to where they are drawn."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.lab.access import Finder
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.lab.metrics import LOOPBACK, serve_metrics, text_of
from gemini_lab.lab.sinks import HOW, sender
from gemini_lab.lab.watched import watched
from gemini_lab.log.file import RUNS_FOLDER

PORT: Final = 9408
LOOK_S: Final = 1.0


def command(arguments: Sequence[str]) -> int:
    """Serve until interrupted: what a run ended with can be read on. Or send until it is over."""
    options = argparse.ArgumentParser(prog="gemini-lab metrics", description=__doc__)
    options.add_argument(
        "run", nargs="?", default="latest", help="a run's folder, its name, or 'latest'"
    )
    options.add_argument("--port", type=int, default=PORT, help="(%(default)s); 0 takes any")
    options.add_argument(
        "--address", default=LOOPBACK, help="on which address to listen (%(default)s)"
    )
    options.add_argument("--once", action="store_true", help="print them, and serve nothing")
    options.add_argument(
        "--to",
        action="append",
        metavar="WHERE",
        help=f"serve nothing, but send them until the run is over, to {HOW}; may be repeated",
    )
    options.add_argument("--store", help="the etcd that knows the run: host:port[,host:port...]")
    options.add_argument("--token-file", type=Path, help="file with the lab's token")
    options.add_argument(
        "--folder", type=Path, default=RUNS_FOLDER, help="where runs keep their logs (%(default)s)"
    )
    asked = options.parse_args(arguments)
    finder = Finder.of(
        asked.run, below=asked.folder, store=asked.store, token_file=asked.token_file
    )
    told_no_more = f"{finder.name}'s metrics are no longer told; that changes nothing for the run"
    with interrupt_says(lambda: told_no_more), watched(finder) as run:
        if asked.once:
            print(text_of(run), end="")  # noqa: T201
            return Exit.FINISHED
        if asked.to:
            with sender(run, finder.name, asked.to) as sending:
                sending.wait()
            return Exit.FAILED if sending.failing else Exit.FINISHED
        with serve_metrics(run, port=asked.port, address=asked.address) as port:
            where = f"http://{asked.address}:{port}/metrics"
            print(f"metrics of {finder.name} are at {where}; Ctrl-C ends this", flush=True)  # noqa: T201
            while True:
                time.sleep(LOOK_S)
