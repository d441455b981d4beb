"""Whatever window is asked of a pyramid, it gives what the bars themselves give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.report.bars import LAYER, Bars, Kind
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.pyramid import BRIEFEST_S, NO_ROWS, Pyramid

LANES = 3
bars = st.tuples(
    st.sampled_from(list(Kind)),
    st.floats(0, 1000),
    st.one_of(st.floats(0, 3), st.floats(0, 400), st.just(0.0)),
    st.integers(0, LANES - 1),
    st.integers(0, 1),
)
batches = st.lists(st.lists(bars, min_size=1, max_size=30), min_size=1, max_size=6)
moments = st.floats(-50, 1500)


def rows_of(told):
    """Bars as rows, in the order in which they are told."""
    kept = Bars()
    for kind, start_s, duration_s, lane, rank in told:
        kept.add(kind, start_s, start_s + duration_s, lane=lane, rank=rank)
    return kept.between(0, kept.end)


def split(told):
    """One array for each batch: told as one run."""
    rows = rows_of([bar for batch in told for bar in batch])
    return np.split(rows, np.cumsum([len(batch) for batch in told])[:-1])


def covered_by(rows, covered, row_of):
    """What the bars say of the same bins, one by one."""
    count = covered.seconds.shape[2]
    edges = covered.from_s + covered.width_s * np.arange(count + 1)
    seconds = np.zeros(covered.seconds.shape)
    layer = np.array(LAYER)[rows["kind"]]
    end_s = rows["start_s"] + rows["duration_s"]
    start_s = end_s - rows["new_s"]
    end_s = np.where(rows["duration_s"] == 0, start_s + BRIEFEST_S, end_s)
    parts = np.minimum(end_s[:, None], edges[1:]) - np.maximum(start_s[:, None], edges[:-1])
    is_there = layer >= 0
    place = row_of[rows["lane"][is_there]], layer[is_there]
    np.add.at(seconds, place, np.maximum(parts[is_there], 0))
    return seconds


@settings(max_examples=60)
@given(batches, st.lists(bars, max_size=5), moments, st.floats(1e-3, 1500), st.integers(1, 300))
def test_any_window_is_covered_as_by_the_bars_themselves(told, late, from_s, span_s, least_bins):
    """Also those that have not been added yet, and with little blocks, so that levels are many."""
    *parts, fresh = split([*told, late]) if late else [*split(told), NO_ROWS]
    made = Pyramid(FileBlocks(), full=16)
    for part in parts:
        made.append(part)
    row_of = np.array([0, 1, 0])
    covered = made.coverage(
        from_s, from_s + span_s, least_bins=least_bins, row_of=row_of, fresh=fresh
    )
    assert covered.from_s <= from_s + 1e-6
    assert covered.to_s >= from_s + span_s - 1e-6
    assert least_bins <= covered.seconds.shape[2] <= 4 * least_bins + 2
    everything = np.concatenate([*parts, fresh])
    expected = covered_by(everything, covered, row_of)
    assert covered.seconds == pytest.approx(expected, abs=1e-6)


@settings(max_examples=25)
@given(batches, moments, st.floats(0, 1500))
def test_any_window_holds_the_very_bars_that_touch_it(told, from_s, span_s):
    made = Pyramid(FileBlocks())
    parts = split(told)
    for part in parts:
        made.append(part)
    rows, numbers = made.rows(from_s, from_s + span_s)
    everything = np.concatenate(parts)
    stop_s = everything["start_s"] + everything["duration_s"]
    wanted = np.flatnonzero((everything["start_s"] <= from_s + span_s) & (stop_s >= from_s))
    assert numbers.tolist() == wanted.tolist()
    assert rows.tobytes() == everything[wanted].tobytes()
    assert made.count(from_s, from_s + span_s) >= len(wanted)


class Filling(FileBlocks):
    """Takes so many blocks."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def put(self, data):
        self.room -= 1
        if self.room < 0:
            raise OSError(28, "no space left on device")
        return super().put(data)


@settings(max_examples=60)
@given(batches, st.integers(0, 6), moments, st.floats(1e-3, 1500), st.integers(1, 300))
def test_without_room_any_window_is_covered_as_well_but_in_wider_bins(
    told, room, from_s, span_s, least_bins
):
    made = Pyramid(Filling(room), full=16)
    parts = split(told)
    for part in parts:
        made.append(part)
    row_of = np.array([0, 1, 0])
    covered = made.coverage(from_s, from_s + span_s, least_bins=least_bins, row_of=row_of)
    assert covered.from_s <= from_s + 1e-6
    assert covered.to_s >= from_s + span_s - 1e-6
    expected = covered_by(np.concatenate(parts), covered, row_of)
    assert covered.seconds == pytest.approx(expected, abs=1e-6)
    rows, _ = made.rows(from_s, from_s + span_s)
    assert made.count(from_s, from_s + span_s) >= len(rows)
