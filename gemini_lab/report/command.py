"""`gemini-lab report`: what a run did, for people, for programs, and for Perfetto."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gemini_lab.errors import ConfigError
from gemini_lab.events import read_events
from gemini_lab.pages import save_log
from gemini_lab.report.text import ink_for, render
from gemini_lab.report.trace import chrome_trace
from gemini_lab.report.values import RunReport

LOG = "events.jsonl"


def find_run(run: str, *, below: Path = Path("gemini-runs")) -> Path:
    """The folder of a run.

    Args:
        run: A run's folder, its name below `below`, or `"latest"` for the newest one there.
        below: Where runs keep their logs.

    Raises:
        ConfigError: No log is there.
    """
    if run == "latest":
        logs = sorted(below.glob(f"*/{LOG}"), key=lambda log: log.stat().st_mtime)
        if not logs:
            raise ConfigError(f"no run is in {below.absolute()}; name a run's folder")
        return logs[-1].parent
    for folder in (Path(run), below / run):
        if (folder / LOG).is_file():
            return folder
    raise ConfigError(
        f"{run!r} is no run: there is no {LOG} in {Path(run).absolute()} or below {below}; "
        "name a run's folder, or 'latest'"
    )


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab report`; the exit code is 1 where a comparison finds a difference."""
    parser = argparse.ArgumentParser(prog="gemini-lab report", description=__doc__)
    parser.add_argument("run", nargs="?", default="latest", help="a run's folder, or 'latest'")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--chrome-trace", type=Path, metavar="FILE", help="write a trace, too")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with all views, too"
    )
    parser.add_argument("--compare", metavar="RUN", help="are its losses the same, bit by bit?")
    options = parser.parse_args(arguments)
    folder = find_run(options.run)
    report = RunReport.load(folder)
    if options.chrome_trace is not None:
        trace = chrome_trace(read_events(folder / LOG))
        options.chrome_trace.write_text(json.dumps(trace), encoding="utf-8")
    if options.html is not None:
        save_log(folder / LOG, options.html)
    if options.json:
        text = json.dumps(report.to_json(), indent=2)
    else:
        text = render(report, ink=ink_for(sys.stdout.encoding))
        text += f"\n\nlog: {folder / LOG}"
    print(text)  # noqa: T201
    if options.compare is None:
        return 0
    comparison = report.losses_match(RunReport.load(find_run(options.compare)))
    print(f"losses beside {options.compare}: {comparison}", file=sys.stderr)  # noqa: T201
    return 0 if comparison else 1
