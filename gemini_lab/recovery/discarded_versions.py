"""Versions that count no more: what rewinds and a user's word left behind, and who learns of it.

When training goes back to a version, all later ones are left behind, although they exist and have
higher numbers. Memory frees them at once, but the persistent tier may have them, a rank may die
before it frees them, or a node may come back with them. So every agent remembers the rewinds of its
workers, and the root agent those of all agents: no plan goes on from what was left.

A rewind is kept as the version to which training went back and the lineage that it left. Of that
lineage, and of all before it, versions after this one are left behind. The next manifest in the
tier says so. A run may end before the next save, so the tier is told at once, too: a run that
resumes from there must not go on from what was left.

What a user gave up is left behind in the same way: nodes that come back with it, and a tier that
can be read again, do not end a run's newer history. The tier learns of it with the next save.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.log.events import Note, Rewound, RunFailed
from gemini_lab.recovery.messages import Disown, GoBack
from gemini_lab.recovery.plan import RecoveryPlan, Unclear, VersionId, joined
from gemini_lab.recovery.protocol import Emit, Instruction, Send, WriteState
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import in_order
from gemini_lab.shard.lineage import MOST_REWINDS, Lineage

CANNOT_GO_BACK: Final = (
    "training does not go back, as asked, for it is not under way; ask again then"
)
"""Who asked hears it by these words."""


def left_of(said: Rewound, *, run: int) -> VersionId:
    """Return the versions that a rewind left behind, as a worker reports it."""
    lineage = Lineage(run=run, epoch=said.epoch, rewinds=said.rewinds - 1)
    skips = said.skips and said.cause == "person"  # script and guard skip them again
    return VersionId(version=said.version, lineage=lineage, skips=skips)


def giving_up(state: RootState, plan: RecoveryPlan, unclear: Iterable[Unclear]) -> RootState:
    """Return the state after a user, or a setting, chose this plan over newer versions.

    Args:
        state: With the epoch of the plan's start, in which later versions are made.
        plan: What training goes on from.
        unclear: Saved versions that are not whole now; their lineage is not known.
    """
    lineage = Lineage(run=state.job.run, epoch=state.epoch - 1, rewinds=MOST_REWINDS)
    lost = VersionId(version=plan.version or 0, lineage=lineage)
    discarded = replace(
        state.discarded,
        left=joined(state.discarded.left, [lost]),
        rejected=(*state.discarded.rejected, *(VersionId(version=one.version) for one in unclear)),
    )
    return replace(state, discarded=discarded)


def skipped_again(plan: RecoveryPlan, left: Iterable[VersionId]) -> str:
    """Return which skipped batches a plan brings back, for users; empty for none.

    Where the data stand after one is known to the versions that were made since.
    """
    lost = [
        one.version
        for one in left
        if one.skips
        and plan.version is not None
        and plan.version <= one.version
        and plan.lineage.run == one.lineage.run
        and plan.lineage <= one.lineage
    ]
    if not lost:
        return ""
    return (
        f"the batches that were skipped with the rewind to version {max(lost)} come again, as no "
        "version that was made after it is left; ask for it again to skip them"
    )


def ask_back(
    number: int, steps: int, state: RootState, living: Collection[str], *, skip: bool
) -> Iterator[Instruction]:
    """Order the rewind that a user wants; a new root agent reads the same request again."""
    before, count = state.discarded.asked_back
    if number <= before:
        return
    discarded = replace(state.discarded, asked_back=(number, count + 1))
    yield WriteState(state=replace(state, discarded=discarded))
    if state.phase != "running":
        yield Emit(event=Note(text=CANNOT_GO_BACK))
        return
    order = GoBack(epoch=state.epoch, number=count + 1, steps=steps, skip=skip)
    for node in dict.fromkeys(state.members):
        if node in living:
            yield Send(to=str(node), order=order)


def disown(state: RootState, living: Collection[str]) -> Iterator[Send]:
    """Order one agent to write what was left behind, if there are a tier and an agent."""
    url = state.read_settings().persistent_url
    if url is None or not state.discarded.left or not living:
        return
    # Of members, of whom no machine computes wrong that is known to.
    seated = [node for node in state.members if node in living and node not in state.nodes.wrong]
    node = (seated or in_order(living))[0]
    yield Send(to=str(node), order=Disown(epoch=state.epoch, url=url, left=[*state.discarded.left]))


def not_disowned(state: RootState, reason: str) -> str:
    """Return, for users, what follows if the tier was not told."""
    newest, url = state.discarded.left[-1].version, state.read_settings().persistent_url
    return (
        f"{url} could not be told that its versions after {newest} are void ({reason}): until "
        "a newer version is saved there, remove them before another run resumes from there"
    )


def with_way_on(state: RootState, versions: Sequence[int], reason: str) -> RootState:
    """Return the state whose end names the version that another run would start from.

    Args:
        state: Of a run that failed.
        versions: Those in the tier that still count.
        reason: Why the tier does not know what was left behind; empty if it does.
    """
    ending = state.story.ending
    assert isinstance(ending, RunFailed)
    if reason:
        way_on = not_disowned(state, reason)
    elif versions:
        way_on = (
            f"--resume goes on from version {max(versions)}, which was verified: later ones "
            "are void"
        )
    else:
        way_on = (
            "no version that was verified is in the persistent tier: --resume would begin at the "
            f"start{', and asks before' if state.discarded.left[-1].version else ''}"
        )
    return state.with_parts(
        replace(
            state.story, ending=msgspec.structs.replace(ending, reason=f"{ending.reason}; {way_on}")
        )
    )
