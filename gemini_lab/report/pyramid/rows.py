"""One row of the traffic timeline: what a bar is made of, and how rows travel."""

import struct
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a bar shows; the numbers are those in js/kinds.js."""

    ITERATION = 0  # one optimizer step of a rank; number: iteration, part: microseconds waited
    COLLECTIVE = 1  # a training collective; number: iteration
    WAIT = 2  # the step waited for a version to be whole; number: iteration
    TRANSFER = 3  # checkpoint chunks for a peer; number: version, part: idle span, -1 without
    VERSION = 4  # a version of which the log tells no transfers; number: version
    EXPOSED = 5  # the part of a transfer or version that training had to share its time with
    COMPLETE = 6  # a version is whole at a rank; number: version
    RESTORE = 7  # a shard on its way to a node that lost it; number: version


LAYER: Final = (0, 1, 2, 3, 3, 4, -1, 5)
"""Which of the `LAYERS` each kind covers; a version being whole is a moment and covers nothing."""
LAYER_OF: Final = np.array(LAYER, np.int64)
LAYERS: Final = 6

COLUMNS: Final = {
    "start_s": "d",
    "size_bytes": "d",
    "duration_s": "f",
    "new_s": "f",
    "number": "i",
    "part": "i",
    "rank": "i",
    "peer": "i",
    "lane": "H",
    "name": "H",
    "kind": "B",
}
"""Name and type of each column, widest first, so that in a packed block every column is aligned.

`new_s` is how long, up to its end, a bar covers what no earlier one of its rank and layer did.
"""

ROW: Final = np.dtype([(name, f"<{code}") for name, code in COLUMNS.items()])
ROW_BYTES: Final = ROW.itemsize
Rows = npt.NDArray[np.void]
"""Bars as an array of `ROW`."""
Floats = npt.NDArray[np.float64]
Reached = dict[tuple[int, int, int], float]
"""Up to when the bars of a lane, rank and layer have covered it."""

_PACK: Final = struct.Struct("<" + "".join(COLUMNS.values())).pack


def packed(*values: float) -> bytes:
    """A row of these values, in the order of `COLUMNS`.

    Raises:
        OverflowError: One does not fit its column.
    """
    try:
        return _PACK(*values)
    except (struct.error, OverflowError) as error:
        raise OverflowError(f"a bar does not fit its columns: {error}") from error


def in_columns(rows: Rows) -> bytes:
    """Rows as they travel, and are kept: column after column, little-endian."""
    return b"".join(rows[name].tobytes() for name in COLUMNS)


def from_columns(data: bytes) -> Rows:
    """The rows that `in_columns` made these bytes of."""
    rows, at = np.empty(len(data) // ROW_BYTES, ROW), 0
    for name, code in COLUMNS.items():
        rows[name] = np.frombuffer(data, f"<{code}", len(rows), at)
        at += rows[name].itemsize * len(rows)
    return rows
