"""A plan from what the root agent knows: which copies count, and what may still come back.

A version may be in memory as the shards of another number of ranks. Each rank works out which bytes
of them go where (`shard.recut`). The root agent decides which version it is, and which members read
each shard out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gemini_lab.log import events
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.messages import Inventory
from gemini_lab.recovery.plan import (
    Copy,
    Cut,
    RecoveryPlan,
    Source,
    Stored,
    Unclear,
    VersionId,
    is_left,
    plan_recovery,
)
from gemini_lab.recovery.progress_at_risk import Hopes, newest_seen
from gemini_lab.recovery.protocol import Emit
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.seating import rack_warning
from gemini_lab.seats import in_order
from gemini_lab.shard.lineage import Lineage


def make_plan(
    state: RootState,
    living: Collection[str],
    inventories: Mapping[str, Inventory],
    *,
    importing: Collection[str] = (),
    first: str = "",
) -> RecoveryPlan:
    """Return the plan for these inventories, without the nodes that are avoided.

    A node that every attempt failed on, or whose machine is to go, is used again only where there
    is no other, or where it has what would be lost without it; one that computes wrong, never.

    Args:
        state: The run's.
        living: Nodes whose agents live.
        inventories: What they hold.
        importing: Those on which a start would have to wait: of spares that are as good otherwise
            they are the last.
        first: Of spares that are as good otherwise this one, where processes wait.
    """
    trusted = [node for node in in_order(living) if node not in state.nodes.wrong]
    nodes = sorted(trusted, key=lambda node: (node != first, node in importing))
    usable = [node for node in nodes if node not in state.avoided]
    plan = _plan_with(usable, state, inventories, importing)
    if len(usable) == len(nodes):
        return plan
    avoided = [node for node in nodes if node in state.avoided]
    other = _plan_with([*usable, *avoided], state, inventories, importing)
    is_worse = (plan.version or 0) < (other.version or 0)
    return other if plan.missing or is_worse else plan


def _plan_with(
    nodes: Sequence[str],
    state: RootState,
    inventories: Mapping[str, Inventory],
    late: Collection[str],
) -> RecoveryPlan:
    """Return the plan that uses these nodes, as spares in this order."""
    seats = state.seats
    # Without a placement no worker has called protect yet, and there is nothing to load.
    copies = good_copies(state, inventories) if state.setup.settings else []
    plan = plan_recovery(
        placement=seats.placement or plan_placement(nodes=seats.nodes, replicas=1),
        members=seats.members,
        copies=[copy for copy in copies if copy.ranks in {0, seats.world_size}],
        living=nodes,
        standbys=nodes,
        persistent=stored_versions(state, inventories),
        rejected=state.discarded.rejected,
        workers_per_node=seats.workers_per_node,
        rack_of=seats.rack_of,
        late=late,
    )
    others = [copy for copy in copies if copy.ranks not in {0, seats.world_size}]
    return with_cuts(plan, others) if others else plan


def rack_notes(before: RootState, plan: RecoveryPlan) -> Iterator[Emit]:
    """Emit a warning if the machines of this plan put all copies of a shard in one rack."""
    seats = before.seats
    if seats.placement is not None and seats.placement.nodes == len(plan.members):
        holders, members = seats.placement.holders, before.members
        if text := rack_warning(holders, members, plan.members, seats.rack_of):
            yield Emit(event=events.Note(text=text))


def good_copies(state: RootState, inventories: Mapping[str, Inventory]) -> list[Copy]:
    """Return the copies in memory, without those that failed to load or were left behind."""
    found = [
        Copy(
            shard=copy.shard,
            version=copy.version,
            node=node,
            lineage=copy.lineage,
            ranks=copy.ranks,
        )
        for node, said in inventories.items()
        for copy in said.copies
    ]
    bad, left = set(state.discarded.bad_copies), state.discarded.left
    if not bad and not left:  # as mostly; of ten thousand nodes there are many copies
        return found
    return [one for one in found if one not in bad and not is_left(one.version, one.lineage, left)]


def stored_versions(state: RootState, inventories: Mapping[str, Inventory]) -> list[Stored]:
    """Return the tier's versions for this run: its own, and others' if it resumes.

    What was left behind lies there until it is replaced, and counts for nothing. All versions of
    other runs are older than this run's.
    """
    order, before = state.job, Lineage(run=state.job.run)
    found = [one for said in inventories.values() for one in said.persistent or ()]
    return [
        one
        for one in found
        if (is_own := one.lineage.run == order.run) or order.is_resumed
        if not is_left(one.version, one.lineage if is_own else before, state.discarded.left)
    ]


def unclear_versions(state: RootState, inventories: Mapping[str, Inventory]) -> list[Unclear]:
    """Return the saved versions that are not whole now, without those that a user gave up."""
    given_up = {one.version for one in state.discarded.rejected if one.version > state.tier.saved}
    found = (one for said in inventories.values() for one in said.unclear)
    return [one for one in found if one.version not in given_up]


def hopes(state: RootState, inventories: Mapping[str, Inventory]) -> Hopes:
    """Return which newer versions may still come back."""
    seen = newest_seen(good_copies(state, inventories))
    let_go = {one.version for one in state.discarded.rejected}
    known = [v for v in (state.reached.newest, seen, state.tier.saved) if v not in let_go]
    if (
        state.job.is_resumed and not state.reached.iteration
    ):  # what the run before went back to counts
        known += [one.version for said in inventories.values() for one in said.disowned]
    if (
        state.discarded.rejected and state.story.trouble is not None
    ):  # who let one go did not ask for the start
        known.append(state.story.trouble.reached)
    unread = next((said.unread for said in inventories.values() if said.unread), "")
    lost = () if state.story.trouble is None else state.story.trouble.lost
    return Hopes(
        newest=max(known, default=0),
        saved=0 if state.tier.saved in let_go else state.tier.saved,
        stored=tuple(one.version for one in stored_versions(state, inventories)),
        unclear=tuple(unclear_versions(state, inventories)),
        silent=state.nodes.silent,
        unheard=tuple(
            node for node in state.nodes.silent if state.reached.is_unsure and node in lost
        ),
        unread=unread,
        is_witnessed=any(node in inventories for node in state.members),
        unknown=state.reached.iteration if state.reached.is_unsure and lost else 0,
        is_resumed=state.job.is_resumed,
    )


# -- versions that another number of ranks made ----------------------------------------------------

Holders = dict[int, list[str]]
"""The nodes that have each shard of a version."""


def with_cuts(plan: RecoveryPlan, copies: Iterable[Copy]) -> RecoveryPlan:
    """Return the plan, or one with a better version that another world size made.

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
        f"again for {len(plan.sources)} ranks",
    )


def newest_whole(copies: Sequence[Copy]) -> tuple[VersionId, Holders] | None:
    """Return the newest version whose shards are all among these copies, and their holders."""
    found: dict[tuple[int, Lineage, int], Holders] = {}
    for copy in copies:
        holders = found.setdefault((copy.version, copy.lineage, copy.ranks), {})
        holders.setdefault(copy.shard, []).append(copy.node)
    whole = [
        (VersionId(version=version, lineage=lineage), ranks)
        for (version, lineage, ranks), holders in found.items()
        if set(range(ranks)) <= holders.keys()
    ]
    if not whole:
        return None
    one, ranks = max(whole)
    return one, found[one.version, one.lineage, ranks]


def covering(nodes: Sequence[str], count: int, holders: Holders) -> list[str] | None:
    """Return nodes that together have every shard, of equal ones the first.

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
    """Return the origin of a new shard, as far as it is known before layouts are."""
    if node is not None and all(node in held for held in holders.values()):
        return Source(shard=shard, tier="local", holder=node)
    return Source(shard=shard, tier="peer", holder=None)
