"""Which rank's end came first and on its own account, and which only followed from it."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

from gemini_lab.recovery.faults import is_of_the_network
from gemini_lab.report.recovery import Recovery, WorkerExit

Part = Literal["raised", "was killed", "left", "lost its peers"]
"""What a worker's end looks like: an error of its script's own, a signal, an end with status 0, or
an error that ranks raise because another one is gone."""
ORDER: Final[tuple[Part, ...]] = ("raised", "was killed", "left", "lost its peers")
"""Who is blamed first."""
MOST: Final = 12
LONGEST: Final = 32


def part_of(gone: WorkerExit) -> Part:
    """Classify the way in which a worker ended."""
    if not gone.how.startswith("exit code"):
        return "was killed"
    if gone.how == "exit code 0":
        return "left"
    return "lost its peers" if is_of_the_network(gone.error) else "raised"


def culprit_of(exits: Collection[WorkerExit]) -> WorkerExit | None:
    """The worker that ended first of those that ended on their own account."""
    return min(
        exits, key=lambda one: (one.epoch, ORDER.index(part_of(one)), one.at_s), default=None
    )


def blamed_for(recovery: Recovery) -> WorkerExit | None:
    """The worker whose end a recovery is told by.

    None where another cause is known, such as a node that was lost, and all who ended had only lost
    their peers with it.
    """
    gone = culprit_of(recovery.exits)
    is_known = bool(recovery.injections or recovery.lost_nodes)
    return None if gone and is_known and part_of(gone) == "lost its peers" else gone


def culprits(exits: Sequence[WorkerExit]) -> Iterator[str]:
    """A table for people, try by try: who ended when and how, and whom the others followed."""
    for epoch in sorted({one.epoch for one in exits}):
        found = sorted((one for one in exits if one.epoch == epoch), key=lambda one: one.at_s)
        first = culprit_of(found)
        assert first is not None
        if len(found) > 1:
            yield f"  {len(found)} ranks ended; the others followed from the one that is marked:"
        shown = found[:MOST] if first in found[:MOST] else [first, *found[: MOST - 1]]
        for one in shown:
            mark = ">" if one is first else " "
            after = f"{one.at_s - found[0].at_s:+.2f} s"
            who = f"rank {one.rank} on {one.node}"
            yield f"  {mark} {who:<18}{after:>8}  {_how(one)}"
        if len(found) > len(shown):
            yield f"    ... and {len(found) - len(shown)} more"


def _how(gone: WorkerExit) -> str:
    part = part_of(gone)
    if part in {"was killed", "left"}:
        return f"{part} ({gone.how})"
    error = gone.error or gone.how
    return f"{part:<16}{error if len(error) <= LONGEST else error[: LONGEST - 1] + '…'}"
