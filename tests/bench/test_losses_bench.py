"""Claims about what the bench of lost nodes says of its losses."""

import itertools

import pytest

from gemini_lab_bench.benches.losses import NODES, Loss, rows_of

PAIRS = [*itertools.combinations(range(NODES), 2)]


def losses(fatal):
    return [Loss(positions=p, tier="persistent" if p in fatal else "memory") for p in PAIRS]


@pytest.mark.parametrize(
    ("strategy", "fatal", "exact"),
    [
        ("group", {(0, 1), (2, 3)}, 2 / 3),
        ("ring", {(0, 1), (1, 2), (2, 3), (0, 3)}, 1 / 3),
    ],
)
def test_all_pairs_together_have_the_exact_chance(strategy, fatal, exact):
    share, chance, otherwise = (row.values[0] for row in rows_of(strategy, losses(fatal)))
    assert (share, chance, otherwise) == (pytest.approx(exact), pytest.approx(exact), 0)


def test_a_pair_that_comes_out_otherwise_is_named():
    *_, row = rows_of("group", losses({(0, 1), (1, 2)}))
    assert row.values == (2.0,)
    assert row.settings["which"] == [(1, 2), (2, 3)]
