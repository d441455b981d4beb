"""The chance of a loss that is too rare to be met by trying: importance sampling.

Karp and Luby's way to the chance of a union (1983; Karp, Luby and Madras 1989): one of the fatal
sets is drawn by its own chance, its nodes are made to fail, all else fails as it does by itself,
and the trial counts as the sum of all sets' chances by the number of fatal sets that did fail. That
is unbiased, and its relative error does not grow however rare the loss is.
"""

import itertools
import math
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.placement.planner import Placement
from gemini_lab.placement.probability import holder_sets
from gemini_lab.placement.student import student_t
from gemini_lab.units import check_number

_UNSEEN: Final = 0.025
"""With this chance at most, all trials miss what is more frequent than the interval allows for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One level of what fails together, such as racks, or rows of them.

    Attributes:
        names: The domain of each position.
        chance: That one of them fails, with all that is in it.
    """

    names: tuple[str, ...]
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RareEstimate:
    """A small chance found by importance sampling.

    Attributes:
        value: The chance.
        low: Lower end of its 95 % interval; `value` itself where no trial could give another one.
        high: Its upper end.
        variance: Of the value.
        bound: The sum of all fatal sets' chances, which the chance never exceeds.
        trials: Drawn.
    """

    value: float
    low: float
    high: float
    variance: float
    bound: float
    trials: int


def rare_loss_probability(
    placement: Placement,
    *,
    node_chance: float,
    domains: Sequence[Domain] = (),
    trials: int = 2_000,
    seed: int = 0,
) -> RareEstimate:
    """The chance that some shard loses all copies in one window, for any placement and size.

    Nodes and domains fail independently of one another; a domain's failure takes all in it. The
    same chance as `loss_probability`'s where that has a form.

    The interval is Student's, but never narrower than what trials may have missed. A trial counts
    as the bound by the number of fatal sets that failed in it. Where n trials did not show some
    kind of trial, such as one in which two sets fail, its share is at most 1 - 0.025^(1/n) (about
    3.7 / n) with 97.5 %; so many trials more might have counted as little, or as much, as any can.
    The bound on the chance is certain, and the interval ends there.

    Args:
        placement: Any.
        node_chance: That a node fails by itself in the window (`window_chance`).
        domains: From the largest to the smallest; each lies within one of the level before.
        trials: How many to draw.
        seed: Of the draws.

    Raises:
        ConfigError: A chance is outside 0 to 1, domains do not nest, or trials are below 2.
    """
    _check(placement, node_chance, domains, trials)
    sets = sorted(tuple(sorted(kept)) for kept in holder_sets(placement))
    world = _World(placement.nodes, node_chance, domains)
    chances = [world.chance(kept) for kept in sets]
    bound = math.fsum(chances)
    if bound <= 0:
        return RareEstimate(value=0.0, low=0.0, high=0.0, variance=0.0, bound=0.0, trials=trials)
    sums = list(itertools.accumulate(chances))
    of_node: dict[int, list[int]] = defaultdict(list)
    for number, kept in enumerate(sets):
        of_node[kept[0]].append(number)
    draw = random.Random(seed)
    values = []
    for _ in range(trials):
        chosen = sets[min(bisect(sums, draw.random() * sums[-1]), len(sets) - 1)]
        gone = world.failed_with(chosen, draw)
        dead = sum(gone.issuperset(sets[n]) for node in gone for n in of_node.get(node, ()))
        values.append(bound / dead)
    spread = variance(values) / trials
    value, half = fmean(values), student_t(trials - 1) * math.sqrt(spread)
    unseen, least = 1 - _UNSEEN ** (1 / trials), bound / len(sets)
    return RareEstimate(
        value=value,
        low=max(0.0, value - max(half, unseen * (value - least))),
        high=min(1.0, bound, value + max(half, unseen * (bound - value))),
        variance=spread,
        bound=bound,
        trials=trials,
    )


