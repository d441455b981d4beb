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
    """The newest version that was whole in memory, from a moment on.

    Attributes:
        at_s: That moment, on the log's clock.
        version: The version; 0 where none was.
        epoch: In which it was made.
        rewinds: How often training had gone back in that epoch by then.
    """

    at_s: float
    version: int = 0
    epoch: int = 0
    rewinds: int = 0

    @property
    def line(self) -> tuple[int, int, int]:
        """The order of versions: one of a later history is newer."""
        return self.epoch, self.rewinds, self.version


NOTHING: Final = Seen(at_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """All that is known of a run that is over.

    Attributes:
        entries: Its log, in order of arrival.
        undisturbed: The losses of the same job, never disturbed.
        iterations: Of the job.
        is_cut_short: Whether the run's owner was killed: it ends with its owner.
        was_told_to_end: Whether it was told to end soon: it saves a version and says so.
        let_go_s: When a person let go of what was waited for.
        hang: Where it stood still for too long, and what it said then; empty if nowhere.
        exit_status: Of the command that ran it.
        bad_lines: Lines of the log that were no events.
        left: What was still there some time after its end.
        gaps_s: When an observer saw no whole version in memory, though no node was gone that was
            there when one was whole.
        looks: How often it saw one.
        memory: What it saw to be the newest whole version, at each moment at which that changed.
        tier: The versions that were whole in the tier, at each moment at which that changed.
        readable: Those there at the end of which every bit is right; `None` where nobody looked.
        spoilt: Those of which the campaign itself turned a bit, or cut a file.
        said: What somebody at a shell was told, or had to see, that nobody should.
        edits: From when to when the script was another one.
    """

    entries: Sequence[Entry]
    undisturbed: Losses
    iterations: int
    is_cut_short: bool = False
    was_told_to_end: bool = False
    let_go_s: Sequence[float] = ()
    hang: str = ""
    exit_status: int = 0
    bad_lines: int = 0
    left: Sequence[str] = ()
    gaps_s: Sequence[float] = ()
    looks: int = 0
    memory: Sequence[Seen] = ()
    tier: Sequence[tuple[float, frozenset[int]]] = ()
    readable: frozenset[int] | None = None
    spoilt: frozenset[int] = frozenset()
    said: Sequence[str] = ()
    edits: Sequence[tuple[float, float]] = ()

    @property
    def has_finished(self) -> bool:
        """Whether the log says that the job was done."""
        return any(isinstance(entry.event, events.RunFinished) for entry in self.entries)
