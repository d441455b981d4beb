"""Training collectives as rows, those of many iterations at once: most bars are theirs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np
import numpy.typing as npt

from gemini_lab.log.events import Collectives
from gemini_lab.report.pyramid.rows import LAYER, Floats, Kind, Reached, Rows

Ints = npt.NDArray[np.int64]


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
    rows["new_s"][place] = _new_s(calls, of, start_s, end_s, reached_s)
    rows["size_bytes"][place] = np.array([float(size) for _, size in kinds])[kind]
    rows["name"][place] = np.array([name for one in calls for name in one.names])[kind]


def _joined(columns: Iterable[Iterable[int]], count: int) -> Ints:
    return np.fromiter(chain.from_iterable(columns), np.int64, count)


def _since_began(gaps_us: Ints, before: Ints, of: Ints) -> Ints:
    """When each call began, since its iteration did."""
    start_us = np.cumsum(gaps_us)
    return np.asarray(start_us - np.append(0, start_us)[before][of])


def _new_s(
    calls: Sequence[Calls], of: Ints, start_s: Floats, end_s: Floats, reached_s: Reached
) -> Floats:
    """How long each call covers what no earlier one of its lane and rank did."""
    places: dict[tuple[int, int], int] = {}
    place = [places.setdefault((one.lane, one.event.rank), len(places)) for one in calls]
    place_of = np.array(place)[of]
    by_place = np.argsort(place_of, kind="stable")
    ends = np.cumsum(np.bincount(place_of, minlength=len(places)))
    new_s = np.empty(len(of))
    for (lane, rank), part in zip(places, np.split(by_place, ends[:-1]), strict=True):
        at = lane, rank, LAYER[Kind.COLLECTIVE]
        until_s = np.maximum.accumulate(np.append(reached_s.get(at, -inf), end_s[part]))
        new_s[part] = np.maximum(end_s[part] - np.maximum(start_s[part], until_s[:-1]), 0.0)
        reached_s[at] = float(until_s[-1])
    return new_s
