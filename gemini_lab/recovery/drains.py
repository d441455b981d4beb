"""Moving a node's ranks elsewhere before its machine goes: a planned drain.

All ranks stop where a version is whole, and start again with another machine in the node's place:
nothing is done again. One node is moved at a time, because two that keep each other's replicas
would take them along.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from gemini_lab.recovery.protocol import ACTIVE, RESTARTING, RootState
from gemini_lab.seats import in_order, listed

LATE_S: Final = 20.0
"""So long after the word, those are named that still train."""


@dataclass(slots=True)
class Holding:
    """What the root agent has heard of the ranks that are stopping.

    Attributes:
        since_s: When they were told.
        held: Those that have stopped.
        is_late_told: Whether those that have not were named.
    """

    since_s: float
    held: set[int] = field(default_factory=set)
    is_late_told: bool = False

    def late(self, at_s: float, ranks: Collection[int]) -> str:
        """Who is waited for, once and in words; empty if there is nothing to say yet."""
        if self.is_late_told or at_s - self.since_s < LATE_S:
            return ""
        self.is_late_told = True
        away = listed([str(rank) for rank in ranks if rank not in self.held])
        return (
            f"a node is to leave; rank {away} has not come to the end of its iteration in "
            f"{at_s - self.since_s:.0f} s, and is waited for"
        )


def why_never(*, scheme: str, replicas: int) -> str:
    """Why no node of a job with these settings can be drained; empty if they can."""
    if scheme == "none":
        return 'with scheme "none" there are no versions with which its ranks could go on elsewhere'
    if replicas == 1:
        return "with one replica nobody else has its shards; use 2 or more"
    return ""


def seat_to_leave(state: RootState) -> str:
    """The node that is to leave next and has ranks; empty if there is none."""
    seated = [node for node in in_order(state.leaving) if node in state.members]
    return seated[0] if seated else ""


def free_to_go(state: RootState) -> list[str]:
    """Those that are to leave, have no ranks, and will not be given any now."""
    if state.phase in RESTARTING:
        return []
    seated = state.members if state.phase in ACTIVE else ()
    return [node for node in in_order(state.leaving) if node not in seated]


def why_not_now(
    state: RootState, spares: Collection[str], *, importing: Collection[str] = ()
) -> str:
    """What stands against moving a node's ranks now; empty if nothing does.

    Args:
        state: The run's.
        spares: Nodes without a position.
        importing: Nodes on which a start would have to wait: they will soon be ready.
    """
    settings = state.read_settings()
    if reason := why_never(scheme=settings.scheme, replicas=settings.replicas):
        return reason
    usable = set(spares) - state.avoided - {*state.leaving}
    if not usable:
        return "no standby is there to take its place"
    if not usable - {*importing}:
        return f"{listed(in_order(usable))} still imports what workers need"
    return ""


def moving(state: RootState) -> RootState:
    """The state with which workers start again: the node that they stopped for is avoided."""
    if not state.holding:
        return state
    return replace(state, moved=(*state.moved, state.holding), holding="")


def forgotten(state: RootState, node: str) -> RootState:
    """The state when a node is dead: another machine of its name is not the one that was to go."""
    return replace(
        state,
        leaving=tuple(name for name in state.leaving if name != node),
        holding="" if state.holding == node else state.holding,
        moved=tuple(name for name in state.moved if name != node),
    )


def going(state: RootState, living: Collection[str]) -> int:
    """How many of the living will not be here for long, so that others are needed."""
    return len({*state.leaving, *state.moved} & {*living})
