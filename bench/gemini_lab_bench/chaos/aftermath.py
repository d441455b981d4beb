"""All that is known of a run that is over, and what was seen of it meanwhile: plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry

Losses = Mapping[tuple[int, int], float]
"""By (iteration, rank)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest version that was whole in memory, from a moment on."""

    at_s: float  # that moment, on the log's clock
    version: int = 0  # the version; 0 where none was
    epoch: int = 0  # in which it was made
    rewinds: int = 0  # how often training had gone back in that epoch by then

    @property
    def line(self) -> tuple[int, int, int]:
        """The order of versions: one of a later history is newer."""
        return self.epoch, self.rewinds, self.version


NOTHING: Final = Seen(at_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """All that is known of a run that is over."""

    entries: Sequence[Entry]  # its log, in order of arrival
    undisturbed: Losses  # the losses of the same job, never disturbed
    iterations: int  # of the job
    is_cut_short: bool = False  # whether the run's owner was killed: it ends with its owner
    was_told_to_end: bool = False  # whether it was told to end soon: it saves a version and says so
    let_go_s: Sequence[float] = ()  # when a person let go of what was waited for
    hang: str = ""  # where it stood still for too long, and what it said then; empty if nowhere
    exit_status: int = 0  # of the command that ran it
    bad_lines: int = 0  # lines of the log that were no events
    left: Sequence[str] = ()  # what was still there some time after its end
    # When an observer saw no whole version in memory, though no node was gone that was there when
    # one was whole.
    gaps_s: Sequence[float] = ()
    looks: int = 0  # how often it saw one
    # What it saw to be the newest whole version, at each moment at which that changed.
    memory: Sequence[Seen] = ()
    # The versions that were whole in the tier, at each moment at which that changed.
    tier: Sequence[tuple[float, frozenset[int]]] = ()
    # Those there at the end of which every bit is right; `None` where nobody looked.
    readable: frozenset[int] | None = None
    # Those of which the campaign itself turned a bit, or cut a file.
    spoilt: frozenset[int] = frozenset()
    said: Sequence[str] = ()  # what somebody at a shell was told, or had to see, that nobody should
    edits: Sequence[tuple[float, float]] = ()  # from when to when the script was another one

    @property
    def has_finished(self) -> bool:
        return any(isinstance(entry.event, events.RunFinished) for entry in self.entries)
