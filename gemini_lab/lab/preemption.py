"""Ending a run that was told to end soon: its newest version goes to the persistent tier first."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from gemini_lab.lab.bars import Followed
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import PersistFailed, PersistFinished, PersistStarted
from gemini_lab.report.reducers.course import Course

LOOK_S: Final = 0.1
NO_TIER: Final = "the run has no persistent tier; name one with --persistent-url"
NOTHING_YET: Final = "no iteration was done since the start, so there was nothing to save"


class Savable(Followed, Protocol):
    """A run that can be told to save its next version: a `Run`, or an `AttachedRun`."""

    @property
    def course(self) -> Course:
        """Its facts."""

    def save_version(self) -> object:
        """Have the next version go to the persistent tier; returns at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What came of a notice.

    Attributes:
        version: The newest one that reached the persistent tier meanwhile; `None` for none.
        url: Where it is.
        reason: Why there is none, for people.
    """

    version: int | None = None
    url: str = ""
    reason: str = ""


def save_within(run: Savable, notice_s: float) -> Saved:
    """Have `run` save a version that it makes from now on; waits for that up to `notice_s`."""
    settings = run.course.settings
    if not settings.get("persistent_url"):
        is_known = run.iteration and "persistent_url" in settings  # since the script's `protect`
        return Saved(reason=NO_TIER if is_known else NOTHING_YET)
    heard: SimpleQueue[Entry] = SimpleQueue()
    forget = run.watch(heard.put)
    try:
        run.save_version()
        return _wait(run, heard.get, time.monotonic() + notice_s, notice_s)
    finally:
        forget()


def _wait(run: Savable, get: Callable[..., Entry], give_up_s: float, notice_s: float) -> Saved:
    """The newest version that was saved: one that was begun meanwhile, or what there is at last."""
    begun: set[int] = set()
    newest = Saved(reason=f"none was whole there within the notice of {notice_s:.0f} s")
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                break
            continue
        match event:
            case PersistStarted(version=version):
                begun.add(version)
            case PersistFinished(version=version, url=url):
                newest = Saved(version=version, url=url)
                if version in begun:
                    break
            case PersistFailed(reason=reason) if newest.version is None:
                newest = Saved(reason=reason)
    return newest
