"""The traffic timeline's feed: what a page shows, and what it asks for.

A live page and a saved one run the modules in `js/`, joined. A live one is fed by a `Pump`, which
sends what is new in packed columns and waits while the browser has not drawn what it was sent.

A viewer holds the newest bars. For another window it says `{"look": {...}}`, and gets the bars that
lie there. If those are too many to be seen one by one, it gets the covered share of each pixel
column of each row.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gemini_lab.report.bars import Rows, in_columns
from gemini_lab.report.pyramid import NO_ROWS, Covered, Pyramid
from gemini_lab.report.reducers.traffic_bars import MAX_NAMES as MOST_NAMES
from gemini_lab.report.reducers.traffic_bars import TrafficBars

MOST_BARS: Final = 1 << 17
"""More are not sent one by one."""
MOST_BINS: Final = 4096
MANY_LANES: Final = 256
"""With more, a bin costs so much that a quarter of them must do; who zooms in sees finer ones."""
LARGEST_S: Final = 1e15


class _QueryMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A look as a viewer's browser says it."""

    number: int
    from_s: float
    to_s: float
    bins: Annotated[int, msgspec.Meta(ge=1, le=MOST_BINS)]
    rows: list[Annotated[int, msgspec.Meta(ge=-1, le=MOST_NAMES)]]
    bars: bool


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """A window of the timeline that a viewer asks for.

    Attributes:
        number: By which the viewer knows the answer.
        from_s: When the window begins, on the log's clock.
        bins: How finely to look, at least.
        row_of: The row of each lane, -1 for one that is not shown.
        is_bars: Whether single bars are welcome.
    """

    number: int
    from_s: float
    to_s: float
    bins: int
    row_of: npt.NDArray[np.int64]
    is_bars: bool

    @classmethod
    def read(cls, said: object, *, lanes: int) -> Self | None:
        """Return what was asked; `None` if it makes no sense.

        Args:
            said: By a viewer, so it may be anything.
            lanes: How many there are; a viewer that has not heard of the newest names fewer.
        """
        try:
            asked = msgspec.convert(said, _QueryMessage)
        except msgspec.ValidationError:
            return None
        if not -LARGEST_S < asked.from_s < asked.to_s < LARGEST_S:
            return None
        row_of = np.full(lanes, -1, np.int64)
        row_of[: len(asked.rows)] = np.clip(asked.rows[:lanes], -1, lanes - 1)
        return cls(asked.number, asked.from_s, asked.to_s, asked.bins, row_of, asked.bars)


def seen(traffic: TrafficBars, look: TimelineQuery) -> tuple[dict[str, Any], bytes] | None:
    """Return plain values and packed bars, or coverage; `None` without a pyramid."""
    pyramid, bars = traffic.pyramid, traffic.bars
    if pyramid is None:
        return None
    fresh = bars.between(pyramid.end, bars.end)
    meta = {"number": look.number, "upto": bars.end}
    if look.is_bars and pyramid.count(look.from_s, look.to_s) <= 4 * MOST_BARS:
        rows, numbers = pyramid.rows(look.from_s, look.to_s, fresh=fresh)
        if len(rows) <= MOST_BARS:
            window = {"from_s": look.from_s, "to_s": look.to_s, "bars": len(rows)}
            return meta | window, numbers.astype("<f8").tobytes() + in_columns(rows)
    covered = coverage_of(pyramid, look, fresh)
    rows_count, _, count = covered.seconds.shape
    window = {"from_s": covered.from_s, "to_s": covered.to_s, "rows": rows_count, "bins": count}
    shown = look.row_of[look.row_of >= 0]
    lanes = np.bincount(shown, minlength=rows_count)[:rows_count]
    return meta | window, shades(covered, lanes)


