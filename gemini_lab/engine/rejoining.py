"""The engine's part in keeping a process through a recovery.

The engine, the model, the script and the node's memory stay. Process groups and the transfer of
versions are made again, and the planned version is restored in place.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gemini_lab.engine.rewinding import Rewinder
from gemini_lab.engine.script_loops import LoopPlace, place_in
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.setup import (
    ReadyEngine,
    exchange_layouts,
    follow,
    restore_planned,
    rewinder_of,
    say_protected,
)
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.errors import CannotGoOnError
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator

OpenReplicator = Callable[[WorkerSession, ReadyEngine], Replicator]


class Rejoining:
    """The recoveries of one rank in its process."""

    def __init__(
        self, session: WorkerSession, ready: ReadyEngine, *, open_replicator: OpenReplicator
    ) -> None:
        self.process = session.kept
        self._session = session
        self._ready = ready
        self._open_replicator = open_replicator

    def enter_loop(self, replicator: Replicator) -> None:
        self.process.enter_loop(self._why_not, stop_traffic=replicator.stop)

    def rejoin(
        self, replicator: Replicator, place: LoopPlace
    ) -> tuple[ReadyEngine, Replicator, Rewinder | None]:
        """Wait at the loop's top for the order to go on; return the parts with which training does.

        Raises:
            CannotGoOnError: This process cannot be kept; another one takes its place.
        """
        start = self._session.go_on()
        replicator.detach()
        if start.plan.version is None:
            raise CannotGoOnError("there is no version to go on from in this process")
        ready = self._ready = go_on(self._session, self._ready, place)
        made = self._open_replicator(self._session, ready)
        self.process.stop_traffic = made.stop
        follow(self._session, ready, made)
        return ready, made, rewinder_of(self._session, ready, made)

    def _why_not(self) -> str:
        """Return why the protected engine cannot be kept in its process; empty if it can."""
        settings, state = self._ready.settings, self._ready.state
        if state.framework.device.type != "cpu":
            return "it trains on a GPU"
        if settings.scheme == "none":
            return 'scheme "none" keeps no versions'
        if settings.replicate == "gradients":
            return "peers make its versions of gradients"
        if settings.verify_every is not None:
            return "its iterations are verified"
        others = (order.obstacle for order in state.script.orders)
        return state.framework.obstacle() or next(filter(None, others), "")


def go_on(session: WorkerSession, ready: ReadyEngine, where: LoopPlace) -> ReadyEngine:
    """Return the same engine with the planned version, beside other ranks' processes.

    Processes that start are in `ready_engine` meanwhile; the calls between ranks match theirs.

    Raises:
        CannotGoOnError: The version cannot be restored in this process.
    """
    start, state, before = session.start, ready.state, ready.place
    session.meet()
    session.code.begin(ready.settings)
    # Its sockets lead to processes that have ended.
    before.group.leave()
    seats = start.seats.placed(ready.settings)
    group = CheckpointGroup(session.store, rank=start.rank, world_size=seats.world_size)
    met = exchange_layouts(state.layout, rank=start.rank, seats=seats, group=group)
    say_protected(session, state, met.fingerprint, seats, ready.settings)
    place = replace(
        before,
        seats=seats,
        group=group,
        lineage=Lineage(run=start.order.run, epoch=start.epoch),
    )
    with session.restoring():
        small = restore_planned(session, partial(_load_in_place, state, where), state, place)
    return replace(ready, place=place, small=small)


def _load_in_place(state: EngineState, where: LoopPlace, payload: memoryview) -> dict[str, object]:
    """Restore a version at the loop's top, if it was sealed there."""
    small = state.peek(payload) or {}
    is_of_loop = bool(small.get("at_top")) and place_in(small["extra"]) == where
    if not is_of_loop or not state.script.can_move_back(small["data"]):
        raise CannotGoOnError(
            "the version was not sealed at the top of this loop, or the iterators of this process "
            "cannot go back to its position in the data"
        )
    state.framework.begin_anew()
    for order in state.script.orders:
        order.begin_anew()
    return state.load(payload, in_place=True)
