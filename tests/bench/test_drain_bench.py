"""What the bench of drains tells of its runs."""

from types import SimpleNamespace

from gemini_lab_bench.benches.drain import differing


def test_losses_are_compared_bit_by_bit_where_both_runs_have_one():
    drained = SimpleNamespace(losses={(1, 0): 0.5, (1, 1): 0.25, (2, 0): 0.1 + 0.2, (3, 0): 0.1})
    undisturbed = SimpleNamespace(losses={(1, 0): 0.5, (1, 1): 0.25, (2, 0): 0.3})
    row = differing(drained, undisturbed)
    assert row.values == (1.0,)
    assert row.settings == {"compared": 3}
