"""Going on in the same process after others were lost: what is made anew, and what stays.

The engine, the model, the script and the node's memory stay. The process groups, the way of
versions and whoever uses it are made anew, and the state is that of the version of the plan.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gemini_lab.engine.rewinding import Rewinder
from gemini_lab.engine.script_loops import LoopPlace
from gemini_lab.engine.session import WorkerSession
from gemini_lab.engine.setup import ReadyEngine, go_on
from gemini_lab.engine.version_extras import guard_in
from gemini_lab.errors import CannotGoOnError
from gemini_lab.recovery.guard import Guard
from gemini_lab.transfer.traffic import CheckpointTraffic

OpenTraffic = Callable[[WorkerSession, ReadyEngine], CheckpointTraffic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoined:
    """What training goes on with.

    Attributes:
        ready: The engine, with the version that was put back.
        traffic: Sends versions from now on.
        rewinder: Takes iterations back from now on.
    """

    ready: ReadyEngine
    traffic: CheckpointTraffic
    rewinder: Rewinder | None


class Rejoining:
    """Takes one rank through recoveries in its process.

    Args:
        session: The worker's.
        ready: The engine, as protection began with it.
        open_traffic: Opens the way of versions; all ranks call it together.
    """

    def __init__(
        self, session: WorkerSession, ready: ReadyEngine, *, open_traffic: OpenTraffic
    ) -> None:
        assert session.standing is not None
        self.standing = session.standing
        self._session = session
        self._ready = ready
        self._open_traffic = open_traffic

    def enter_loop(self, traffic: CheckpointTraffic) -> None:
        """The script begins its loop: from here on this process can go on in it."""
        self.standing.stop_traffic = traffic.stop
        self.standing.enter_loop(self._why_not())

    def rejoin(self, traffic: CheckpointTraffic, place: LoopPlace) -> Rejoined:
        """At the loop's top: wait for the word to go on, and do so.

        Args:
            traffic: As it was so far.
            place: Of the script in its loops.

        Raises:
            CannotGoOnError: This process cannot; another one takes its place.
        """
        start = self._session.go_on()
        traffic.detach()
        if start.plan.version is None:
            raise CannotGoOnError("there is no version to go on from in this process")
        ready = self._ready = go_on(self._session, self._ready, place)
        made = self._open_traffic(self._session, ready)
        self.standing.stop_traffic = made.stop
        follow(self._session, ready, made)
        return Rejoined(ready=ready, traffic=made, rewinder=rewinder_of(self._session, ready, made))

    def _why_not(self) -> str:
        """Why what is protected could not go on in its process; empty if it can."""
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


def follow(session: WorkerSession, ready: ReadyEngine, traffic: CheckpointTraffic) -> None:
    """Have the pulse look at this traffic, which need not send the version that was restored."""
    if session.start.plan.tier == "memory":
        traffic.note_whole(ready.state.version)
    session.pulse.watch(
        calls=lambda: traffic.collectives, messages=lambda: ready.place.group.messages
    )


def rewinder_of(
    session: WorkerSession, ready: ReadyEngine, traffic: CheckpointTraffic
) -> Rewinder | None:
    """What takes iterations back, and judges them if the settings ask for it."""
    settings = ready.settings
    if settings.scheme == "none":
        return None
    guard = Guard.of(settings)
    if guard is not None and (known := guard_in(ready.small)) is not None:
        guard.restore(known)
    slab = ready.memory.slab
    return Rewinder(ready.state, slab, traffic, guard=guard, emit=session.emit)
