"""Moving a node's ranks elsewhere before its machine goes: a planned drain.

All ranks stop where a version is whole, and start again with another machine in the node's place:
nothing is done again. One node is moved at a time, because two that keep each other's replicas
would take them along.
"""

from collections.abc import Iterator
from dataclasses import replace

from gemini_lab.log import events
from gemini_lab.recovery.kept_ranks import Ahead
from gemini_lab.recovery.messages import Drained
from gemini_lab.recovery.protocol import Emit, Instruction, RequestNodes, Send, WriteState
from gemini_lab.recovery.requests import why_no_drain
from gemini_lab.recovery.root_state import ACTIVE, RESTARTING, RootState
from gemini_lab.recovery.stop import Living, Stop
from gemini_lab.seats import in_order, listed


def seat_to_leave(state: RootState) -> str:
    """Return the node with ranks that is to leave next; empty if there is none."""
    seated = [node for node in in_order(state.drain.leaving) if node in state.members]
    return seated[0] if seated else ""


def free_to_go(state: RootState) -> list[str]:
    """Return nodes that are to leave, have no ranks, and get none now."""
    if state.phase in RESTARTING:
        return []
    seated = state.members if state.phase in ACTIVE else ()
    return [node for node in in_order(state.drain.leaving) if node not in seated]


def why_not_now(state: RootState, living: Living) -> str:
    """Return why a node's ranks cannot move now; empty if they can."""
    settings = state.read_settings()
    if reason := why_no_drain(scheme=settings.scheme, replicas=settings.replicas):
        return reason
    spares = set(state.seats.spares(living)) - state.avoided - {*state.drain.leaving}
    if not spares:
        return "no standby is there to take its place"
    if not any(living[node].is_ready for node in spares):
        imports = "imports" if len(spares) == 1 else "import"
        return f"{listed(in_order(spares))} still {imports} what workers need"
    return ""


def moving(state: RootState) -> RootState:
    """Return the state for the next start, which avoids the node that ranks stopped for."""
    if not state.drain.holding:
        return state
    return state.with_parts(
        replace(state.drain, moved=(*state.drain.moved, state.drain.holding), holding="")
    )


def forgotten(state: RootState, node: str) -> RootState:
    """Return the state without a dead node: another machine of its name is not to go."""
    return replace(state, drain=state.drain.without(node), nodes=state.nodes.without(node))


def ask_for_nodes(state: RootState, living: Living, reason: str) -> Iterator[Instruction]:
    """Request machines until enough of them stay."""
    wanted = nodes_wanted(state, living)
    if len(living) < wanted:
        yield Emit(event=events.NodeRequested(reason=reason))
        yield RequestNodes(wanted=wanted, reason=reason)


def nodes_wanted(state: RootState, living: Living) -> int:
    """Return how many nodes are needed, with standbys and those that are about to go."""
    going = {*state.drain.leaving, *state.drain.moved, *state.nodes.wrong} & living.keys()
    return max(state.goal, state.seats.nodes) + state.job.seats.standbys + len(going)


class Drains:
    """The drains of a run.

    What it changes of a state it gives as a `WriteState`, which whoever calls it takes on.

    Args:
        stop: Of the ranks.
        ahead: What starts new processes for them, where the others' are kept.
    """

    def __init__(self, stop: Stop, ahead: Ahead) -> None:
        self._stop, self._ahead = stop, ahead
        self._waits_for = ""  # what was last said of a node that cannot leave yet

    def ask(
        self, state: RootState, living: Living, node: str, *, within_s: float | None = None
    ) -> Iterator[Instruction]:
        """Note that a node is to leave; a second request changes nothing."""
        if node not in living or node in state.drain.leaving:
            return
        self._ahead.note_notice(node, within_s)
        if node not in state.drain.moved:
            yield Emit(event=events.NodeLeaving(name=node, within_s=within_s))
        moved = state.drain.moved if node in state.members else (*state.drain.moved, node)
        state = state.with_parts(
            replace(
                state.drain, leaving=(*state.drain.leaving, node), moved=tuple(dict.fromkeys(moved))
            )
        )
        yield WriteState(state=state)

    def let_go(self, state: RootState, living: Living) -> Iterator[Instruction]:
        """Release nodes that are to leave and have no ranks."""
        free = free_to_go(state)
        if not free:
            return
        left = tuple(node for node in state.drain.leaving if node not in free)
        moved = tuple(dict.fromkeys((*state.drain.moved, *free)))
        state = state.with_parts(replace(state.drain, leaving=left, moved=moved))
        yield WriteState(state=state)
        for node in free:
            self._ahead.forget(node)
            yield Emit(event=events.NodeDrained(name=node))
            if node in living:
                yield Send(to=node, order=Drained(epoch=state.epoch))

    def begin_if_due(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Order all ranks to stop if a leaving node's ranks can move now."""
        node = self._ahead.leaving or seat_to_leave(state)
        if not node or state.phase != "running" or self._stop.is_under_way:
            return
        if reason := why_not_now(state, living):
            yield from self._wait(state, living, node, reason)
            return
        self._waits_for = ""
        if self._ahead.is_awaited(state, living, node):
            yield from self._ahead.begin(at_s, state, living, node)
            return
        yield from self._stop.begin(
            at_s, state.with_parts(replace(state.drain, holding=node)), living
        )

    def _wait(
        self, state: RootState, living: Living, node: str, reason: str
    ) -> Iterator[Instruction]:
        if (said := f"{node}: {reason}") != self._waits_for:
            self._waits_for = said
            yield Emit(event=events.DrainWaiting(name=node, reason=reason))
            yield from ask_for_nodes(state, living, f"{node} is to leave")

    def end(self, state: RootState, *, was_drain: bool) -> Iterator[Instruction]:
        """Give up drains of nodes that the run could not do without, after training has resumed.

        Args:
            state: The run's.
            was_drain: Whether the ranks had stopped for a node to leave, and for nothing else.
        """
        needed = [node for node in state.drain.moved if node in state.members]
        for node in needed:
            self._ahead.forget(node)
            drain = state.drain.without(node)
            if was_drain:
                reason = "its memory or its place could not be done without; ask once more later"
                yield Emit(event=events.DrainWaiting(name=node, reason=reason, is_given_up=True))
            else:
                drain = replace(drain, leaving=state.drain.leaving)
            state = replace(state, drain=drain)
        if needed:
            yield WriteState(state=state)
