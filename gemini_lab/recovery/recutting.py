"""A version that is in memory as the shards of another number of ranks: whether it will do.

Which bytes of them go where is worked out by each rank (`shard.recut`). What the root agent decides
is which version it is, and which members read each shard out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from gemini_lab.recovery.plan import Copy, Cut, RecoveryPlan, Source, VersionId
from gemini_lab.seats import in_order

Holders = dict[int, list[str]]
"""The nodes that have each shard of a version."""


def with_cuts(plan: RecoveryPlan, copies: Iterable[Copy]) -> RecoveryPlan:
    """The plan, or the same with a better version that other numbers of ranks have made.

    Args:
        plan: What there is without those.
        copies: Whole copies of versions of other numbers of ranks; those on others than the plan's
            members are left out, for no worker runs there that could read them.
    """
    found = newest_whole([c for c in copies if c.node in plan.members])
    if found is None:
        return plan
    one, holders = found
    known = VersionId(version=plan.version or 0, lineage=plan.lineage)
    is_known_better = known > one if plan.tier == "memory" else known.version > one.version
    if is_known_better:
        return plan
    per_node = len(plan.sources) // len(plan.members)
    return replace(
        plan,
        version=one.version,
        lineage=one.lineage,
        tier="memory",
        sources=tuple(
            _source(s.shard, plan.members[s.shard // per_node], holders) for s in plan.sources
        ),
        transfers=(),
        cuts=tuple(Cut(shard=s, holders=tuple(in_order(holders[s]))) for s in sorted(holders)),
        reason=f"version {one.version} is whole in memory as {len(holders)} shards, which are cut "
        f"anew for {len(plan.sources)} ranks",
    )


def newest_whole(copies: Sequence[Copy]) -> tuple[VersionId, Holders] | None:
    """The newest version of which every shard is among these copies, and who has which."""

    def kind(copy: Copy) -> tuple[VersionId, int]:
        return VersionId(version=copy.version, lineage=copy.lineage), copy.ranks

    best: tuple[VersionId, Holders] | None = None
    for (one, ranks), group in groupby(sorted(copies, key=kind), key=kind):
        holders: Holders = defaultdict(list)
        for copy in group:
            holders[copy.shard].append(copy.node)
        if set(range(ranks)) <= holders.keys():
            best = one, dict(holders)
    return best


def covering(nodes: Sequence[str], count: int, holders: Holders) -> list[str] | None:
    """So many of these nodes that together have every shard, the first where it is all the same.

    Args:
        nodes: To choose from, those that are to stay before others first.
        count: How many are to be left.
        holders: Who has which shard.

    Returns:
        The chosen, in the order of `nodes`; `None` where none was found that will do.
    """
    left, chosen = set(holders), list[str]()
    while left and len(chosen) < count:
        has = {n: sum(n in holders[shard] for shard in left) for n in nodes if n not in chosen}
        best = max(has, key=lambda node: has[node], default=None)  # of equals the first
        if best is None or not has[best]:
            return None
        chosen.append(best)
        left = {shard for shard in left if best not in holders[shard]}
    if left:
        return None
    others = [node for node in nodes if node not in chosen]
    kept = {*chosen, *others[: count - len(chosen)]}
    return [node for node in nodes if node in kept]


def _source(shard: int, node: str | None, holders: Holders) -> Source:
    """Where a new shard comes from, as far as it can be told before layouts are known."""
    if node is not None and all(node in held for held in holders.values()):
        return Source(shard=shard, tier="local", holder=node)
    return Source(shard=shard, tier="peer", holder=None)
