"""The tie between a worker and its agent: who we are in the job, and whom to tell what happens."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
from torch.distributed import DistStoreError

from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.own_code import SameCode
from gemini_lab.engine.reshard_sources import UnusableCopyError
from gemini_lab.engine.witness import Witness
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.kept.process import KeptProcess
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent, Note, OfWorker, Unprotected
from gemini_lab.recovery.messages import (
    CutLinks,
    EventSaid,
    Flawed,
    GoBack,
    GoOn,
    Held,
    Hold,
    Message,
    OldSlabsGiven,
    OldSlabsWanted,
    Refused,
    RestoreFailed,
    SlabRequest,
    Stand,
    WorkerStart,
)
from gemini_lab.shard.layout import ShardLayout
from gemini_lab.transfer.group import rendezvous_client
from gemini_lab.transfer.sockets import own_ends, shut_those_to
from gemini_lab.wire.local import LocalChannel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

OTHER_S: Final = 10.0
"""For the other worker to say where its connections end."""


def cut_link(rendezvous: str, rank: int, other: int) -> int:
    """Shut this rank's connections to another one, which calls this as well; return how many.

    The other end may have been first.

    Raises:
        RuntimeError: The other rank does not say where its connections end, or the store is gone.
    """
    # Before the store is asked: its connection is not to be cut.
    ours, theirs = own_ends(), _key(other, rank)  # without the connection that tells of them
    store = rendezvous_client(rendezvous)
    store.set(_key(rank, other), json.dumps(ours))
    store.wait([theirs], timedelta(seconds=OTHER_S))
    ends = json.loads(store.get(theirs))
    store.delete_key(theirs)  # another cut is told anew
    return shut_those_to(ends)


def _key(rank: int, other: int) -> str:
    return f"gemini_lab/link/{rank}/{other}"


HOLD_S: Final = 600.0
"""For a process that stands still to be ended."""
FENCE_S: Final = 120.0
"""The same where the root agent has to plan anew."""
MEET_S: Final = 1800.0
"""For all ranks to call `protect`."""
Order = Hold | GoBack | Flawed | CutLinks | Stand | GoOn
"""What the node's agent may ask of a worker at any time."""
_ARRIVED: Final = "gemini_lab/protect/arrived"
_ALL: Final = "gemini_lab/protect/all"


