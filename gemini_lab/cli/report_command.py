"""`gemini-lab report`: what a run did, for people, for programs, and for Perfetto."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.text import Text

from gemini_lab.cli.screen import console
from gemini_lab.display import complain, readable, tell
from gemini_lab.errors import shown
from gemini_lab.lab.pages import save_log
from gemini_lab.log.entry import Entry, EventError
from gemini_lab.log.file import FOLDER_HELP, LATEST, RUNS_FOLDER, find_log, name_of, read_log
from gemini_lab.report.build import report_of
from gemini_lab.report.predicted import lines, predict
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.report.tables.time_breakdown import spent
from gemini_lab.report.text import ASCII, BLOCKS, ink_for, render, render_spent
from gemini_lab.report.trace import chrome_trace
from gemini_lab.status_line import QUIET_S, StatusLine, busy
from gemini_lab.units import LONGEST_S


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab report`; the exit code is 1 where a comparison finds a difference."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.window is not None and options.html is None:
        parser.error("--window is of the page that --html FILE writes: name that, too")
    log = find_log(options.run, below=options.folder)
    beside = [find_log(one, below=options.folder) for one in options.compare]
    learned = None
    if options.predict:  # empty: with its own times
        learned = find_log(options.predict, below=options.folder)
    run = RunReducer(name=name_of(log), keep=FOR_REPORT)
    try:
        run.extend(_entries(log))
    except EventError as error:
        raise EventError(
            f"{error}; a report with such a gap could be wrong: take that line out of a copy and "
            "name the copy, or see the rest with `gemini-lab serve`"
        ) from error
    with busy("reading what to compare with"):
        others = [RunReducer.load(one, keep=FOR_REPORT) for one in beside]
    report = report_of(run, earlier=others)
    if options.chrome_trace is not None:
        options.chrome_trace.write_text(json.dumps(chrome_trace(read_log(log))), encoding="utf-8")
    if options.html is not None:
        with busy(f"drawing {options.html}"):
            save_log(log, options.html, window=options.window, beside=beside)
    if options.json:
        tell(json.dumps(report.to_json(), indent=2))
    else:
        ink = ink_for(sys.stdout.encoding, columns=shutil.get_terminal_size().columns)
        if not sys.stdout.isatty():
            ink = ink_for(sys.stdout.encoding)
        parts = [
            render(report, ink=ink),
            render_spent(spent(run), ink=ink),
            f"log: {readable(str(log))}",
        ]
        _print("\n\n".join(parts))
    if options.predict is not None:
        known = RunReducer.load(learned, keep=FOR_REPORT) if learned is not None else None
        predicted = predict(run, learned=known)
        tell("\n".join(["", "Simulated and measured", *lines(predicted)]))
    comparisons = [report.losses_match(report_of(one)) for one in others]
    for name, comparison in zip(options.compare, comparisons, strict=True):
        complain(f"losses compared with {name}: {comparison}")
    return 0 if all(comparisons) else 1


STYLES: Final = {"  !!": "bold red", "  !": "red", "  <<": "yellow", "    |": "dim"}
"""Of a report's lines, by how they begin; those of a heading end with its rule."""


def _print(text: str) -> None:
    """Print a report, in colours on a terminal."""
    if not sys.stdout.isatty():
        tell(text)
        return
    to = console(soft_wrap=True)
    for line in readable(text, has_lines=True).split("\n"):
        style = next((STYLES[mark] for mark in STYLES if line.startswith(mark)), "")
        to.print(
            Text(line, style="bold" if line.endswith((BLOCKS.rule, ASCII.rule * 2)) else style)
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemini-lab report",
        description="Report what a run did. Exits with 1 if a comparison finds a difference.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        help="a run's folder, its log, its name below --folder, or 'latest' (default: latest)",
    )
    parser.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--chrome-trace", type=Path, metavar="FILE", help="write a trace for Perfetto, too"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with all views, too"
    )
    parser.add_argument(
        "--window",
        type=_window,
        metavar="FROM:TO",
        help="with --html: show each bar of the timeline between these seconds of the run "
        "(default: the newest ones)",
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="RUN",
        help="compare its losses with those of RUN, bit by bit, in the page, too; repeat it for "
        "more runs",
    )
    parser.add_argument(
        "--predict",
        nargs="?",
        const="",
        metavar="RUN",
        help="simulate its failures with the times of RUN (default: its own), and compare",
    )
    return parser


def _entries(log: Path) -> Iterator[Entry]:
    """Yield a log's entries, and show the progress of reading a long one."""
    part_bytes, line = max(log.stat().st_size // 100, 1), StatusLine()
    done_bytes, until_s = 0, time.monotonic() + QUIET_S

    def show(read_bytes: int) -> None:
        nonlocal done_bytes
        before, done_bytes = done_bytes // part_bytes, done_bytes + read_bytes
        if done_bytes // part_bytes > before and time.monotonic() > until_s:
            line.show(f"reading {name_of(log)}: {done_bytes // part_bytes} %")

    try:
        yield from read_log(log, seen=show)
    finally:
        line.clear()


def _window(text: str) -> tuple[float, float]:
    """Return two moments in `FROM:TO`."""
    try:
        from_s, to_s = map(float, text.split(":"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not FROM:TO, such as 60:90") from error
    if not -LONGEST_S <= from_s < to_s <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{shown(text)} ends before it begins, or never")
    return from_s, to_s
