"""Claims about the chance that memory suffices."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    best_possible,
    enumerated_probability,
    holder_sets,
    loss_probability,
    plan_placement,
    rack_recovery_probability,
    recovery_bound,
    recovery_probability,
    sampled_loss_probability,
    sampled_probability,
    theorem_gap,
    window_chance,
)

GROUP = plan_placement(nodes=16)
RING = plan_placement(nodes=16, strategy="ring")


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["auto", "ring"])
def test_the_closed_forms_equal_enumeration_for_every_k(strategy, replicas):
    for nodes in range(replicas, 13):
        placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy)
        for lost in range(nodes + 1):
            assert recovery_probability(placement, lost) == enumerated_probability(placement, lost)


@pytest.mark.parametrize(
    ("lost", "bound", "group", "union", "ring"),
    [
        (1, 1, 1, 1, 1),
        (2, 0.933333, 0.933333, 0.866667, 0.866667),
        (3, 0.800000, 0.800000, 0.600000, 0.628571),
        (4, 0.600000, 0.615385, 0.200000, 0.362637),
        (5, 0.333333, 0.410256, 0, 0.153846),
        (6, 0, 0.223776, 0, 0.041958),
    ],
)
def test_sixteen_nodes_have_the_known_chances(lost, bound, group, union, ring):
    """Sections 4 and 7.2: 93.3 % and 80.0 %; the paper's ring curve is the union bound."""
    assert float(recovery_bound(GROUP, lost)) == pytest.approx(bound, abs=1e-6)
    assert float(recovery_probability(GROUP, lost)) == pytest.approx(group, abs=1e-6)
    assert float(recovery_bound(RING, lost)) == pytest.approx(union, abs=1e-6)
    assert float(recovery_probability(RING, lost)) == pytest.approx(ring, abs=1e-6)


def test_two_of_sixteen_are_unrecoverable_in_6_7_percent():
    """Section 7.2."""
    assert float(1 - recovery_probability(GROUP, 2)) == pytest.approx(0.067, abs=5e-4)


def test_the_ring_is_25_percent_lower_by_its_bound_and_21_4_in_truth():
    """Section 7.2, N = 16, k = 3."""
    bound = 1 - recovery_bound(RING, 3) / recovery_probability(GROUP, 3)
    exact = 1 - recovery_probability(RING, 3) / recovery_probability(GROUP, 3)
    assert bound == Fraction(1, 4)
    assert float(exact) == pytest.approx(0.214, abs=5e-4)


def test_four_nodes_have_two_fatal_pairs_in_groups_and_four_in_a_ring():
    """Section 4, N = 4, k = 2."""
    assert len(holder_sets(plan_placement(nodes=4))) == 2
    assert len(holder_sets(plan_placement(nodes=4, strategy="ring"))) == 4


def test_recovery_from_two_losses_becomes_likelier_with_n():
    chances = [recovery_probability(plan_placement(nodes=n), 2) for n in range(4, 130, 2)]
    assert all(a < b for a, b in itertools.pairwise(chances))


@given(replicas=st.integers(2, 5), nodes=st.integers(2, 60))
def test_algorithm_1_is_within_the_gap_of_theorem_1(replicas, nodes):
    if nodes < replicas:
        return
    placement = plan_placement(nodes=nodes, replicas=replicas)
    missing = best_possible(nodes, replicas) - recovery_probability(placement, replicas)
    assert 0 <= missing <= theorem_gap(nodes, replicas)


def test_the_gap_is_reached_so_it_is_no_strict_bound():
    """Appendix A prints "<" where "<=" is true."""
    placement = plan_placement(nodes=5)
    assert best_possible(5, 2) - recovery_probability(placement, 2) == theorem_gap(5, 2)


@given(nodes=st.integers(2, 40), replicas=st.integers(1, 4), lost=st.integers(0, 40))
def test_the_bound_never_exceeds_the_chance_and_meets_it_below_2m(nodes, replicas, lost):
    if not max(replicas, lost) <= nodes:
        return
    placement = plan_placement(nodes=nodes - nodes % replicas, replicas=replicas)
    lost = min(lost, placement.nodes)
    bound, chance = recovery_bound(placement, lost), recovery_probability(placement, lost)
    assert bound <= chance
    if lost < 2 * replicas:
        assert bound == chance


def test_tiny_chances_of_loss_keep_their_digits_at_100_000_nodes():
    """Two of 10^5 nodes: g / C(N, 2) = 1 / (N - 1) for pairs; four copies lose far more rarely."""
    pairs = plan_placement(nodes=100_000)
    assert 1 - recovery_probability(pairs, 2) == Fraction(1, 99_999)
    fours = plan_placement(nodes=100_000, replicas=4)
    loss = float(1 - recovery_probability(fours, 4))
    assert loss == pytest.approx(25_000 / math.comb(100_000, 4), rel=1e-12)
    assert 0 < 1 - recovery_probability(pairs, 50) < 1


