"""Probability that a placement keeps every shard if k nodes fail at once (paper, section 4).

Chances are exact fractions: `float(1 - chance)` has all its digits, however small it is.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gemini_lab.errors import ConfigError, shown
from gemini_lab.placement.planner import Placement, check_counts
from gemini_lab.units import check_number

ENUMERATION_LIMIT: Final = 2_000_000
"""The most sets of lost nodes that `enumerated_probability` enumerates."""


WITH_FORM: Final = ("group", "mixed", "ring")
"""Strategies whose chances can be written down; one made by hand has a name of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated chance with its 95 % (Wilson) interval."""

    value: float
    low: float
    high: float
    trials: int


def recovery_probability(placement: Placement, lost: int) -> Fraction:
    """Return the exact probability that all shards survive the loss of k uniformly chosen nodes.

    A group of m is lost with all its members; a ring of s with any m neighbours. Both are rings
    (s = m for a group), and a ring of s survives in s/(s-k) * W of its k-sets, where W counts
    the ways to put k losses into the s-k gaps between living nodes, fewer than m into each. Groups
    are independent but for k, so their counts multiply as polynomials do.

    Args:
        placement: Strategy group, mixed or ring.
        lost: k, the nodes lost at once.

    Raises:
        ConfigError: k is out of range, or the placement has no closed form: it is random, uneven
            or made by hand, or some shards have more copies.
    """
    _check(placement, lost)
    check_form(placement, instead="enumerated_probability (small clusters) or sampled_probability")
    replicas = placement.replicas
    sizes = Counter(len(group) for group in placement.groups)
    groups = sizes.pop(replicas, 0)
    alive = [_group_survivals(groups, replicas, k) for k in range(lost + 1)]
    for size in sizes.elements():
        ring = [ring_survivals(size, replicas, k) for k in range(min(lost, size) + 1)]
        alive = [
            sum(ring[j] * alive[k - j] for j in range(min(k + 1, len(ring))))
            for k in range(lost + 1)
        ]
    return Fraction(alive[lost], math.comb(placement.nodes, lost))


def _group_survivals(groups: int, replicas: int, lost: int) -> int:
    """Count sets of `lost` nodes that spare a member of each group, by inclusion-exclusion."""
    return sum(
        _sign(dead)
        * math.comb(groups, dead)
        * math.comb((groups - dead) * replicas, lost - dead * replicas)
        for dead in range(min(groups, lost // replicas) + 1)
    )


def ring_survivals(size: int, replicas: int, lost: int) -> int:
    """Count sets of `lost` nodes of a ring of `size` without `replicas` neighbours among them."""
    gaps = size - lost
    if gaps <= 0:
        return 0
    ways = sum(
        _sign(full) * math.comb(gaps, full) * math.comb(size - full * replicas - 1, gaps - 1)
        for full in range(lost // replicas + 1)
    )
    return size * ways // gaps


def _sign(count: int) -> int:
    return -1 if count % 2 else 1


def recovery_bound(placement: Placement, lost: int) -> Fraction:
    """Return a lower bound on `recovery_probability` that counts each fatal set separately.

    With m | N this is Corollary 1 (paper, Eq. 3): exact for k < 2m, below the truth from there on,
    where one loss can take two groups. For a ring it is the curve that the paper's Fig. 9 shows;
    there it is exact only for k <= m, since triples of neighbours hold two fatal pairs.
    """
    _check(placement, lost)
    if lost < placement.replicas:
        return Fraction(1)
    fatal = sum(
        math.comb(placement.nodes - len(kept), lost - len(kept))
        for kept in holder_sets(placement)
        if len(kept) <= lost
    )
    return max(Fraction(0), 1 - Fraction(fatal, math.comb(placement.nodes, lost)))


def check_form(placement: Placement, *, instead: str) -> None:
    """Refuse a placement whose chances have no closed form, naming what to use `instead`."""
    what = placement.strategy
    if any(len(kept) > placement.replicas for kept in placement.holders):
        what = f"{what} and more copies of some shards"
    elif what in WITH_FORM:
        return
    raise ConfigError(f"a placement with {what} has no closed form; use {instead}")


def holder_sets(placement: Placement) -> frozenset[frozenset[int]]:
    """Return the distinct sets of holders of a shard: losing all of one set is fatal."""
    return frozenset(map(frozenset, placement.holders))


def best_possible(nodes: int, replicas: int) -> Fraction:
    """Return the upper bound for k = m: 1 - ceil(N/m) / C(N, m) (paper, section 4, Theorem 1).

    Raises:
        ConfigError: m is not between 1 and N.
    """
    check_counts(nodes=nodes, replicas=replicas)
    return 1 - Fraction(-(-nodes // replicas), math.comb(nodes, replicas))


def theorem_gap(nodes: int, replicas: int) -> Fraction:
    """Return how far below `best_possible` Algorithm 1 can be for k = m, by Theorem 1.

    It is 0 where m divides N, else (2m-3)/C(N, m). The gap reaches that value, always so for m = 2:
    the paper's appendix prints "<", which has to be "<=".

    Raises:
        ConfigError: m is not between 1 and N.
    """
    check_counts(nodes=nodes, replicas=replicas)
    if nodes % replicas == 0:
        return Fraction(0)
    return Fraction(2 * replicas - 3, math.comb(nodes, replicas))


def enumerated_probability(placement: Placement, lost: int) -> Fraction:
    """Return `recovery_probability` by trying every set of k nodes; for any placement.

    Raises:
        ConfigError: There are more than `ENUMERATION_LIMIT` sets.
    """
    _check(placement, lost)
    sets = math.comb(placement.nodes, lost)
    if sets > ENUMERATION_LIMIT:
        raise ConfigError(
            f"{lost} of {placement.nodes} nodes can be lost in {shown(sets)} ways, more than "
            f"{ENUMERATION_LIMIT:,}; use recovery_probability or sampled_probability"
        )
    alive = sum(
        placement.survives(gone) for gone in itertools.combinations(range(placement.nodes), lost)
    )
    return Fraction(alive, sets)


def sampled_probability(
    placement: Placement, lost: int, *, trials: int = 10_000, seed: int = 0
) -> Estimate:
    """Estimate `recovery_probability` from random losses (Monte Carlo); for any placement."""
    _check(placement, lost)
    draw = random.Random(seed)
    return estimate(
        lambda: placement.survives(draw.sample(range(placement.nodes), lost)), trials=trials
    )


def estimate(happens: Callable[[], bool], *, trials: int) -> Estimate:
    """Estimate how often `happens()` is true from `trials` independent tries."""
    check_number("trials", trials, least=1, is_whole=True)
    share = sum(happens() for _ in range(trials)) / trials
    z = 1.96
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    spread *= z / (1 + z * z / trials)
    low, high = max(0.0, middle - spread), min(1.0, middle + spread)
    return Estimate(value=share, low=min(low, share), high=max(high, share), trials=trials)


def _check(placement: Placement, lost: int) -> None:
    check_number("lost", lost, is_whole=True)
    if not 0 <= lost <= placement.nodes:
        raise ConfigError(
            f"between 0 and {placement.nodes} nodes can be lost (asked for {shown(lost)})"
        )
