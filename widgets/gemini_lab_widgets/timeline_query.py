"""A window of a run's timeline, as a viewer asks for it and is sent it.

A viewer holds the newest bars. For another window it says `{"look": {...}}`, and gets the bars that
lie there, or, where those are too many to be seen one by one, how much of each pixel column of each
row was covered.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gemini_lab.report.bars import Rows, in_columns
from gemini_lab.report.pyramid import NO_ROWS, Covered, Pyramid
from gemini_lab.report.reducers.traffic import MAX_NAMES as MOST_NAMES
from gemini_lab.report.reducers.traffic import TrafficBars

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
        to_s: When it ends.
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
    """The answer to a look: plain values, and packed bars or coverage; `None` without a pyramid."""
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
    """How long the rows of a look were covered."""
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
    """How much of each bin was covered, a byte each: row by row, layer by layer, bin by bin.

    Args:
        covered: What is to be sent.
        lanes: How many lanes each row stands for.

    Returns:
        255 where all lanes are covered, and never 0 where anything is.
    """
    share = covered.seconds / (covered.width_s * np.maximum(lanes, 1)[:, None, None])
    is_any = share > 1e-9
    return np.where(is_any, np.clip(np.rint(share * 255), 1, 255), 0).astype(np.uint8).tobytes()