@pytest.mark.parametrize("strategy", ["auto", "ring", "random"])
def test_random_losses_agree_with_enumeration(strategy):
    placement = plan_placement(nodes=11, replicas=2, strategy=strategy, seed=3)
    found = sampled_probability(placement, 3, trials=20_000, seed=1)
    assert found.low <= enumerated_probability(placement, 3) <= found.high


def test_mixed_is_not_the_optimum_for_five_nodes():
    """Some placement has three fatal sets, the bound of Theorem 1; Algorithm 1 has four."""
    fewest = min(
        len({frozenset((i, other)) for i, other in enumerate(others)})
        for others in itertools.product(range(5), repeat=5)
        if all(other != i for i, other in enumerate(others))
    )
    assert fewest == 3
    assert len(holder_sets(plan_placement(nodes=5))) == 4


def test_more_copies_of_some_shards_are_not_passed_off_as_plain_groups():
    plain = plan_placement(nodes=4)
    more = replace(plain, holders=((0, 1, 2), (1, 0, 2), *plain.holders[2:]))
    for chance in (
        lambda: recovery_probability(more, 2),
        lambda: loss_probability(more, node_chance=0.1),
    ):
        with pytest.raises(ConfigError, match="group and more copies of some shards"):
            chance()
    assert enumerated_probability(more, 2) == Fraction(5, 6)


def test_what_has_no_form_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="sampled_probability"):
        recovery_probability(plan_placement(nodes=6, strategy="random"), 2)
    with pytest.raises(ConfigError, match="between 0 and 16"):
        recovery_probability(GROUP, 17)
    with pytest.raises(ConfigError, match="more than 2,000,000"):
        enumerated_probability(plan_placement(nodes=100), 20)


RACKS = [f"r{i // 4}" for i in range(16)]


def test_a_lost_rack_is_survived_only_where_copies_are_in_different_racks():
    assert rack_recovery_probability(GROUP, RACKS) == 0
    spread = plan_placement(nodes=16, racks=RACKS)
    assert rack_recovery_probability(spread, RACKS) == 1


@given(nodes=st.integers(2, 14), replicas=st.integers(1, 3), width=st.integers(1, 4))
def test_lost_racks_are_counted_as_a_search_counts_them(nodes, replicas, width):
    if replicas > nodes:
        return
    racks = [str(i // width) for i in range(nodes)]
    placement = plan_placement(nodes=nodes, replicas=replicas, racks=racks)
    names = sorted(set(racks))
    for lost in range(len(names) + 1):
        alive = [
            placement.survives([i for i in range(nodes) if racks[i] in gone])
            for gone in itertools.combinations(names, lost)
        ]
        chance = rack_recovery_probability(placement, racks, lost)
        assert chance == Fraction(sum(alive), len(alive))


@given(
    nodes=st.integers(1, 9),
    replicas=st.integers(1, 4),
    strategy=st.sampled_from(["auto", "ring"]),
    node_chance=st.floats(0, 1),
    rack_chance=st.floats(0, 1),
)
def test_the_loss_under_rates_equals_the_sum_over_all_states(
    nodes, replicas, strategy, node_chance, rack_chance
):
    if replicas > nodes:
        return
    racks = [str(i // 3) for i in range(nodes)]
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy)
    names = sorted(set(racks))
    expected = 0.0
    for state in itertools.product((False, True), repeat=nodes):
        for down in itertools.product((False, True), repeat=len(names)):
            gone = {rack for rack, is_down in zip(names, down, strict=True) if is_down}
            lost = [i for i in range(nodes) if state[i] or racks[i] in gone]
            if not placement.survives(lost):
                weight = math.prod(node_chance if s else 1 - node_chance for s in state)
                weight *= math.prod(rack_chance if d else 1 - rack_chance for d in down)
                expected += weight
    found = loss_probability(
        placement, node_chance=node_chance, racks=racks, rack_chance=rack_chance
    )
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_tiny_chance_of_loss_is_not_rounded_to_zero():
    placement = plan_placement(nodes=1000, replicas=3)
    found = loss_probability(placement, node_chance=1e-8)
    ring = 4 * 1e-24  # 332 groups, and the last four nodes are a ring of four fatal triples
    assert found == pytest.approx(332e-24 + ring, rel=1e-6)


def test_sampled_rack_losses_agree_with_the_exact_sum():
    placement = plan_placement(nodes=16, racks=RACKS)
    rates = {"node_chance": 0.1, "rack_chance": 0.05, "racks": RACKS}
    found = sampled_loss_probability(placement, trials=20_000, seed=4, **rates)
    assert found.low <= loss_probability(placement, **rates) <= found.high


def test_a_window_without_failures_has_chance_zero():
    assert window_chance(0, 100) == 0
    assert window_chance(1, 86400) == pytest.approx(1 - math.exp(-1))


@pytest.mark.parametrize("bound", [best_possible, theorem_gap])
@pytest.mark.parametrize(("nodes", "replicas"), [(4, 0), (0, 1), (2, 3), (4, -2)])
def test_bounds_of_no_placement_are_refused(bound, nodes, replicas):
    with pytest.raises(ConfigError, match=str(replicas)):
        bound(nodes, replicas)
