"""A worker that keeps its process through a recovery: it stands still, and goes on with others.

Two threads take part. The one that hears the node's agent breaks off what waits for the lost rank,
and answers when nothing writes to the node's memory any more. Training's thread brings the
iteration to its end, with collectives that do nothing, and waits at the loop's top for the word to
go on.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gemini_lab.errors import GeminiError
from gemini_lab.log.events import AnyEvent
from gemini_lab.recovery.messages import WorkerStart
from gemini_lab.transfer.set_up_record import SetUpRecord
from gemini_lab.transfer.standing_groups import StandingGroups

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

STOP_S: Final = 3.0
"""For a version on its way to be broken off."""
LOOK_S: Final = 1.0
RECORD_S: Final = 120.0
NOBODY: Final = b""
"""In place of a record: nobody can be told of this set-up."""
_RECORD: Final = "gemini_lab/set_up"
NOT_IN_LOOP: Final = (
    "it is not in a loop over protected.steps, and another one counts by itself: it would go on "
    "counting from an iteration that is thrown away"
)


class Standing:
    """What keeps this process through recoveries.

    Args:
        groups: Training's.
        is_late: Whether this process takes a lost rank's place, beside others that were kept.
        tell: Leaves what one that comes late is to know of the set-up; one rank does.

    Attributes:
        groups: The same.
        why_not: Why this process could not go on now; empty if it can.
        stop_traffic: Breaks off the version on its way; says whether that was done in time.
        say_severed: Tells that a connection broke, and nobody is known to be lost.
    """

    def __init__(
        self,
        groups: StandingGroups,
        *,
        is_late: bool,
        tell: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.groups = groups
        self._tell = tell
        self.why_not = NOT_IN_LOOP
        self.stop_traffic: Callable[[float], bool] = lambda _: True
        self.say_severed: Callable[[], None] = lambda: None
        groups.tell = self._notice_severed
        self._served: Any = None  # a store for all, as long as this process serves it
        self._is_late = is_late
        self._has_told = False
        self._next: tuple[WorkerStart, Any] | None = None
        self._told = threading.Event()
        self._is_at_top = False  # training's thread, waiting for that

    @classmethod
    def of(cls, start: WorkerStart, store: Any) -> "Standing":
        """For a worker that starts; training's groups are made of it from now on.

        Raises:
            GeminiError: The ranks that were kept said nothing of their set-up.
        """
        is_late = bool(start.kept)
        record = SetUpRecord()
        if is_late:
            told = rendezvous_client(start.joins) if start.joins else store
            record = _record_in(told)
        groups = StandingGroups(record=record, is_alone=is_late)
        groups.install()
        if is_late or start.rank != 0:
            return cls(groups, is_late=is_late)
        return cls(groups, is_late=False, tell=lambda data: store.set(_RECORD, data))

    # -- training's thread -----------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        """Whether the iteration under way is thrown away."""
        return self.groups.is_broken

    def unless_broken(self, say: Callable[[AnyEvent], None]) -> Callable[[AnyEvent], None]:
        """Says what is of an iteration that counts, and nothing of one that is thrown away."""

        def told(event: AnyEvent) -> None:
            if not self.is_broken:
                say(event)

        return told

    def is_lost_with_a_rank(self) -> bool:
        """Whether a transfer failed because a rank is lost, and this process is to go on."""
        return not self.why_not and self.groups.was_broken_off()

    def is_to_stand(self, within_s: float) -> bool:
        """Wait for the word that other ranks end; whether it came."""
        return self.groups.was_broken_off(within_s)

    def begin_restore(self, store: Any) -> None:
        """All ranks are here: what they say to one another now is no part of a set-up."""
        self.groups.record.pause()
        if self._is_late or self.is_broken:
            self.groups.join(store)

    def end_restore(self) -> None:
        """The state is there; one that comes late goes through the rest of its set-up alone."""
        self.groups.record.resume()
        self.groups.record.engine_is_made()
        if self._is_late:
            self.groups.stay_apart()

    def enter_loop(self, why_not: str) -> None:
        """The set-up is over.

        Args:
            why_not: Why this process could not be kept, for what it protects; empty if it can.
        """
        self.groups.record.close()
        if self._is_late:
            self.groups.join()
            self._is_late = False
        flaw = self.groups.flaw or self.groups.record.flaw
        self.why_not = why_not or (f"of its set-up: {flaw}" if flaw else "")
        self._leave_record(NOBODY if self.why_not else self.groups.record.encode())

    def train_without_loop(self) -> None:
        """The script trains, and not in its loop: nobody needs to know its set-up."""
        self.groups.record.abandon()
        self._leave_record(NOBODY)

    def _leave_record(self, data: bytes) -> None:
        """For processes that start ahead, while these ranks meet where they do; once."""
        if not self._has_told:
            self._has_told = True
            self._tell(data)

    def leave_loop(self) -> None:
        """Training is over."""
        self.why_not = NOT_IN_LOOP

    def wait(self) -> tuple[WorkerStart, Any]:
        """At the loop's top: how to go on, and the store that the ranks share from now on."""
        self._is_at_top = True
        while not self._told.wait(LOOK_S):
            pass  # the agent ends this process if nothing is to come
        self._told.clear()
        self._is_at_top = False
        assert self._next is not None
        return self._next

    # -- the thread that hears the agent ---------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether the word to go on has come, and training's thread is not there to hear it.

        One that stands at the loop's top has waited for it, which may have taken as long as another
        node's imports, and takes its time to wake up.
        """
        return self._told.is_set() and not self._is_at_top

    def stand(self) -> str:
        """Break off what waits for a lost rank.

        Returns:
            Why this process cannot go on; empty if nothing of it writes to memory any more.
        """
        if self.why_not:
            return self.why_not
        self.groups.break_off()
        if not self.stop_traffic(STOP_S):
            return f"a version on its way was not broken off within {STOP_S:.0f} s"
        return ""

    def serve(self, host: str) -> int:
        """Serve a store for all ranks, where every process goes on; the port."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

        self._served = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return int(self._served.port)

    def go_on(self, start: WorkerStart) -> None:
        """The word to go on; the first of those that were kept tells the others of its set-up."""
        store = rendezvous_client(start.rendezvous)
        if start.rank == min(start.kept):
            store.set(_RECORD, self.groups.record.encode())  # type: ignore[arg-type]  # bytes, too
        self._next = start, store
        self._told.set()

    def _notice_severed(self) -> None:
        if not self.why_not:
            self.say_severed()


def _record_in(store: Any) -> SetUpRecord:
    """What the ranks that train left of their set-up.

    Raises:
        GeminiError: They left nothing that another process could be told.
    """
    store.wait([_RECORD], timedelta(seconds=RECORD_S))
    data = store.get(_RECORD)
    if data == NOBODY:
        raise GeminiError("the set-up of the ranks that train cannot be told to another process")
    return SetUpRecord.decode(data)


def rendezvous_client(address: str) -> "TCPStore":
    """The job's store, which another process serves."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False)
