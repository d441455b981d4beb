"""A run that goes on with another number of nodes than it had: smaller, larger, on purpose or not.

The size is decided where a recovery is planned: a run that is short of machines, and may, takes
those that there are. To change it without a failure all ranks stop where a version is whole, as for
a drain. The shards of the last version are then cut anew from the memory of those who stay
(`recovery.planning`). A size that the script refuses is not tried again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gemini_lab.errors import CapacityError
from gemini_lab.log import events
from gemini_lab.recovery.drains import ask_for_nodes, seat_to_leave
from gemini_lab.recovery.faults import OF_THE_MACHINE, own_error
from gemini_lab.recovery.messages import Inventory, Settle, WorkerEnded
from gemini_lab.recovery.plan import Copy, VersionId
from gemini_lab.recovery.planning import Holders, covering, good_copies, newest_whole
from gemini_lab.recovery.protocol import Emit, Instruction, Send, WriteState
from gemini_lab.recovery.requests import why_no_size
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.stop import Living, Stop
from gemini_lab.seats import in_order
from gemini_lab.settings import Settings

LONGEST_PAUSE_S: Final = 1800.0


def why_not(state: RootState, nodes: int) -> str:
    """Return why this run cannot go on with so many nodes; empty if it can, as far as known."""
    if nodes == state.resize.size:
        return ""
    if state.setup.settings is None:
        return "no worker has told its settings yet"
    if state.job.root:
        return "its root agent is one of the user's own"
    if nodes in state.resize.refused:
        return f"its script was tried with {nodes} nodes and refused"
    placement, settings = state.job.seats.placement, state.setup.settings
    return why_no_size(
        scheme=settings.scheme,
        replicas=settings.replicas,
        nodes=nodes,
        strategy=settings.strategy,
        placed=None if placement is None else placement.nodes,
        workers_per_node=state.seats.workers_per_node,
        model_parallel_size=state.setup.model_parallel_size,
    )


def largest(state: RootState, most: int) -> int:
    """Return the largest number of nodes up to `most` that the run can have; 0 for none."""
    return next((n for n in range(most, 0, -1) if not why_not(state, n)), 0)


def grow_pause_s(state: RootState) -> float:
    """Return the pause before machines that came make the run larger."""
    doubled = state.read_settings().grow_pause_s * 2.0 ** min(state.resize.growths, 20)
    return min(doubled, LONGEST_PAUSE_S)


def patience_s(state: RootState, at_s: float) -> float | None:
    """Return how much longer a run that is short waits for machines; `None`: without end."""
    settings = state.setup.settings
    if settings is None or settings.when_short != "shrink" or state.story.trouble is None:
        return None
    if state.resize.none_come:
        return 0.0
    return max(0.0, state.story.trouble.since_s + settings.shrink_after_s - at_s)


def if_none_comes(state: RootState, at_s: float, living: Living) -> str:
    """Return, in words, what a waiting run does if no machine comes; empty if it waits on."""
    if patience_s(state, at_s) is None:
        return ""
    there = len(usable(state, living))
    if size := largest(state, there):
        after_s = state.read_settings().shrink_after_s
        return f"; if none comes within {after_s:.0f} s, {size} go on"
    return f"; fewer cannot go on: {why_not(state, there)}"


def smaller_sizes(settings: Settings, nodes: int, *, placed: int | None) -> list[int]:
    """Return the smaller numbers of nodes that a run may go on with."""
    if settings.when_short != "shrink":
        return []
    return [
        size
        for size in range(nodes - 1, 0, -1)
        if not why_no_size(
            scheme=settings.scheme,
            replicas=settings.replicas,
            nodes=size,
            strategy=settings.strategy,
            placed=placed,
        )
    ]


def usable(state: RootState, living: Living) -> list[str]:
    """Return nodes that may train: members first, standbys that still import last."""
    here = [node for node in state.members if node is not None and node in living]
    spares = set(state.seats.spares(living)) - {*state.drain.leaving}
    ready_first = sorted(in_order(spares), key=lambda node: not living[node].is_ready)
    return [node for node in (*here, *ready_first) if node not in state.avoided]


def seat_anew(
    at_s: float, state: RootState, living: Living, inventories: Mapping[str, Inventory]
) -> RootState:
    """Return the state with the seats of the size that the run is to have now.

    Args:
        at_s: Now.
        state: The run's, amid a restart.
        living: Who is there.
        inventories: What they hold.
    """
    copies = _ranked(state, inventories)
    best = newest_whole([copy for copy in copies if copy.node in living])
    nodes = usable(state, living)
    if not _have(nodes, best):  # what would be lost without those that are avoided
        trusted = in_order(living.keys() - {*state.nodes.wrong})
        nodes = [*nodes, *(node for node in trusted if node not in nodes)]
    size = _size(at_s, state, len(nodes))
    is_cut = best is not None and len(best[1]) != state.seats.world_size
    if size == state.seats.nodes and (not is_cut or _have(state.members, best)):
        return state
    chosen = covering(nodes, size, {} if best is None else best[1])
    if chosen is None:
        return state
    return _seated(state, size, [*chosen, *[None] * (size - len(chosen))])


def _have(nodes: Collection[str | None], version: tuple[VersionId, Holders] | None) -> bool:
    """Return whether these nodes have every shard of a version."""
    holders, here = () if version is None else version[1].values(), set(nodes)
    return all(not here.isdisjoint(held) for held in holders)


def _size(at_s: float, state: RootState, there: int) -> int:
    """Return how many nodes the run is to have, if `there` of them are available."""
    size = state.resize.size or state.seats.nodes
    if state.resize.resizing and state.resize.resizing <= there:
        size = state.resize.resizing
    if there < size and patience_s(state, at_s) == 0:
        return largest(state, there) or size
    return size


def _ranked(state: RootState, inventories: Mapping[str, Inventory]) -> list[Copy]:
    """Return the copies in memory, each with the world size that made it."""
    ranks = state.seats.world_size
    return [replace(c, ranks=c.ranks or ranks) for c in good_copies(state, inventories)]


def _seated(state: RootState, size: int, members: Sequence[str | None]) -> RootState:
    """Return the state with other seats; the fingerprint includes the world size."""
    settings = state.read_settings()
    seats = replace(state.seats, nodes=size, members=tuple(members), placement=None)
    shard_bytes = (
        state.setup.shard_bytes * state.seats.nodes // size
    )  # nearly: layouts are not made yet
    try:
        placed = seats.placed(settings, shard_bytes=shard_bytes)
    except CapacityError:  # a worker says so, and of which node
        placed = seats.placed(settings)
    return state.with_parts(
        replace(state.setup, placed=placed, fingerprint=""),
        replace(state.resize, is_unsettled=True),
    )


def holders_of(state: RootState) -> Holders:
    """Return the nodes that keep each shard by the placement."""
    seats = state.seats
    return {
        rank: [str(seats.members[p]) for p in seats.holders.holders[seats.position_of(rank)]]
        for rank in seats.ranks
    }


def _missing(count: int) -> str:
    return "a machine is missing" if count == 1 else f"{count} machines are missing"


class Resizes:
    """The resizes of a run.

    What it changes of a state it gives as a `WriteState`, which whoever calls it takes on.

    Args:
        stop: Of the ranks.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._waits_for = ""  # what was last said of a size that cannot be had now

    def ask(self, number: int, nodes: int, state: RootState) -> Iterator[Instruction]:
        """Note the size that a user wants; a new root agent reads the same request again."""
        if number <= state.resize.asked_size:
            return
        resize = replace(
            state.resize,
            asked_size=number,
            wanted=nodes,
            refused=tuple(n for n in state.resize.refused if n != nodes),  # the user tries it again
            resized_at_s=0.0,  # no pause for what a user wants
            growths=0,
        )
        state = replace(state, resize=resize)
        self._waits_for = ""
        yield WriteState(state=state)
        yield Emit(event=events.ResizeWanted(nodes=nodes))

    def begin_if_due(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Order all ranks to stop if the run is to have another size and can have it now."""
        is_idle = state.phase == "running" and not self._stop.is_under_way
        if not is_idle or seat_to_leave(state) or state.goal == state.seats.nodes:
            return
        size, reason = self._next_size(at_s, state, living)
        if not size:
            yield from self._wait(state, living, reason)
            return
        self._waits_for = ""
        yield from self._stop.begin(
            at_s, state.with_parts(replace(state.resize, resizing=size)), living
        )

    def _next_size(self, at_s: float, state: RootState, living: Living) -> tuple[int, str]:
        """Return the size that the run can have now, or 0 and why it stays as it is."""
        now, goal = state.seats.nodes, state.goal
        ready = [node for node in usable(state, living) if living[node].is_ready]
        if goal < now:
            reason = why_not(state, goal)
            if not reason and covering(ready, goal, holders_of(state)) is None:
                reason = (
                    f"no {goal} nodes have all shards of a version between them; go there in "
                    "steps, each down to a half at most"
                )
            return (0, reason) if reason else (goal, "")
        size = largest(state, min(goal, len(ready)))
        if size <= now:
            return 0, why_not(state, goal) or _missing(goal - now)
        pause_s = grow_pause_s(state)
        if state.resize.resized_at_s and at_s < state.resize.resized_at_s + pause_s:
            return 0, f"its size has just changed; it grows {pause_s:.0f} s after that"
        return size, ""

    def _wait(self, state: RootState, living: Living, reason: str) -> Iterator[Instruction]:
        said = f"{state.goal}: {reason}"
        if said == self._waits_for:
            return
        self._waits_for = said
        yield Emit(event=events.ResizeWaiting(nodes=state.goal, reason=reason))
        yield from ask_for_nodes(state, living, f"the run is to have {state.goal} nodes")

    def refuse(self, state: RootState, exited: WorkerEnded) -> Iterator[Instruction]:
        """Go back to the old size if a worker of the new size ended with an error of its own.

        Says nothing where that was not the size's doing.
        """
        nodes = state.seats.nodes
        is_new = state.phase == "starting" and state.resize.size not in {0, nodes}
        is_its = own_error(exited) or (exited.error and exited.error.error in OF_THE_MACHINE)
        if not is_new or exited.error is None or not is_its:
            return
        reason = f"rank {exited.rank}: {exited.error.error}: {exited.error.text}"
        wanted = 0 if state.resize.wanted == nodes else state.resize.wanted
        refused = (*state.resize.refused, nodes)
        yield WriteState(
            state=state.with_parts(
                replace(state.resize, refused=refused, wanted=wanted, resizing=0)
            )
        )
        yield Emit(event=events.ResizeRefused(nodes=nodes, reason=reason))

    def end(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Emit a changed size after training has resumed."""
        before, nodes = state.resize.size, state.seats.nodes
        state = state.with_parts(replace(state.resize, size=nodes, resizing=0))
        if before not in {0, nodes}:
            is_calm = at_s > state.resize.resized_at_s + LONGEST_PAUSE_S
            growths = (0 if is_calm else state.resize.growths) + (nodes > before)
            state = state.with_parts(replace(state.resize, resized_at_s=at_s, growths=growths))
        yield WriteState(state=state)
        if before not in {0, nodes}:
            yield Emit(
                event=events.Resized(
                    nodes_then=before,
                    nodes=nodes,
                    wanted=state.goal,
                    iteration=state.reached.iteration,
                )
            )
        if nodes < state.goal:
            yield from ask_for_nodes(state, living, f"the run is to have {state.goal} nodes")

    def settle(self, state: RootState, living: Living) -> Iterator[Instruction]:
        """Free slabs of other world sizes, because a version made since is whole."""
        if not state.resize.is_unsettled or state.phase != "running":
            return
        yield WriteState(state=state.with_parts(replace(state.resize, is_unsettled=False)))
        for node in in_order(living):
            yield Send(to=node, order=Settle(epoch=state.epoch, ranks=state.seats.world_size))
