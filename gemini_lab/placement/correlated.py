"""Correlated losses: a rack, a switch or a power line takes several nodes at once."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.placement.planner import Placement
from gemini_lab.placement.probability import (
    ENUMERATION_LIMIT,
    Estimate,
    check_form,
    estimate,
    holder_sets,
)

RACK_LIMIT: Final = 12
"""The most racks whose 2^R states `loss_probability` enumerates."""


def rack_recovery_probability(
    placement: Placement, racks: Sequence[str], lost_racks: int = 1
) -> Fraction:
    """Return the exact probability that all shards survive the loss of uniformly chosen racks.

    A shard dies with the set of racks that its holders sit in. Where no such set is smaller than
    the number of lost racks, the distinct sets are counted; else all choices are tried.

    Args:
        placement: Any.
        racks: Failure domain of each position.
        lost_racks: Racks lost at once.

    Raises:
        ConfigError: A number is out of range, or the choices are too many to try.
    """
    names = _names(placement, racks)
    if not 0 <= lost_racks <= len(names):
        raise ConfigError(f"between 0 and {len(names)} racks can be lost (asked for {lost_racks})")
    fatal = {frozenset(racks[node] for node in kept) for kept in holder_sets(placement)}
    fatal = {domains for domains in fatal if len(domains) <= lost_racks}
    ways = math.comb(len(names), lost_racks)
    if all(len(domains) == lost_racks for domains in fatal):
        return 1 - Fraction(len(fatal), ways)
    if ways > ENUMERATION_LIMIT:
        raise ConfigError(
            f"{lost_racks} of {len(names)} racks can be lost in {ways:,} ways, more than "
            f"{ENUMERATION_LIMIT:,}; ask for fewer racks or use sampled_loss_probability"
        )
    alive = sum(
        not any(domains.issubset(gone) for domains in fatal)
        for gone in map(frozenset, itertools.combinations(names, lost_racks))
    )
    return Fraction(alive, ways)


def window_chance(failures_per_day: float, window_s: float) -> float:
    """Return the probability of at least one failure in a window of a Poisson process."""
    if failures_per_day < 0 or window_s < 0:
        raise ConfigError(
            f"rates and windows start at 0 (got {failures_per_day} a day, {window_s} s)"
        )
    return -math.expm1(-failures_per_day * window_s / 86400)


def loss_probability(
    placement: Placement, *, node_chance: float, racks: Sequence[str] = (), rack_chance: float = 0.0
) -> float:
    """Return the probability that a shard loses all copies if nodes and racks fail independently.

    Each node fails with `node_chance` and each rack, with all its nodes, with `rack_chance`, all
    independently, in one window (`window_chance`): the time until a lost copy is made again. Given
    the failed racks, groups are independent, so the sum over all states of the racks is exact. It
    adds up chances of loss, so that a small one keeps its digits.

    Raises:
        ConfigError: A chance is outside 0 to 1, the placement has no closed form, or racks can fail
            and there are more than `RACK_LIMIT` of them.
    """
    _check_chances(node_chance, rack_chance)
    check_form(placement, instead="sampled_loss_probability")
    names = _names(placement, racks) if rack_chance else ()
    if len(names) > RACK_LIMIT:
        raise ConfigError(
            f"{len(names)} racks have 2^{len(names)} states, more than 2^{RACK_LIMIT}; "
            "use sampled_loss_probability"
        )
    homes = Counter(tuple(racks[p] if names else "" for p in group) for group in placement.groups)
    total = 0.0
    for count in range(len(names) + 1):
        weight = rack_chance**count * (1 - rack_chance) ** (len(names) - count)
        for gone in itertools.combinations(names, count):
            total += weight * _loss_given(homes, gone, node_chance, placement.replicas)
    return min(1.0, total)


def _loss_given(
    homes: Counter[tuple[str, ...]], gone: Sequence[str], node_chance: float, replicas: int
) -> float:
    """Return the probability that a group is lost, given that racks `gone` are lost."""
    log_alive = 0.0
    for group, times in homes.items():
        loss = _ring_loss([1.0 if rack in gone else node_chance for rack in group], replicas)
        if loss >= 1:
            return 1.0
        log_alive += times * math.log1p(-loss)
    return -math.expm1(log_alive)


def _ring_loss(chances: Sequence[float], replicas: int) -> float:
    """Return the chance that `replicas` neighbours on a ring fail, node i with `chances[i]`.

    The ring is cut open at its first living node: f failures lead the list, fewer than m; behind
    that node, a run of m failures is fatal, and so is one at the end that the f join to m.
    """
    size = len(chances)
    if size == replicas:
        return math.prod(chances)
    lost = math.prod(chances[:replicas])
    lead = 1.0
    for first in range(replicas):
        runs = [lead * (1 - chances[first])] + [0.0] * (replicas - 1)
        for chance in chances[first + 1 :]:
            lost += runs[-1] * chance
            runs = [sum(runs) * (1 - chance), *[run * chance for run in runs[:-1]]]
        lost += sum(runs[replicas - first :])
        lead *= chances[first]
    return lost


def sampled_loss_probability(
    placement: Placement,
    *,
    node_chance: float,
    racks: Sequence[str] = (),
    rack_chance: float = 0.0,
    trials: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Estimate `loss_probability` from random losses; for any placement and rack count."""
    _check_chances(node_chance, rack_chance)
    names = _names(placement, racks) if rack_chance else ()
    draw = random.Random(seed)

    def loses() -> bool:
        gone = {rack for rack in names if draw.random() < rack_chance}
        return not placement.survives(
            [
                node
                for node in range(placement.nodes)
                if (names and racks[node] in gone) or draw.random() < node_chance
            ]
        )

    return estimate(loses, trials=trials)


def _names(placement: Placement, racks: Sequence[str]) -> tuple[str, ...]:
    if len(racks) != placement.nodes:
        raise ConfigError(f"`racks` needs one entry a node: {placement.nodes} (got {len(racks)})")
    return tuple(sorted(set(racks)))


def _check_chances(*chances: float) -> None:
    for chance in chances:
        if not 0 <= chance <= 1:
            raise ConfigError(f"a chance lies between 0 and 1 (got {chance})")
