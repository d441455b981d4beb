"""What an earlier run of the same command left in its folder, for a run that goes on from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.job import Job
from gemini_lab.log.events import RunStarted
from gemini_lab.log.file import LOG_FILE
from gemini_lab.log.follow import LogFeed
from gemini_lab.log.hiding import hidden_arguments
from gemini_lab.storage import persistent_tier

TIER: Final = "persistent"
"""The folder in a run's own that is its persistent tier, where it was given no other."""
HEAD: Final = 32  # entries of a log, among which its job is told


def earlier_tier(folder: Path, job: Job) -> Path | None:
    """The persistent tier of the newest run of `job` below `folder` that has a version there.

    One that has none any more that counts is taken, too: the run that goes on asks what to do.
    """
    runs = [log.parent for log in folder.glob(f"*/{LOG_FILE}") if (log.parent / TIER).is_dir()]
    for run in sorted(runs, key=lambda run: (run / LOG_FILE).stat().st_mtime, reverse=True):
        if any(_is_of(told, job) for told in _told(run)) and _has_begun(str(run / TIER)):
            return run / TIER
    return None


def _has_begun(url: str) -> bool:
    """Whether a persistent tier has a version, or had one that training went back behind.

    One that cannot be read has: an earlier run's must not be taken for the newest.
    """
    try:
        there = persistent_tier(url).survey()
    except GeminiError:
        return True
    return bool(there.stored or there.unclear or there.disowned)


def _told(run: Path) -> Iterator[RunStarted]:
    """What the log says of the run's job; nothing if it cannot be read."""
    try:
        head = LogFeed(run).poll(limit=HEAD)
    except (GeminiError, OSError):
        return
    yield from (entry.event for entry in head if isinstance(entry.event, RunStarted))


def _is_of(told: RunStarted, job: Job) -> bool:
    shown = tuple(hidden_arguments(job.args))
    return (told.script, told.module, told.args) == (job.script, job.module, shown)