class _World:
    """Nodes in nested domains, and what fails of them.

    Everything that can fail is a unit: domains from the largest to the smallest, then nodes. A
    set's chance is a product over a tree: a unit fails by itself, or all that is in it does.
    """

    def __init__(self, nodes: int, node_chance: float, domains: Sequence[Domain]) -> None:
        self.paths = [
            tuple((level, domain.names[node]) for level, domain in enumerate(domains))
            for node in range(nodes)
        ]
        self.levels = [*(domain.chance for domain in domains), node_chance]
        self.node_chance = node_chance
        self.members: dict[tuple[int, str], list[int]] = defaultdict(list)
        for node, path in enumerate(self.paths):
            for unit in path:
                self.members[unit].append(node)
        self.units = [
            [unit for unit in self.members if unit[0] == level] for level in range(len(domains))
        ]

    def chance(self, kept: Sequence[int], level: int = 0) -> float:
        """That all of these nodes fail, those above `level` being alive."""
        if level == len(self.levels) - 1:
            return self.node_chance ** len(kept)
        product = 1.0
        for inside in self._split(kept, level):
            own = self.levels[level]
            product *= own + (1 - own) * self.chance(inside, level + 1)
        return product

    def _split(self, kept: Sequence[int], level: int) -> list[list[int]]:
        parts: dict[tuple[int, str], list[int]] = defaultdict(list)
        for node in kept:
            parts[self.paths[node][level]].append(node)
        return list(parts.values())

    def failed_with(self, kept: Sequence[int], draw: random.Random) -> set[int]:
        """What fails where all of `kept` do: they by a way drawn by its chance, the rest freely."""
        settled: set[tuple[int, str]] = set()
        failed = set(self._forced(kept, 0, settled, draw))
        for level, units in enumerate(self.units):
            for place in _hits(len(units), self.levels[level], draw):
                if units[place] not in settled:
                    failed.update(self.members[units[place]])
        failed.update(_hits(len(self.paths), self.node_chance, draw))
        return failed

    def _forced(
        self, kept: Sequence[int], level: int, settled: set[tuple[int, str]], draw: random.Random
    ) -> Iterator[int]:
        """Nodes that fail so that `kept` do; `settled` gets the domains whose state is drawn."""
        if level == len(self.levels) - 1:
            yield from kept
            return
        for inside in self._split(kept, level):
            unit = self.paths[inside[0]][level]
            settled.add(unit)
            own = self.levels[level]
            deeper = (1 - own) * self.chance(inside, level + 1)
            if draw.random() * (own + deeper) < own:
                yield from self.members[unit]
            else:
                yield from self._forced(inside, level + 1, settled, draw)


def _hits(count: int, chance: float, draw: random.Random) -> Iterator[int]:
    """Which of `count` things happen, each with `chance`: one draw for each that does."""
    if chance <= 0:
        return
    if chance >= 1:
        yield from range(count)
        return
    place = -1
    while True:
        place += 1 + int(math.log1p(-draw.random()) / math.log1p(-chance))
        if place >= count:
            return
        yield place


def _check(
    placement: Placement, node_chance: float, domains: Sequence[Domain], trials: int
) -> None:
    for chance in (node_chance, *(domain.chance for domain in domains)):
        if not 0 <= chance <= 1:
            raise ConfigError(f"a chance lies between 0 and 1 (got {chance})")
    check_number("trials", trials, least=2, is_whole=True)  # or there is no variance
    for domain in domains:
        if len(domain.names) != placement.nodes:
            raise ConfigError(
                f"a level of domains needs one name a node: {placement.nodes} (got "
                f"{len(domain.names)})"
            )
    for outer, inner in itertools.pairwise(domains):
        homes: dict[str, str] = {}
        for large, small in zip(outer.names, inner.names, strict=True):
            if homes.setdefault(small, large) != large:
                raise ConfigError(
                    f"domain {small!r} lies in both {homes[small]!r} and {large!r}; give levels "
                    "from the largest to the smallest, each within one of the level before"
                )
