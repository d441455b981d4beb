"""A recovery plan, told as an event."""

from gemini_lab.log.events import RecoveryPlanned, ShardMove, ShardSource
from gemini_lab.recovery.plan import RecoveryPlan


def planned(plan: RecoveryPlan, *, recovery: int, epoch: int) -> RecoveryPlanned:
    """The event that says what will be loaded from where in recovery number `recovery`."""
    return RecoveryPlanned(
        recovery=recovery,
        epoch=epoch,
        version=plan.version,
        made_in=plan.lineage.epoch,
        made_after=plan.lineage.rewinds,
        tier=plan.tier,
        members=plan.members,
        sources=tuple(
            ShardSource(shard=s.shard, tier=s.tier, holder=s.holder) for s in plan.sources
        ),
        transfers=tuple(
            ShardMove(shard=t.shard, sender=t.sender, receiver=t.receiver) for t in plan.transfers
        ),
        reason=plan.reason,
        ranks_then=len(plan.cuts) or None,
    )
