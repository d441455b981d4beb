"""Choice of the number of replicas a shard from failure rates, memory and a target."""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gemini_lab.errors import CapacityError, ConfigError, shown
from gemini_lab.placement.dangers import Dangers, allowed_per_day
from gemini_lab.placement.memory import shards_that_fit
from gemini_lab.placement.planner import Placement, plan_placement
from gemini_lab.units import check_number

MOST_REPLICAS: Final = 6
EXTRA_SHARE: Final = 0.25
"""At most this share of the shards gets a copy more; beyond it, the next m is the simpler plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate placement of the planner, with its verdict.

    Attributes:
        replicas: Copies of every shard.
        extra: Shards with one copy more.
        fits: Whether the memory can hold it.
        loss_probability: The chance that memory does not suffice once in the horizon; `None` where
            the copies do not fit.
        meets: Whether that reaches the target.
        reason: The verdict, in words.
    """

    replicas: int
    extra: tuple[int, ...]
    fits: bool
    loss_probability: float | None
    meets: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The placement that the planner proposes, with all candidates before it.

    Attributes:
        placement: What to run with.
        extra: Shards with one copy more than `placement.replicas`.
        loss_probability: The chance that memory does not suffice once in the horizon.
        met: Whether the target is reached; if not, this is the best that fits.
        tried: Everything tried, in order: the reasoning.
        reason: The verdict, in words.
    """

    placement: Placement
    extra: tuple[int, ...]
    loss_probability: float
    met: bool
    tried: tuple[Trial, ...]
    reason: str


def loss_rate_per_day(
    holders: Collection[int], *, failures_per_day: Sequence[float], repair_s: float
) -> float:
    """Return `Dangers.loss_rate_per_day` if racks do not fail."""
    return Dangers(failures_per_day=failures_per_day, repair_s=repair_s).loss_rate_per_day(holders)


def loss_chance(
    placement: Placement, *, failures_per_day: Sequence[float], repair_s: float, horizon_days: float
) -> float:
    """Return `Dangers.loss_chance` if racks do not fail."""
    dangers = Dangers(failures_per_day=failures_per_day, repair_s=repair_s)
    return dangers.loss_chance(placement, horizon_days=horizon_days)


def propose_placement(
    *,
    nodes: int,
    failures_per_node_per_day: float | Sequence[float],
    repair_s: float,
    memory_bytes: int | Sequence[int],
    shard_bytes: int,
    target: float = 0.999,
    horizon_days: float = 30.0,
    fewest_replicas: int = 1,
    most_replicas: int | None = None,
    racks: Sequence[str] | None = None,
    racks_per_day: Mapping[str, float] | None = None,
) -> Proposal:
    """Propose the fewest replicas that survive the whole horizon with probability `target`.

    Tries m = 1, 2, ... and before each next m whether it is enough to let the nodes that m leaves
    over be guests (strategy `"hosted"`), or to give the shards most in danger one copy more, as far
    as there is memory for it.

    Args:
        nodes: N.
        failures_per_node_per_day: One rate for all, or one for each node.
        repair_s: From a node's loss until its copies exist again on its successor.
        memory_bytes: Memory for checkpoints on each node; one for all, or one for each.
        shard_bytes: Size of one node's shard.
        target: The chance asked for, below 1.
        horizon_days: How long memory has to suffice.
        fewest_replicas: Where to begin, if there is memory for that; else with one.
        most_replicas: Where to stop; without it, at `MOST_REPLICAS`, or where it begins.
        racks: Failure domain of each node.
        racks_per_day: How often each of them fails as a whole; those left out never do.

    Raises:
        ConfigError: A number is out of range, or a list has not one entry a node.
        CapacityError: Not even one copy of each shard fits.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    rates = _per_node(failures_per_node_per_day, nodes, "failures_per_node_per_day")
    memory = [int(room) for room in _per_node(memory_bytes, nodes, "memory_bytes")]
    check_number("repair_s", repair_s)
    check_number("horizon_days", horizon_days)
    _check_racks(racks, racks_per_day or {})
    most = max(MOST_REPLICAS, fewest_replicas) if most_replicas is None else most_replicas
    for name, count in {"fewest_replicas": fewest_replicas, "most_replicas": most}.items():
        check_number(name, count, least=1, is_whole=True)
    if fewest_replicas > most:
        raise ConfigError(
            f"fewest_replicas={fewest_replicas} lies outside 1 to most_replicas={most}; lower it, "
            "or raise `most_replicas`"
        )
    if not 0 <= target < 1:
        raise ConfigError(f"target={shown(target)} must be at least 0 and below 1, such as 0.999")
    search = _Search(
        plan=partial(
            plan_placement, nodes=nodes, racks=racks, memory_bytes=memory, shard_bytes=shard_bytes
        ),
        fits=shards_that_fit(nodes=nodes, memory_bytes=memory, shard_bytes=shard_bytes),
        dangers=Dangers(
            failures_per_day=rates,
            repair_s=repair_s,
            racks=racks,
            racks_per_day=racks_per_day or {},
        ),
        target=target,
        horizon_days=horizon_days,
    )
    tried: list[Trial] = []
    made: list[tuple[Trial, Placement]] = []
    for trial, placement in search.tries(min(fewest_replicas, nodes), min(nodes, most)):
        tried.append(trial)
        if placement is not None:
            made.append((trial, placement))
        if trial.meets:
            break
    best = min(made, key=lambda one: (not one[0].meets, one[0].loss_probability or 0.0))
    return _proposal(best[1], best[0], tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search over candidate placements, in order."""

    plan: Callable[..., Placement]  # makes the placement of so many replicas
    fits: Sequence[int]  # how many shards each node has room for
    dangers: Dangers  # what placements have to survive
    target: float  # target, horizon_days: how surely, and for how long
    horizon_days: float

    def tries(self, first: int, most: int) -> Iterator[tuple[Trial, Placement | None]]:
        """Try `first` replicas and more; fewer only if memory is short for `first`."""
        has_fit = False
        for replicas in (*range(first, most + 1), *range(first - 1, 0, -1)):
            if has_fit and replicas < first:
                return
            try:
                placements = self._placements(replicas)
            except CapacityError as error:
                yield _misfit(replicas, str(error)), None
                if has_fit:
                    return
            else:
                has_fit = True
                yield from ((self._judged(one), one) for one in placements)

    def _placements(self, replicas: int) -> list[Placement]:
        """Return the placements with this many replicas, plain ones first."""
        plain = [self.plan(replicas=replicas)]
        if plain[0].nodes % replicas:
            plain.append(self.plan(replicas=replicas, strategy="hosted"))
        allowed = allowed_per_day(self.target, self.horizon_days)
        strong = [
            _strengthen(one, dangers=self.dangers, fits=self.fits, allowed=allowed) for one in plain
        ]
        return list(dict.fromkeys((*plain, *strong)))

    def _judged(self, placement: Placement) -> Trial:
        chance = self.dangers.loss_chance(placement, horizon_days=self.horizon_days)
        return _trial(placement, chance, target=self.target, horizon_days=self.horizon_days)


def _check_racks(racks: Sequence[str] | None, racks_per_day: Mapping[str, float]) -> None:
    for rack, rate in racks_per_day.items():
        check_number(f"racks_per_day[{rack!r}]", rate)
    unknown = sorted(set(racks_per_day) - set(racks or ()))
    if unknown:
        raise ConfigError(
            f"`racks_per_day` names {unknown[0]!r}, in which no node is; name the rack of each "
            "node in `racks`"
        )


def _per_node(value: float | Sequence[float], nodes: int, name: str) -> list[float]:
    values = [value] * nodes if isinstance(value, int | float) else list(value)
    if len(values) != nodes:
        raise ConfigError(f"`{name}` needs one entry a node: {nodes} (got {len(values)})")
    for each in values:
        check_number(name, each)
    return values


def _strengthen(
    plain: Placement, *, dangers: Dangers, fits: Sequence[int], allowed: float
) -> Placement:
    """Add a copy of the shards most in danger, until the rate of losses is allowed.

    All shards with the same holders get one together: one of them left behind would be lost as
    before. The copies go round the nodes that have room, safest first.
    """
    rate = dangers.loss_rate_per_day
    room = [space - load for space, load in zip(fits, plain.loads, strict=True)]
    holders = list(plain.holders)
    sharing: dict[frozenset[int], list[int]] = defaultdict(list)
    for shard, kept in enumerate(holders):
        sharing[frozenset(kept)].append(shard)
    danger = sorted(((rate(kept), sorted(kept)) for kept in sharing), reverse=True)
    hosts = [
        (0, dangers.failures_per_day[node], node) for node, space in enumerate(room) if space > 0
    ]
    heapq.heapify(hosts)
    total, budget = math.fsum(each for each, _ in danger), int(plain.nodes * EXTRA_SHARE)
    for each, members in danger:
        shards = sharing[frozenset(members)]
        budget -= len(shards)
        if total <= allowed or budget < 0:
            break
        more = [_next_host(hosts, members, room) for _ in shards]
        if None in more:
            break
        total -= each
        for shard, host in zip(shards, more, strict=True):
            assert host is not None
            holders[shard] = (*holders[shard], host)
            total += rate(holders[shard])
    return replace(plain, holders=tuple(holders)) if holders != list(plain.holders) else plain


def _next_host(
    hosts: list[tuple[int, float, int]], kept: Sequence[int], room: list[int]
) -> int | None:
    """Return the node with room outside `kept` with the fewest extra copies, then the safest."""
    passed = []
    while hosts:
        taken, rate, node = heapq.heappop(hosts)
        if node in kept:
            passed.append((taken, rate, node))
            continue
        room[node] -= 1
        if room[node] > 0:
            passed.append((taken + 1, rate, node))
        break
    else:
        node = None
    for entry in passed:
        heapq.heappush(hosts, entry)
    return node


def _extra(placement: Placement) -> tuple[int, ...]:
    return tuple(
        shard for shard, kept in enumerate(placement.holders) if len(kept) > placement.replicas
    )


def _misfit(replicas: int, reason: str) -> Trial:
    return Trial(
        replicas=replicas, extra=(), fits=False, loss_probability=None, meets=False, reason=reason
    )


def _trial(placement: Placement, chance: float, *, target: float, horizon_days: float) -> Trial:
    extra, meets = _extra(placement), chance <= 1 - target
    more = " with guests in the last group" if placement.strategy == "hosted" else ""
    more += f" and one more of {len(extra)} shards" if extra else ""
    verdict = "enough" if meets else "too often"
    return Trial(
        replicas=placement.replicas,
        extra=extra,
        fits=True,
        loss_probability=chance,
        meets=meets,
        reason=f"m = {placement.replicas}{more}: memory does not suffice with chance {chance:.3g} "
        f"in {horizon_days:g} days; {verdict} for at most {1 - target:.3g}",
    )


def _proposal(placement: Placement, trial: Trial, tried: Sequence[Trial]) -> Proposal:
    assert trial.loss_probability is not None
    reason = trial.reason
    if not trial.meets:
        reason += f"; the best of {sum(each.fits for each in tried)} that fit"
        reason += "".join(f"; {each.reason}" for each in tried if not each.fits)
    return Proposal(
        placement=placement,
        extra=trial.extra,
        loss_probability=trial.loss_probability,
        met=trial.meets,
        tried=tuple(tried),
        reason=reason,
    )
