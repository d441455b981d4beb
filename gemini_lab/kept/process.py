"""A worker's process in a recovery: the one interface to keeping it, for session and training.

`KeptProcess` is the interface, and a process that ends with the recovery as any other.
`StandingProcess` stands still in the recovery and continues with other ranks. Two of its threads
take part. The one that listens to the node's agent breaks off everything that waits for the lost
rank, and answers once nothing writes to the node's memory. Training's thread brings the iteration
to its end, with collectives that do nothing, and waits at the loop's top for the order to go on.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from gemini_lab.errors import GeminiError
from gemini_lab.kept.groups import StandingGroups, obstacle
from gemini_lab.log.events import AnyEvent, Note
from gemini_lab.recovery.messages import (
    GoOn,
    Message,
    ReadyToJoin,
    Severed,
    Stand,
    Stands,
    WorkerStart,
)
from gemini_lab.settings import Settings
from gemini_lab.transfer.group import join_rendezvous, rendezvous_client
from gemini_lab.transfer.sockets import can_be_found

KeptOrder = Stand | GoOn
"""An order of the node's agent that only kept processes know."""
NOT_ASKED: Final = "the launcher was not told to keep processes"
NOT_IN_LOOP: Final = (
    "it is not in a loop over protected.steps, and another one counts by itself: it would go on "
    "counting from an iteration that is thrown away"
)
STOP_S: Final = 3.0
"""The limit for breaking off a version that is being sent."""
LOOK_S: Final = 1.0
RECORD_S: Final = 120.0
IDLE_S: Final = 30.0
"""The longest that training's thread may do nothing once other ranks go on."""
NOBODY: Final = b""
"""Stands for a record that no other process can be played."""
_RECORD: Final = "gemini_lab/set_up/"


class Heart(Protocol):
    """The worker's heartbeat, which watches training's thread."""

    @property
    def idle_s(self) -> float: ...

    def place(self) -> str: ...


class Tie(Protocol):
    """The worker's session, with the connection to its agent."""

    start: WorkerStart

    @property
    def pulse(self) -> Heart: ...

    def say(self, message: Message) -> None: ...

    def emit(self, event: AnyEvent) -> None: ...


class KeptProcess:
    """A process that is not kept: each recovery ends it, and another one starts in its place."""

    def __init__(self, why_not: str = NOT_ASKED) -> None:
        self.why_not = why_not  # why this process could not continue now; empty if it can
        # Breaks off the version that is being sent; returns whether that was in time.
        self.stop_traffic: Callable[[float], bool] = lambda _: True
        self._session: Tie | None = None

    @property
    def is_broken(self) -> bool:
        """Return whether the iteration under way will be discarded, because a rank is lost."""
        return False

    # -- the session -----------------------------------------------------------------------------

    def attach(self, session: Tie) -> None:
        """Answer the node's agent through this session from now on."""
        self._session = session
        if self.why_not != NOT_ASKED and session.start.rank == 0:
            session.emit(Note(text=f"keep_processes keeps no process here: {self.why_not}"))

    def on_order(self, order: KeptOrder, fds: Sequence[int] = ()) -> None:
        """Do what the node's agent orders; called on the thread that listens to it.

        Args:
            order: The order.
            fds: The port of the ranks' store, if this process is to serve it.
        """
        del fds  # no port comes, as this process never goes on
        if isinstance(order, Stand):
            self._answer(order, self.why_not)

    def _answer(self, order: Stand, reason: str) -> None:
        assert self._session is not None
        rank = self._session.start.rank
        self._session.say(Stands(rank=rank, epoch=order.epoch, reason=reason))

    def stand_by(self) -> None:
        """Tell the agent that this process, which was started ahead, could take its place.

        Raises:
            GeminiError: It could not join other ranks.
        """
        raise GeminiError(f"this process cannot join others: {self.why_not}")

    def is_to_stand(self, within_s: float) -> bool:
        """Wait until other ranks end; return whether this process then stands still."""
        time.sleep(within_s)
        return False

    def wait(self) -> tuple[WorkerStart, Any]:
        """Wait at the loop's top; return the new start, and the store that the ranks now share."""
        raise GeminiError(f"this process cannot go on: {self.why_not}")

    # -- training's thread -----------------------------------------------------------------------

    @contextmanager
    def restoring(self, store: Any) -> Iterator[None]:
        """Load the version of the plan inside the block; all ranks do so together."""
        del store
        yield

    def unless_broken(self, say: Callable[[AnyEvent], None]) -> Callable[[AnyEvent], None]:
        """Return what emits the events of iterations that count, and drops all others."""
        return say

    def is_lost_with_a_rank(self) -> bool:
        """Return whether a transfer failed because of a lost rank that this process outlives."""
        return False

    def enter_loop(
        self, why_not: Callable[[], str], *, stop_traffic: Callable[[float], bool]
    ) -> None:
        """End the set-up: from here on this process can be kept.

        Args:
            why_not: Why the protected engine does not allow it; empty if it does.
            stop_traffic: Breaks off the version on its way; returns whether that was done in time.
        """

    def train_without_loop(self) -> None:
        """Note that the script trains outside of its loop: no other process needs its set-up."""

    def leave_loop(self) -> None:
        """Note that training is over."""