def coverage_of(pyramid: Pyramid, look: TimelineQuery, fresh: Rows = NO_ROWS) -> Covered:
    """Return how long the rows of a look were covered."""
    rows = int(look.row_of.max(initial=0) + 1)
    covered = pyramid.coverage(
        look.from_s,
        look.to_s,
        least_bins=look.bins if len(look.row_of) <= MANY_LANES else -(-look.bins // 4),
        row_of=np.where(look.row_of < 0, rows, look.row_of),  # one row more for all the others
        fresh=fresh,
    )
    return Covered(from_s=covered.from_s, width_s=covered.width_s, seconds=covered.seconds[:rows])


def shades(covered: Covered, lanes: npt.NDArray[np.int64]) -> bytes:
    """Return how much of each bin was covered, a byte each: row by row, layer by layer, bin by bin.

    Args:
        covered: What is to be sent.
        lanes: How many lanes each row stands for.

    Returns:
        255 where all lanes are covered, and never 0 where anything is.
    """
    share = covered.seconds / (covered.width_s * np.maximum(lanes, 1)[:, None, None])
    is_any = share > 1e-9
    return np.where(is_any, np.clip(np.rint(share * 255), 1, 255), 0).astype(np.uint8).tobytes()


ENTRY: Final = Path(__file__).parent / "js" / "hosts.js"
MAX_UNDRAWN: Final = 2
"""Messages that may be under way; while there are this many, nothing is sent."""

MAX_ROWS: Final = 100_000
"""Bars in one message: 4 MB, well below what a websocket lets through."""

COSTS_S: Final = 2.0
"""Between two tellings of what training felt on each node."""

Send = Callable[[dict[str, Any], bytes], None]


class Pump:
    """Brings one viewer up to date with a `TrafficBars`, message by message.

    A viewer says `{"ready": true}` at each start, and `{"drawn": seq}`
    after each message that it has drawn. Nothing is sent before the first. What it wants to see
    beyond the newest bars it asks for.

    Args:
        send: Sends a message: plain values and packed columns.
        clock: Seconds, for how far the viewer is behind.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._seq = itertools.count(1)
        self._is_ready = False
        self._is_fresh = True
        self._traffic: TrafficBars | None = None
        self._row = self._lanes = self._names = self._marks = 0
        self._changes = -1
        self._costs_due_s = 0.0
        self._moment_s: float | None = None
        self._sent_moment_s: float | None = None
        self._was_known_s: float | None = None
        self._undrawn: dict[int, float] = {}
        self.behind_s = 0.0
        """From when what was drawn last was known until it was drawn."""

    def hear(self, message: object) -> None:
        """Take in a message of the viewer, and send on if there is more."""
        if not isinstance(message, Mapping):
            return
        if message.get("ready"):
            self._is_ready = self._is_fresh = True
            self._undrawn.clear()
            self._was_known_s = None  # what a viewer is behind counts from its start
        drawn = message.get("drawn")
        if isinstance(drawn, int) and drawn in self._undrawn:
            self.behind_s = self._clock() - self._undrawn.pop(drawn)
        if "look" in message:
            self._show(message["look"])
        self._flow()

    def _show(self, said: object) -> None:
        """Answer a query, unless it makes no sense or comes before there is a run."""
        traffic = self._traffic
        if traffic is None or not self._is_ready or self._is_fresh:
            return
        look = TimelineQuery.read(said, lanes=len(traffic.lanes))
        answer = None if look is None else seen(traffic, look)
        if answer is not None:
            self._send({"look": answer[0]}, answer[1])

    def update(self, traffic: TrafficBars, *, moment_s: float | None = None) -> None:
        """Show what is new in `traffic`; call it about 10 times a second while a run goes on.

        It never waits for the browser.

        Args:
            traffic: The run's; another one than before replaces it.
            moment_s: The moment on the log's clock that the page shows; `None` for the newest.
        """
        self._moment_s = moment_s
        if traffic is not self._traffic:
            self._traffic, self._is_fresh = traffic, True
        if self._was_known_s is None and self._has_news():
            self._was_known_s = self._clock()
        self._flow()

    def _has_news(self) -> bool:
        traffic = self._traffic
        return traffic is not None and (
            self._is_fresh
            or self._row < traffic.bars.end
            or self._changes != traffic.changes
            or self._moment_s != self._sent_moment_s
        )

    def _flow(self) -> None:
        while self._is_ready and len(self._undrawn) < MAX_UNDRAWN and self._has_news():
            assert self._traffic is not None
            seq = next(self._seq)
            self._undrawn[seq] = self._was_known_s or self._clock()
            meta, columns = self._take(self._traffic)
            self._was_known_s = self._clock() if self._has_news() else None
            self._send({"seq": seq, **meta}, columns)

    def _take(self, traffic: TrafficBars) -> tuple[dict[str, Any], bytes]:
        """Return what the viewer lacks, or as much of it as fits a message."""
        if self._is_fresh:
            self._row = self._lanes = self._names = 0
            self._marks = -1
        first = max(self._row, traffic.bars.first)
        end = min(traffic.bars.end, first + MAX_ROWS)
        meta = {
            **state(traffic),
            "reset": self._is_fresh,
            "first": first,
            "count": end - first,
            "more": end < traffic.bars.end,
            "lanes": traffic.lanes[self._lanes :],
            "names": traffic.names[self._names :],
            "behind_s": self.behind_s,
            "moment_s": self._moment_s,
        }
        if self._is_fresh or self._lanes < len(traffic.lanes):
            meta["racks"] = traffic.racks
        if self._is_fresh or self._clock() >= self._costs_due_s:
            self._costs_due_s = self._clock() + COSTS_S
            meta["costs_s"] = [round(cost_s, 3) for cost_s in traffic.costs_s]
        if self._is_fresh or self._changes != traffic.changes:
            meta["marks"] = [asdict(mark) for mark in traffic.marks]
            meta["comings"] = traffic.nodes.comings
        self._row, self._lanes, self._names = end, len(traffic.lanes), len(traffic.names)
        self._changes, self._is_fresh = traffic.changes, False
        self._sent_moment_s = self._moment_s
        return meta, traffic.bars.packed(first, end)


def state(traffic: TrafficBars) -> dict[str, Any]:
    """Return what every message says of a run, beside its bars and names."""
    return {
        "limit": traffic.bars.limit,
        "total": traffic.bars.end,
        "whole_s": [None if isinf(traffic.bars.gone_s) else traffic.bars.gone_s, None],
        "is_deep": traffic.pyramid is not None,
        "origin_s": traffic.origin_s,
        "newest_s": traffic.newest_s,
        "is_over": traffic.is_over,
        "is_simulated": traffic.is_simulated,
        "basis": traffic.basis,
        "hidden_bytes": traffic.hidden_bytes,
        "exposed_bytes": traffic.exposed_bytes,
        "open_bytes": traffic.open_bytes,
        "replicas": traffic.replicas,
    }
