"""The root agent's knowledge and decisions, as events of the log."""

from collections.abc import Iterable
from dataclasses import replace

from gemini_lab.log import events
from gemini_lab.recovery.guard import LOSS
from gemini_lab.recovery.messages import DamagedCopy, Inventory
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.recovery.protocol import Emit
from gemini_lab.recovery.root_state import RootState, Trouble


def beginning(state: RootState, trouble: Trouble) -> RootState:
    """Return the state with the start of a recovery to emit."""
    started = events.RecoveryStarted(
        recovery=state.recovery,
        epoch=state.epoch,
        cause=trouble.cause,
        lost=trouble.lost,
        failed_at_s=trouble.at_s,
        iteration=state.reached.iteration,
    )
    ended = [one for one in state.story.said if isinstance(one, events.RecoveryFinished)]
    return state.with_parts(replace(state.story, trouble=trouble, said=(*ended, started)))


def planned_event(plan: RecoveryPlan, *, recovery: int, epoch: int) -> events.RecoveryPlanned:
    """Return the event that tells what recovery number `recovery` loads from where."""
    return events.RecoveryPlanned(
        recovery=recovery,
        epoch=epoch,
        version=plan.version,
        made_in=plan.lineage.epoch,
        made_after=plan.lineage.rewinds,
        tier=plan.tier,
        members=plan.members,
        sources=tuple(
            events.ShardSource(shard=s.shard, tier=s.tier, holder=s.holder) for s in plan.sources
        ),
        transfers=tuple(
            events.ShardMove(shard=t.shard, sender=t.sender, receiver=t.receiver)
            for t in plan.transfers
        ),
        reason=plan.reason,
        ranks_then=len(plan.cuts) or None,
    )


def finished_event(
    before: RootState,
    plan: RecoveryPlan,
    answers: Iterable[Inventory],
    *,
    iteration: int,
    at_s: float,
) -> events.RecoveryFinished:
    """Return the end of the recovery in `before`; agents may know of later iterations."""
    assert before.story.trouble is not None
    version = plan.version or 0
    done = max(before.reached.iteration, before.story.trouble.reached, last_done(answers))
    return events.RecoveryFinished(
        recovery=before.recovery,
        epoch=before.epoch,
        version=version,
        iteration=iteration,
        duration_s=at_s - before.story.trouble.at_s,
        lost_iterations=max(0, done - version),
    )


def last_done(answers: Iterable[Inventory]) -> int:
    """Return the newest iteration that all ranks had done, as far as agents know.

    Of the newest epoch among them: what was done before it may have been left with its history.
    """
    newest: dict[int, dict[int, int]] = {}  # by epoch and rank
    for said in (each for answer in answers for each in answer.iterations):
        if isinstance(said, events.Iteration):
            of_epoch = newest.setdefault(said.epoch, {})
            of_epoch[said.rank] = max(said.iteration, of_epoch.get(said.rank, 0))
    return min(newest[max(newest)].values()) if newest else 0


def used_again(node: str, reason: str) -> events.Note:
    """Return the note that an excluded node is used again."""
    return events.Note(text=f"{node} was excluded and is used again, because {reason}")


def rejected_copy(copy: DamagedCopy, node: str, state: RootState) -> Emit:
    """Return the event for a copy that an inventory found damaged."""
    return Emit(
        event=events.ReplicaRejected(
            recovery=state.recovery,
            epoch=state.epoch,
            shard=copy.shard,
            version=copy.version,
            holder=node,
            chunk=copy.chunk,
            reason=f"chunk {copy.chunk} failed its checksum",
        )
    )


def loss_event(
    said: events.Iteration, state: RootState, *, is_finite: bool
) -> events.LossNotFinite | events.LossFinite:
    """Return the event that losses are not finite from this iteration on, or are again."""
    if is_finite:
        return events.LossFinite(rank=said.rank, epoch=said.epoch, iteration=said.iteration)
    return events.LossNotFinite(
        rank=said.rank,
        epoch=said.epoch,
        iteration=said.iteration,
        loss=str(said.value(LOSS)),
        is_held=state.read_settings().on_not_finite != "warn",
    )


def not_finite_reason(told: events.LossNotFinite) -> str:
    """Return why a run ends that has to stop at a loss that is not finite."""
    return f'{told} (the run ends here as "on_not_finite": "stop" says)'


def divergence_reason(diverged: events.Diverged) -> str:
    """Return why a run ends that has to stop at a divergence."""
    return (
        f'{diverged}; likely: {diverged.cause} (the run ends here as "on_divergence": "stop" says)'
    )
