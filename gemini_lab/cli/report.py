"""`gemini-lab report`: what a run did, for people, for programs, and for Perfetto."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gemini_lab.lab.pages import save_log
from gemini_lab.log.file import find_log, read_log
from gemini_lab.log.follow import name_of
from gemini_lab.report.build import load_report, report_of
from gemini_lab.report.predicted import lines, predict
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.report.tables.spent import spent
from gemini_lab.report.text import ink_for, render, render_spent
from gemini_lab.report.trace import chrome_trace


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab report`; the exit code is 1 where a comparison finds a difference."""
    parser = argparse.ArgumentParser(prog="gemini-lab report", description=__doc__)
    parser.add_argument(
        "run", nargs="?", default="latest", help="a run's folder, log or name, or 'latest'"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--chrome-trace", type=Path, metavar="FILE", help="write a trace, too")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with all views, too"
    )
    parser.add_argument(
        "--window",
        type=_window,
        metavar="FROM:TO",
        help="seconds since the run's start: that page has each bar of the timeline there; by "
        "default the newest ones",
    )
    parser.add_argument("--compare", metavar="RUN", help="are its losses the same, bit by bit?")
    parser.add_argument(
        "--predict",
        nargs="?",
        const="",
        metavar="RUN",
        help="simulate its failures with the times of RUN (or its own), and put both side by side",
    )
    options = parser.parse_args(arguments)
    log = find_log(options.run)
    beside = find_log(options.compare) if options.compare is not None else None
    learned = find_log(options.predict) if options.predict else None
    run = RunReducer(name=name_of(log), keep=FOR_REPORT)
    run.extend(read_log(log))
    report = report_of(run)
    if options.chrome_trace is not None:
        options.chrome_trace.write_text(json.dumps(chrome_trace(read_log(log))), encoding="utf-8")
    if options.html is not None:
        save_log(log, options.html, window=options.window)
    if options.json:
        text = json.dumps(report.to_json(), indent=2)
    else:
        ink = ink_for(sys.stdout.encoding)
        parts = [render(report, ink=ink), render_spent(spent(run), ink=ink)]
        text = "\n\n".join([*parts, f"log: {log}"])
    print(text)  # noqa: T201
    if options.predict is not None:
        known = RunReducer.load(learned, keep=FOR_REPORT) if learned is not None else None
        predicted = predict(run, learned=known)
        print("\n".join(["", "Simulated beside measured", *lines(predicted)]))  # noqa: T201
    if beside is None:
        return 0
    comparison = report.losses_match(load_report(beside))
    print(f"losses beside {options.compare}: {comparison}", file=sys.stderr)  # noqa: T201
    return 0 if comparison else 1


def _window(text: str) -> tuple[float, float]:
    """Two moments as `FROM:TO`."""
    try:
        from_s, to_s = map(float, text.split(":"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, such as 60:90") from error
    if not from_s < to_s:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return from_s, to_s
