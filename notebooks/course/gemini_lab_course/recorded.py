"""Logs of two real runs of one job, for machines on which no nodes can start; `gemini-lab demo`.

Two nodes with three standbys, on one machine of two busy cores, trained a tiny GPT for 34 and for
27 iterations, and lost workers and nodes by a scenario each. Chunks, collectives and remarks are
left out of the logs.
"""

import argparse
import gzip
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemini_lab.display import tell
from gemini_lab.lab.pages import save_log
from gemini_lab.log.file import LOG_FILE

FOLDER: Final = Path(__file__).with_name("runs")


def command(arguments: Sequence[str]) -> int:
    """Write the page of a recorded run, and open it in a browser: no node starts."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab demo", description="Open the page of a recorded run with four failures."
    )
    parser.add_argument(
        "--save",
        type=Path,
        default=Path("gemini-lab-demo.html"),
        metavar="FILE",
        help="the page (default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    tell("making the page of a run that lost two nodes and two workers ...")
    packed = FOLDER / "four_failures.jsonl.gz"
    with tempfile.TemporaryDirectory(prefix="gemini_lab-recorded-") as below:
        log = Path(below) / "four_failures" / LOG_FILE
        log.parent.mkdir()
        log.write_bytes(gzip.decompress(packed.read_bytes()))
        page = save_log(log, options.save)
    tell(f"it is {page.absolute()}, and needs no network and no server")
    if not options.no_browser and not webbrowser.open(page.absolute().as_uri()):
        tell("no browser was found here; open that file in one")
    return 0
