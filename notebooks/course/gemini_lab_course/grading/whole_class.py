"""Judge a whole class side by side, telling how far it is."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gemini_lab_course.grading.apart import (
    Paper,
    UnjudgedError,
    read_notebook,
    starts_nodes,
    verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandIn:
    """What one student handed in of a lab.

    Attributes:
        student: Whose it is.
        paper: It, as it is judged.
        is_judged: Whether a verdict is kept already.
    """

    student: str
    paper: Paper
    is_judged: bool


def hand_ins(course: Path, lab: str) -> Iterator[HandIn]:
    """All that was handed in of a lab and can be read."""
    released = course / "source" / lab / f"{lab}.ipynb"
    for path in sorted((course / "submitted").glob(f"*/{lab}/{lab}.ipynb")):
        try:
            paper = Paper.of(released, read_notebook(path))
        except (OSError, ValueError):
            continue  # nbgrader says so, and so do the reasons
        is_judged = paper.kept.exists()
        yield HandIn(student=path.parents[1].name, paper=paper, is_judged=is_judged)


def usual_jobs(released: Path) -> int:
    """How many hand-ins to judge at a time: one a core, and only one if they start nodes."""
    if starts_nodes(released):
        return 1
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def judge_all(papers: Sequence[HandIn], *, jobs: int, told: TextIO) -> None:
    """Judge what has no verdict yet, `jobs` at a time, and say each one as it comes.

    Raises:
        KeyboardInterrupt: On Ctrl-C; what was judged is kept.
    """
    new = {each.paper.key: each for each in papers if not each.is_judged}  # equal ones once
    begun_s = time.monotonic()
    print(_first(len(papers), len(new), jobs), file=told, flush=True)
    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(verdict, each.paper): each for each in new.values()}
        for count, done in enumerate(as_completed(running), 1):
            said = _said(done)
            print(
                f"  {count} of {len(new)}: {running[done].student}: {said}", file=told, flush=True
            )
    except KeyboardInterrupt:
        print("interrupted: waiting for those under way", file=told, flush=True)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if new:
        print(f"judged after {time.monotonic() - begun_s:.0f} s", file=told, flush=True)


def _first(all_of_them: int, new: int, jobs: int) -> str:
    known = all_of_them - new
    before = f", {known} of them judged before or equal to another" if known else ""
    return f"{all_of_them} hand-ins{before}; {new} to judge, {jobs} at a time"


def _said(done: Future[dict[str, object]]) -> str:
    try:
        found = done.result()
    except UnjudgedError as error:
        return str(error)
    judged = found["judged"]
    assert isinstance(judged, list)
    right = sum(each["is_right"] for each in judged)
    return f"{right} of {len(judged)} right ({found['computed_s']:.1f} s of processor time)"
