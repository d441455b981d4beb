"""A run as it was at any moment of it: its log, reduced up to there.

The reducer is deterministic, so a run at a moment is what the log comes to up to that moment. While
a log is read, a copy of the reducer is kept now and then, so that going to a moment costs the
entries since the copy before it, and not those since the start. What only grows, the columns of
losses and paces, is cut into pieces, and a copy shares the pieces that were there before it.
"""

import pickle
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LogFeed
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.traffic_bars import TrafficBars

STEPS: Final = 20
"""Of reading on, in one go."""
STEP: Final = 500
"""Entries that are read at once, and between two copies at first."""
MOST_COPIES: Final = 64
"""With more, every second one goes and they are made half as often."""
PIECE_BYTES: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class SavedState:
    """A reducer and what feeds it, at some place of a log."""

    count: int  # entries that it knows
    newest_s: float  # up to when it knows the run, on the log's clock
    state: bytes  # both, pickled, without the timeline and what follows
    pieces: Sequence[bytes]  # what only grows, shared with other copies


class Moments:
    """The moments of one run."""

    def __init__(self, feed: LogFeed, *, name: str = "") -> None:
        """Start before the first entry of a feed that has read nothing yet."""
        self.path = feed.path
        self._every = STEP
        self._known: dict[bytes, bytes] = {}
        # Kept so far, in order; the first of them knows nothing.
        self.copies = [self._taken(RunReducer(name=name), feed)]

    def note(self, run: RunReducer, feed: LogFeed) -> None:
        """Save the state of a reading, unless there is one from shortly before or after."""
        place = bisect_right(self.copies, run.count, key=lambda one: one.count)
        beside = self.copies[max(0, place - 1) : place + 1]
        if any(abs(run.count - one.count) < self._every for one in beside):
            return
        self.copies.insert(place, self._taken(run, feed))
        if len(self.copies) > MOST_COPIES:
            self.copies = self.copies[::2]
            self._every *= 2
            self._known = {piece: piece for one in self.copies for piece in one.pieces}

    def way(self, at_s: float, *, after: "MomentSearch | None" = None) -> "MomentSearch":
        """Return a way to the run as it was at a moment of the log's clock.

        It continues from where `after` has come to, if that is nearer.
        """
        newest = next((one for one in self.copies[::-1] if one.newest_s <= at_s), self.copies[0])
        if after is not None and after.run.count >= newest.count and at_s >= after.at_s:
            return MomentSearch(after.run, after.feed, at_s, note=self.note, ahead=after.ahead)
        run, feed = pickle.loads(newest.state, buffers=newest.pieces)  # noqa: S301 - our own
        feed.path = self.path
        return MomentSearch(run, feed, at_s, note=self.note)

    def _taken(self, run: RunReducer, feed: LogFeed) -> SavedState:
        file = BytesIO()
        taker = _Taker(file, self._known)
        taker.dump((run, feed))
        newest_s = float("-inf") if run.newest_s is None else run.newest_s
        return SavedState(run.count, newest_s, file.getvalue(), taker.pieces)


class MomentSearch:
    """The way to a moment, some entries at a time.

    A log that has not come to the moment yet is taken for over where it ends.

    Attributes:
        run: What the log comes to, as far as one has come.
    """

    def __init__(
        self,
        run: RunReducer,
        feed: LogFeed,
        at_s: float,
        *,
        note: Callable[[RunReducer, LogFeed], None],
        ahead: Sequence[Entry] = (),
    ) -> None:
        self.run, self.feed, self.at_s = run, feed, at_s
        self.ahead = ahead  # entries that were read and are later than the moment
        self._note = note

    def go(self) -> bool:
        """Read on; return whether the moment was reached."""
        for _ in range(STEPS):
            entries = self.ahead or self.feed.poll(limit=STEP)
            late = next((n for n, entry in enumerate(entries) if entry.at_s > self.at_s), None)
            self.run.extend(entries[:late])
            self.ahead = () if late is None else entries[late:]
            if self.ahead or not entries:
                return True
            self._note(self.run, self.feed)
        return False


class _Taker(pickle.Pickler):
    """Leaves the timeline out, which shows all moments, and cuts what only grows into pieces."""

    def __init__(self, file: BytesIO, known: dict[bytes, bytes]) -> None:
        # Pieces are left out of the pickle, and come back in the same order.
        super().__init__(file, protocol=5, buffer_callback=lambda _: False)
        self._known = known
        self.pieces: list[bytes] = []

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, array):
            data = value.tobytes()
            cuts = range(0, len(data), PIECE_BYTES)
            cut = [data[at : at + PIECE_BYTES] for at in cuts]
            shared = [self._known.setdefault(piece, piece) for piece in cut]
            self.pieces += shared
            return _array, (value.typecode, [pickle.PickleBuffer(one) for one in shared])
        if isinstance(value, TrafficBars):
            return _NoTraffic, ()
        if isinstance(value, FileBlocks):
            return FileBlocks, ()
        return NotImplemented


class _NoTraffic(TrafficBars):
    """The timeline of a run at a moment, which nobody draws."""

    def __init__(self) -> None:
        super().__init__(Nodes(), limit=0)

    def take(self, entry: Entry) -> None:
        """Leave an entry alone."""


def _array(typecode: str, pieces: Sequence[bytes]) -> "array[Any]":
    return array(typecode, b"".join(pieces))