class WorkerSession:
    """A worker's view of its job.

    Attributes:
        start: What the agent said at the start.
        store: The rendezvous store of the job, shared by all ranks.
        pulse: Says what the training thread does.
    """

    def __init__(
        self,
        *,
        start: WorkerStart,
        channel: LocalChannel,
        store: "Store",
        pulse: Heartbeat,
        kept: KeptProcess | None = None,
    ) -> None:
        self.start, self.store, self.pulse = start, store, pulse
        # What keeps this process through recoveries, if anything does.
        self.kept = kept or KeptProcess()
        self.code = SameCode(self.emit)  # compares what this rank executes with the others
        self._met_in: int | None = None  # the epoch in which this rank met the others last
        # Called when the script has ended, to let the last version become whole.
        self.on_finish: Callable[[], None] | None = None
        # Writes down what this process does, if `gemini-lab check` looks at it.
        self.witness: Witness | None = None
        # Whether the node's agent has asked to stop where a version is whole.
        self.wants_hold = False
        # What it has told last of going back; `None` for nothing.
        self.order_back: GoBack | None = None
        # Where this worker's machine is to compute wrong, as the agent has told by now.
        self.flaws: list[Flawed] = []
        self._channel = channel
        self._held: Held | None = None  # what was said of the version after which training stands
        self._listener: threading.Thread | None = None
        self.kept.attach(self)

    # -- what it says ------------------------------------------------------------------------------

    def emit(self, event: AnyEvent) -> None:
        """Send an event of this worker, with its rank, its epoch and the time."""
        rank, epoch = self.start.rank, self.start.epoch
        if isinstance(event, OfWorker):
            event = msgspec.structs.replace(event, rank=rank, epoch=epoch)
        entry = Entry(at_s=time.time(), node=self.start.seats.node_of(rank), event=event)
        self._channel.send(EventSaid(entry=entry))

    def say(self, message: Message) -> None:
        self._channel.send(message)

    def restore_failed(self, error: UnusableCopyError) -> None:
        """Tell the root agent that a copy could not be used, so that it plans again."""
        self._channel.send(
            RestoreFailed(
                rank=self.start.rank,
                epoch=self.start.epoch,
                shard=error.shard,
                version=error.version,
                holder=error.holder,
                reason=error.reason,
                is_unread=error.is_unread,
            )
        )

    # -- while `protect` begins: it asks, and hears nothing else -----------------------------------

    def meet(self) -> None:
        """Return when every rank has come here: what follows, they do together.

        The root agent sees who waits here, and names the ranks that do not come. A second call in
        an epoch returns at once, and that of a process that was started ahead, as others train.

        Raises:
            ConfigError: Some did not come, or execute other code.
            CannotGoOnError: Ranks that were kept execute other code than those that start.
        """
        if self.start.joins or self._met_in == self.start.epoch:
            return
        world_size = self.start.seats.world_size
        self.code.tell(self.start, self.store)
        with self.pulse.within("meeting"):
            if self.store.add(_ARRIVED, 1) == world_size:
                self.store.set(_ALL, "")
            try:
                self.store.wait([_ALL], timedelta(seconds=MEET_S))
            except DistStoreError as error:  # out of time; a lost store has an error of its own
                arrived = self.store.add(_ARRIVED, 0)
                raise ConfigError(
                    f"only {arrived} of {world_size} ranks have called gemini_lab.protect within "
                    f"{MEET_S:.0f} s; call it on every rank, and before the first collective"
                ) from error
        self.code.compare()
        self._met_in = self.start.epoch

    def request_slab(self, request: SlabRequest) -> int:
        """Return the descriptor of this worker's slab, made by the agent if it is not there yet.

        Raises:
            CapacityError: The node's memory is short.
            ConfigError: The slab that is there was made for another model.
        """
        _, fds = self._ask(request)
        return fds[0]

    def request_old_slabs(self, ranks: int) -> tuple[list[int], list[ShardLayout]]:
        """Return descriptors of this node's slabs of a job of so many ranks, and their layouts.

        Whoever asks closes them.
        """
        message, fds = self._ask(OldSlabsWanted(ranks=ranks))
        assert isinstance(message, OldSlabsGiven)
        return fds, message.layouts

    def _ask(self, request: Message) -> tuple[Message, list[int]]:
        """Return the node's agent's answer; only before this session listens."""
        self._channel.send(request)
        answer = self._channel.receive()
        while answer is not None and isinstance(answer[0], Order):
            self._obey(answer[0])
            answer = self._channel.receive()
        if answer is None:
            raise GeminiError("the node's agent is gone; it was asked for memory for checkpoints")
        if isinstance(answer[0], Refused):
            raise answer[0].to_error()
        return answer

    def stand_by(self) -> WorkerStart:
        """Report that this process can take its place beside those that train, and wait for it.

        It was started ahead; called before this session listens.
        """
        self.kept.stand_by()
        while (answer := self._channel.receive()) is not None:
            if isinstance(answer[0], Order):
                self._obey(answer[0])
            if isinstance(answer[0], GoOn):
                return self.go_on()
        raise GeminiError("the node's agent is gone; this process waited to take its place")

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Load the version of the plan inside the block; all ranks do so together."""
        with (
            self.kept.restoring(self.store),
            self.pulse.within("restoring", self.start.plan.tier),
        ):
            yield

    def wait_for_fence(self) -> NoReturn:
        """Wait to be ended: the root agent plans again with what was just said."""
        time.sleep(FENCE_S)
        raise GeminiError(
            "the persistent tier from which to resume is named in the script's configuration, and "
            f"no new start came within {FENCE_S:.0f} s; name it for the launcher: --persistent-url"
        )

    # -- beside training: it hears -----------------------------------------------------------------

    def listen(self) -> None:
        """Receive the agent's orders on a thread from now on; nothing else may ask it then."""
        self._listener = threading.Thread(target=self._hear, name="gemini-session", daemon=True)
        self._listener.start()

    def _hear(self) -> None:
        while (answer := self._channel.receive()) is not None:
            order, fds = answer
            if isinstance(order, Order):
                self._obey(order, fds)

    def _obey(self, order: Order, fds: Sequence[int] = ()) -> None:
        """Note what is asked of all ranks, who do it once they agree; do the rest at once."""
        match order:
            case Hold():
                self.wants_hold = True
                if self._held is not None:  # another root asks
                    self._channel.send(self._held)
            case GoBack():
                self.order_back = order
            case Flawed():
                self.flaws.append(order)
            case CutLinks():  # it waits for the other end
                # On a thread of its own, or the session would not hear the agent while the other
                # end is slow.
                threading.Thread(target=self._cut, args=(order,), daemon=True).start()
            case Stand() | GoOn():
                self.kept.on_order(order, fds)

    def _cut(self, order: CutLinks) -> None:
        ours = self.start.rank
        for rank in order.ranks:
            try:
                cut_link(self.start.rendezvous, ours, rank)
            except RuntimeError as error:
                text = f"rank {ours} has not cut its connections to rank {rank}: {error}"
                self.emit(Note(text=text))

    # -- where training stands still or ends -------------------------------------------------------

    def hold(self, version: int) -> None:
        """Report that training stands still after `version`, and wait to be ended.

        A process that is to be kept comes back when the others are ended.
        """
        with self.pulse.within("held"):
            self._held = Held(rank=self.start.rank, epoch=self.start.epoch, version=version)
            self._channel.send(self._held)
            if self.kept.is_to_stand(HOLD_S):
                return
        raise GeminiError(
            f"training has stood still after version {version} for {HOLD_S:.0f} s for a node to "
            "leave, and nobody went on; it starts again from there"
        )

    def go_on(self) -> WorkerStart:
        """Wait for the order to go on, and be of the new epoch from then on."""
        with self.pulse.within("held"):
            self.start, self.store = self.kept.wait()
        self.pulse.epoch = self.start.epoch
        self.wants_hold, self.order_back, self._held = False, None, None
        return self.start

    def stand_still(self) -> NoReturn:
        """Wait to be ended: a machine computes wrong, as was just reported."""
        with self.pulse.within("held"):
            time.sleep(HOLD_S)
        raise GeminiError(
            f"a machine computes wrong, and nobody ended training within {HOLD_S:.0f} s"
        )

    def finish(self) -> None:
        """End the script: wait for the last version, or report that nothing was protected."""
        if self.on_finish is None:
            self.emit(Unprotected())
        else:
            self.on_finish()

    def outlast(self) -> None:
        """Return when the node's agent lets this worker go."""
        if self._listener is not None:
            self._listener.join()
        while self._channel.receive() is not None:
            pass


current: WorkerSession | None = None
"""The session of this process when it is a worker of a lab, else `None`."""
