"""The `log` bench: what a long log costs whoever opens it, the first time, again, at one place."""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from gemini_lab.log.file import LOG_FILE
from gemini_lab.report.follower import LogFollower, opened, reopened
from gemini_lab.report.pyramid import Pyramid
from gemini_lab_bench.benches.long_run import NODES, write
from gemini_lab_bench.rows import Row

WINDOW_S: Final = 20.0
BINS: Final = 1_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the log's length."""
    parser.add_argument("--lines", type=int, default=200_000, help="of the log (200,000)")
    parser.add_argument("--calls", type=int, default=20, help="collectives of an iteration (20)")


def bench(repeats: int, *, lines: int, calls: int) -> list[Row]:
    """Return seconds of a processor for each step; the cache is empty before each first opening."""
    times: dict[str, list[float]] = {}
    kept: list[float] = []
    with tempfile.TemporaryDirectory(prefix="gemini-lab-log-") as made:
        log = Path(made) / "long" / LOG_FILE
        write(log, lines=lines, calls=calls)
        for repeat in range(repeats):
            cache = Path(made) / f"cache-{repeat}"
            bars = _measure(log, cache, times)
            files = (file for file in cache.glob("*/*") if file.is_file())
            kept.append(sum(file.stat().st_size for file in files))
        settings = {"lines": lines, "bars": bars, "bytes": log.stat().st_size}
    peak_bytes = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [
        *(Row(name, tuple(each), settings=settings) for name, each in times.items()),
        Row("kept on disk", tuple(kept), unit="bytes", settings=settings),
        Row("memory at most", (peak_bytes,), unit="bytes", settings=settings),
    ]


def _measure(log: Path, cache: Path, times: dict[str, list[float]]) -> int:
    def timed(name: str, what: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        found = what()
        times.setdefault(name, []).append(time.process_time() - began_s)
        return found

    timed("its first sight", lambda: reopened(log, folder=cache / "apart").read())
    first = timed("the first opening", lambda: opened(log, folder=cache))
    bars = int(first.run.traffic.bars.end)
    del first  # or the next reader would find its file in use
    again: LogFollower = timed("the next opening", lambda: opened(log, folder=cache))
    pyramid, run = again.run.traffic.pyramid, again.run
    assert pyramid is not None
    assert run.newest_s is not None
    start_s, end_s = run.course.started_at_s, run.newest_s
    middle_s = (start_s + end_s) / 2
    timed("every bar of 20 s", lambda: pyramid.rows(middle_s, middle_s + WINDOW_S))
    timed("the whole run in bins", lambda: _bins(pyramid, start_s, end_s))
    return bars


def _bins(pyramid: Pyramid, from_s: float, to_s: float) -> None:
    pyramid.coverage(from_s, to_s, least_bins=BINS, row_of=np.arange(NODES))