class StandingProcess(KeptProcess):
    """A process that stands still in a recovery, and continues with other ranks."""

    def __init__(
        self,
        groups: StandingGroups,  # training's
        store: Any,  # shared by the ranks that start with this one
        *,
        # Whether this process takes a lost rank's place, beside others that were kept.
        is_late: bool,
    ) -> None:
        super().__init__(NOT_IN_LOOP)
        self.groups, self._store = groups, store
        groups.tell = self._notice_severed
        self._is_late = is_late
        self._stands_by = False
        self._is_published = False
        self._next: tuple[WorkerStart, Any] | None = None
        self._told = threading.Event()
        self._is_at_top = False  # training's thread, waiting for that

    @property
    def is_broken(self) -> bool:
        return self.groups.is_broken

    # -- the thread that listens to the agent ----------------------------------------------------

    def attach(self, session: Tie) -> None:
        self._session = session

    def on_order(self, order: KeptOrder, fds: Sequence[int] = ()) -> None:
        match order:
            case Stand():
                self._answer(order, self.stand())
            case GoOn(start=start):
                self._go_on(start, *fds)
                if not self._stands_by:
                    threading.Thread(target=self._see_it_go_on, daemon=True).start()
                self._stands_by = False

    def stand_by(self) -> None:
        assert self._session is not None
        start, self._stands_by = self._session.start, True
        self._session.say(ReadyToJoin(rank=start.rank, epoch=start.epoch))

    def stand(self) -> str:
        """Break off what waits for a lost rank; return why this process cannot go on.

        If it can, nothing of it writes to memory any more.
        """
        if self._stands_by:
            return ""  # it writes nothing before it has joined
        if reason := self.why_not or self.groups.flaw:
            return reason
        self.groups.break_off()
        if not self.stop_traffic(STOP_S):
            return f"a version on its way was not broken off within {STOP_S:.0f} s"
        return ""

    def _go_on(self, start: WorkerStart, port: int | None = None) -> None:
        """Wake training's thread, once new ranks can read what kept ranks recorded."""
        store = join_rendezvous(start.rendezvous, port)
        self._publish(store, start)
        self._next = start, store
        self._told.set()

    @property
    def is_awaited(self) -> bool:
        """Return whether the order to go on has come, and training's thread is elsewhere.

        One that stands at the loop's top has waited for it, which may have taken as long as another
        node's imports, and takes its time to wake up.
        """
        return self._told.is_set() and not self._is_at_top

    def _see_it_go_on(self) -> None:
        """End this process if training's thread waits for good and comes to no loop's top."""
        session = self._session
        assert session is not None
        while self.is_awaited:
            if session.pulse.idle_s >= IDLE_S:
                text = (
                    f"rank {session.start.rank} does not go on, and does nothing, at {{}}; it ends"
                )
                session.emit(Note(text=text.format(session.pulse.place())))
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1.0)

    def _notice_severed(self) -> None:
        """Report a connection that broke although no rank is known to be lost."""
        if not self.why_not and self._session is not None:
            start = self._session.start
            self._session.say(Severed(rank=start.rank, epoch=start.epoch))

    # -- training's thread -----------------------------------------------------------------------

    def is_to_stand(self, within_s: float) -> bool:
        return self.groups.was_broken_off(within_s)

    def wait(self) -> tuple[WorkerStart, Any]:
        self._is_at_top = True
        while not self._told.wait(LOOK_S):
            pass  # the agent ends this process if nothing is to come
        self._told.clear()
        self._is_at_top = False
        assert self._next is not None
        return self._next

    @contextmanager
    def restoring(self, store: Any) -> Iterator[None]:
        with self.groups.record.restoring():
            if self._is_late or self.is_broken:
                self.groups.join(store)
            yield
        if self._is_late:
            self.groups.stay_apart()

    def unless_broken(self, say: Callable[[AnyEvent], None]) -> Callable[[AnyEvent], None]:
        def told(event: AnyEvent) -> None:
            if not self.is_broken:
                say(event)

        return told

    def is_lost_with_a_rank(self) -> bool:
        return not self.why_not and self.groups.was_broken_off()

    def enter_loop(
        self, why_not: Callable[[], str], *, stop_traffic: Callable[[float], bool]
    ) -> None:
        self.stop_traffic = stop_traffic
        obstacle = why_not()
        self.groups.record.close()
        if self._is_late:
            self.groups.join()
            self._is_late = False
        flaw = self.groups.flaw or self.groups.record.flaw
        self.why_not = obstacle or (f"of its set-up: {flaw}" if flaw else "")
        self._publish_once()

    def train_without_loop(self) -> None:
        self.groups.record.abandon()
        self._publish_once()

    def leave_loop(self) -> None:
        self.why_not = NOT_IN_LOOP

    def _publish_once(self) -> None:
        """Publish the record, once, for processes that start ahead of a move."""
        if not self._is_published and self._session is not None:
            self._is_published = True
            self._publish(self._store, self._session.start)

    def _publish(self, store: Any, start: WorkerStart) -> None:
        """Leave the record of each group that this rank leads where new ranks find it."""
        for group in self.groups.led_by(start.rank, start.kept):
            data = NOBODY if self.why_not else self.groups.record.encode(group)
            store.set(_RECORD + group, data)


def kept_process(start: WorkerStart, store: Any) -> KeptProcess:
    """Return a starting worker's process, kept if settings ask for that and torch allows it.

    If it is, torch makes training's groups by this room from now on.
    """
    told = Settings.layered(start.order.defaults, start.order.settings)
    if not told.keep_processes:
        return KeptProcess()
    why_not = (
        obstacle() if can_be_found() else "this system does not tell a process its connections"
    )
    if why_not:
        return KeptProcess(why_not)
    groups = StandingGroups(kept=start.kept, told=partial(_recorded, start, store))
    groups.install()
    return StandingProcess(groups, store, is_late=bool(start.kept))


def _recorded(start: WorkerStart, store: Any, group: str) -> bytes:
    """Return what the kept ranks of a group recorded of their set-up.

    Raises:
        GeminiError: They published nothing that another process could be played.
    """
    there = rendezvous_client(start.joins) if start.joins else store
    there.wait([_RECORD + group], timedelta(seconds=RECORD_S))
    data: bytes = there.get(_RECORD + group)
    if data == NOBODY:
        raise GeminiError("the set-up of the ranks that train cannot be told to another process")
    return data
