"""What the bench of replicas made of gradients tells of its runs."""

import pytest

from gemini_lab_bench.benches.differential import cost_row, rows
from gemini_lab_bench.benches.timed_runs import TimedRun

FAST, SLOW = 40e6, 10e6


def runs_of(link: float, room: float, *, copies: float, gradients: float) -> dict[str, TimedRun]:
    """A point with so much idle time, as a multiple of what a copy takes."""
    idle_s, size_bytes = room * 0.1, int(0.1 * link)
    return {
        "none": TimedRun(iteration_s=1.0),
        "copies": TimedRun(iteration_s=copies, idle_s=idle_s, sent_bytes=size_bytes),
        "gradients": TimedRun(iteration_s=gradients, sent_bytes=size_bytes // 3),
    }


def test_it_tells_the_share_of_bytes_and_where_each_kind_is_felt():
    turn = {
        FAST: runs_of(FAST, 4.0, copies=1.0, gradients=1.0),
        SLOW: runs_of(SLOW, 1.0, copies=1.04, gradients=1.01),
    }
    found = {(row.name, row.settings.get("link_bytes_per_s")): row for row in rows([turn])}
    assert found["bytes of a version, gradients / copies", None].values == pytest.approx(
        (1 / 3, 1 / 3)
    )
    assert found["copies / none", SLOW].values == pytest.approx((1.04,))
    assert found["gradients / none", SLOW].values == pytest.approx((1.01,))
    felt = found["copies are felt below: idle / checkpoint of copies", None]
    assert felt.values == pytest.approx((2.5,))
    never = found["gradients are felt below: idle / checkpoint of copies", None]
    assert (never.values, never.why_not) == ((), "not felt at any point")


def test_a_run_whose_versions_left_in_full_is_none_with_gradients():
    full = TimedRun(iteration_s=1.5, sent_bytes=int(0.1 * SLOW))
    turn = {
        FAST: runs_of(FAST, 4.0, copies=1.0, gradients=1.0),
        SLOW: {**runs_of(SLOW, 1.0, copies=1.5, gradients=1.5), "gradients": full},
    }
    found = {(row.name, row.settings.get("link_bytes_per_s")): row for row in rows([turn])}
    left_out = found["gradients / none", SLOW]
    assert (left_out.values, left_out.why_not) == ((), "a counted version left in full")
    assert found["gradients / none", FAST].values
    assert found["copies / none", SLOW].values == pytest.approx((1.5,))
    assert not found["gradients are felt below: idle / checkpoint of copies", None].values


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_what_making_a_version_costs_is_measured(kind):
    row = cost_row(kind, 2, numel=1000)
    assert len(row.values) == 2
    assert all(value > 0 for value in row.values)
    assert row.settings["optimizer"] == kind
