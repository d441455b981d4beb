"""What the persistent tier is told of versions that count no more, and what there is instead.

The next manifest says what training has gone back behind. A run may end before there is one, so
the tier is told at once, too: who resumes from there must not go on from what was left.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import msgspec

from gemini_lab.log.events import RunFailed
from gemini_lab.recovery.messages import Disown
from gemini_lab.recovery.protocol import Send
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import in_order


def disown(state: RootState, living: Collection[str]) -> Iterator[Send]:
    """Have one agent write what was left behind; nothing where there is no tier, or no agent."""
    url = state.read_settings().persistent_url
    if url is None or not state.discarded.left or not living:
        return
    # Of members, of whom no machine computes wrong that is known to.
    seated = [node for node in state.members if node in living and node not in state.nodes.wrong]
    node = (seated or in_order(living))[0]
    yield Send(to=str(node), order=Disown(epoch=state.epoch, url=url, left=[*state.discarded.left]))


def not_disowned(state: RootState, reason: str) -> str:
    """What it means that the tier could not be told."""
    newest, url = state.discarded.left[-1].version, state.read_settings().persistent_url
    return (
        f"{url} could not be told that its versions after {newest} count no more ({reason}): until "
        "a newer version is saved there, remove them before another run resumes from there"
    )


def with_way_on(state: RootState, versions: Sequence[int], reason: str) -> RootState:
    """The state in which the run's end says from what another run would go on.

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
            f"--resume goes on from version {max(versions)}, which was verified: later ones count "
            "no more"
        )
    else:
        way_on = (
            "no version that was verified is in the persistent tier: --resume would begin at the "
            f"start{', and asks before' if state.discarded.left[-1].version else ''}"
        )
    return replace(
        state,
        story=replace(
            state.story, ending=msgspec.structs.replace(ending, reason=f"{ending.reason}; {way_on}")
        ),
    )
