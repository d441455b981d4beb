"""From what the root agent knows to a plan: which copies count, and what there is to hope for."""

from collections.abc import Collection, Mapping

from gemini_lab.placement import plan_placement
from gemini_lab.recovery.messages import Inventory
from gemini_lab.recovery.plan import Copy, RecoveryPlan, Stored, plan_recovery
from gemini_lab.recovery.protocol import RootState
from gemini_lab.recovery.stakes import Hopes, newest_seen
from gemini_lab.seats import in_order


def make_plan(
    state: RootState, living: Collection[str], inventories: Mapping[str, Inventory]
) -> RecoveryPlan:
    """The plan for what these inventories show, with the nodes that are not excluded.

    A node that every attempt failed on is used again only where there is no other.
    """
    seats = state.seats
    spares = [node for node in in_order(living) if node not in state.excluded]
    usable = set(living) - set(state.excluded)
    if len(usable) < seats.nodes:
        spares += [node for node in in_order(living) if node in state.excluded]
        usable = set(living)
    return plan_recovery(
        # Without a placement no worker has called protect yet, and there is nothing to load.
        placement=seats.placement or plan_placement(nodes=seats.nodes, replicas=1),
        members=seats.members,
        copies=good_copies(state, inventories) if state.settings else [],
        living=usable,
        standbys=spares,
        persistent=stored_versions(state, inventories),
        rejected=state.rejected,
        workers_per_node=seats.workers_per_node,
        rack_of=seats.rack_of,
    )


def good_copies(state: RootState, inventories: Mapping[str, Inventory]) -> list[Copy]:
    """The run's copies in memory, without those that failed to load."""
    found = (
        Copy(shard=copy.shard, version=copy.version, node=node, lineage=copy.lineage)
        for node, said in inventories.items()
        for copy in said.copies
    )
    bad = set(state.bad_copies)
    return [copy for copy in found if copy not in bad]


def stored_versions(state: RootState, inventories: Mapping[str, Inventory]) -> list[Stored]:
    """What the persistent tier has for this run: its own versions, and others' if it resumes."""
    order = state.job
    found = [one for said in inventories.values() for one in said.persistent or ()]
    return [one for one in found if order.is_resumed or one.lineage.run == order.run]


def hopes(state: RootState, inventories: Mapping[str, Inventory]) -> Hopes:
    """What may still come back that is newer than what is at hand."""
    seen = newest_seen(good_copies(state, inventories))
    stored = max((one.version for one in stored_versions(state, inventories)), default=0)
    rejected = {one.version for one in state.rejected}
    known = [v for v in (state.newest, seen, stored) if v not in rejected]
    unread = next((said.unread for said in inventories.values() if said.unread), "")
    return Hopes(newest=max(known, default=0), silent=state.silent, unread=unread)
