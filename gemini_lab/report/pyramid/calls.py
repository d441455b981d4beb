"""Training collectives as rows, those of many iterations at once: most bars are theirs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np

from gemini_lab.log.events import Collectives
from gemini_lab.report.pyramid.groups import Floats, Ints, running
from gemini_lab.report.pyramid.rows import LAYER_OF, Reached, Rows


@dataclass(frozen=True, slots=True)
class Calls:
    """The collectives of an iteration, whose rows are there but do not say yet what each was.

    Attributes:
        row: Number of the first one's.
        lane: Of all of them.
        names: The name of each of the event's kinds, as a number.
        event: What was told.
    """

    row: int
    lane: int
    names: Sequence[int]
    event: Collectives


def write(rows: Rows, calls: Sequence[Calls], *, first: int, reached_s: Reached) -> None:
    """Write what each collective was into its row.

    Args:
        rows: Some that follow one another.
        calls: Whose rows are among them, in order.
        first: Number of the first of `rows`.
        reached_s: Up to when each lane, rank and layer is covered; it is brought up to date.
    """
    events = [one.event for one in calls]
    counts = np.array([len(event.order) for event in events])
    of = np.repeat(np.arange(len(calls)), counts)  # the call's event
    before = np.cumsum(counts) - counts  # calls of earlier events
    start_us = _since_began(_joined((e.gaps_us for e in events), len(of)), before, of)
    end_us = start_us + np.maximum(_joined((e.durations_us for e in events), len(of)), 0)
    began_s = np.array([event.began_s for event in events])[of]
    start_s, end_s = began_s + start_us / 1e6, began_s + end_us / 1e6
    kinds = [kind for event in events for kind in event.kinds]
    kinds_before = np.cumsum([0, *(len(event.kinds) for event in events)])[of]
    kind = _joined((e.order for e in events), len(of)) + kinds_before
    place = np.arange(len(of)) + (np.array([one.row for one in calls]) - first - before)[of]
    rows["start_s"][place] = start_s
    rows["duration_s"][place] = end_s - start_s
    rows["new_s"][place] = newly_covered(rows[place], end_s, reached_s)
    rows["size_bytes"][place] = np.array([float(size) for _, size in kinds])[kind]
    rows["name"][place] = np.array([name for one in calls for name in one.names])[kind]


def _joined(columns: Iterable[Iterable[int]], count: int) -> Ints:
    return np.fromiter(chain.from_iterable(columns), np.int64, count)


def _since_began(gaps_us: Ints, before: Ints, of: Ints) -> Ints:
    """When each call began, since its iteration did."""
    start_us = np.cumsum(gaps_us)
    return np.asarray(start_us - np.append(0, start_us)[before][of])


def newly_covered(rows: Rows, end_s: Floats, reached_s: Reached) -> Floats:
    """How long each bar covers what no earlier one of its lane, rank and layer did.

    Args:
        rows: In the order in which they were told.
        end_s: When each is over; shape as `rows`.
        reached_s: Up to when each lane, rank and layer is covered; it is brought up to date.
    """
    layer = LAYER_OF[rows["kind"]]
    place = (rows["lane"].astype(np.int64) << 32 | rows["rank"].astype(np.uint32)) << 3 | layer + 1
    places, of = np.unique(place, return_inverse=True)
    order = np.argsort(of, kind="stable")
    of, until_s = of[order], running(of[order], end_s[order])
    keys = [(each >> 35, _signed(each >> 3), (each & 7) - 1) for each in places.tolist()]
    reached = np.array([reached_s.get(key, -inf) for key in keys])
    before_s = np.append(-inf, until_s)[:-1]
    before_s = np.where(np.diff(of, prepend=-1) > 0, -inf, before_s)
    before_s = np.maximum(before_s, reached[of])
    new_s = np.empty(len(rows))
    new_s[order] = np.maximum(end_s[order] - np.maximum(rows["start_s"][order], before_s), 0.0)
    last_s = np.maximum(until_s[np.flatnonzero(np.diff(of, append=len(places)))], reached)
    reached_s.update(zip(keys, last_s.tolist(), strict=True))
    return new_s


def _signed(rank: int) -> int:
    """A rank from its lowest 32 bits."""
    return (rank & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)
