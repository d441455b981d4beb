"""Process groups that outlive a lost rank: a process that is kept reconnects them in place.

Engines, models and scripts hold training's groups. A `StandingGroup` is the object that they hold.
Behind it is a real Gloo group, which can be broken off at any moment, and which is replaced by one
that connects to other ranks' processes. In between, collectives return at once and leave their
tensors as they are, so the iteration under way ends without an error. Its results are discarded,
and a version is restored.

A process that takes a lost rank's place sets up alone. In each group that has kept ranks, it is
played the results that these recorded in their own set-up (`record`). A group that was lost as a
whole connects at once, and its ranks set it up together.

PyTorch's own way (2.14: `enable_reconfigure`) does not replace this. A collective that fails raises
in the middle of the script's loop. A worker thread of Gloo's that waits for the rest of a message
stays in the group that is reconfigured: after two such failures no thread is left, and the group
hangs. The store of the group is fixed as well, and ends with the process that serves it.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from gemini_lab.errors import UnsupportedError
from gemini_lab.kept.record import SetUpRecord, results_of
from gemini_lab.kept.works import DoneWork, LoneWork, Promise, Watched
from gemini_lab.transfer.group import let_go
from gemini_lab.transfer.sockets import OwnConnections

COLLECTIVES: Final = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
)
"""Calls that move tensors, or wait for all ranks; no version of torch has all of them."""
MESSAGES: Final = frozenset({"send", "recv", "recv_anysource"})
KNOW_NO_LIMIT: Final = MESSAGES.union(  # Gloo closes the whole group if one is not over in time
    {
        "_reduce_scatter_base",  # its handle takes no notice of a time-out
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
    }
)
_STILL: Final = frozenset(
    {
        "BackendType",
        "abort",
        "boxed",
        "get_backend",
        "get_group_store",
        "monitored_barrier",  # Gloo's own, which ends in others
        "name",
        "rank",
        "set_timeout",
        "shutdown",
        "size",
        "supports_reconfigure",
        "supports_window",
        "unbox",
    }
)
"""Calls that move no tensors."""


def unknown_calls(kind: type = dist.ProcessGroup) -> list[str]:
    """Return public methods of torch's groups that are in neither list."""
    known = {*COLLECTIVES, *_STILL}
    return [
        name
        for name in dir(kind)
        if name[0] != "_" and name not in known and callable(getattr(kind, name))
    ]


ORDER_S: Final = 5.0
"""The wait of a failed collective for the word that a rank is lost."""
LOOK: Final = timedelta(milliseconds=100)
"""The pause between two looks at the connections while a collective is under way.

Gloo fails no wait for the rest of a message that was half there when its connection closed.
"""
CLOSED_S: Final = 0.5
"""The time for a collective to end after a connection closed, as by a rank that has finished."""
_GLOO: Any = c10d.ProcessGroupGloo
_Group: Any = dist.ProcessGroup
# PyTorch 2.13 has the first backend that can refuse all collectives.
_NOBODY: Any = getattr(torch._C._distributed_c10d, "FakeProcessGroup", None)  # noqa: SLF001
SETTLE_S: Final = 1.0
"""The wait for a broken-off collective, which may still write what it had received."""


class Mode(Enum):
    """The behaviour of collectives."""

    JOINED = auto()  # they communicate
    BROKEN = auto()  # they do nothing, because a rank is lost
    ALONE = auto()  # the record is played, except in groups of which no rank was kept


class StandingGroups:
    """All training groups of this process."""

    def __init__(
        self,
        *,
        # The ranks that were kept, if this process takes a lost rank's place beside them.
        kept: Collection[int] = (),
        # Returns what kept ranks recorded of a group's set-up.
        told: Callable[[str], bytes] = lambda _: b"",
        # How long a failed collective waits for the word that a rank is lost.
        order_s: float = ORDER_S,
    ) -> None:
        self.record = SetUpRecord()  # this process's set-up, by group
        # Reports a transfer that failed although no rank is known to be lost.
        self.tell: Callable[[], None] = lambda: None
        self.mode = Mode.ALONE if kept else Mode.JOINED
        self._kept, self._told = frozenset(kept), told
        self._order_s = order_s
        self._groups: list[StandingGroup] = []
        self._broken = threading.Event()
        self._flaw = ""

    def install(self) -> None:
        """Replace torch's Gloo groups by these, from now on and in this process."""
        groups = self

        class Gloo(StandingGroup):
            def __init__(
                self, store: Any, rank: int, size: int, timeout: timedelta, **more: Any
            ) -> None:
                super().__init__(groups, store, rank, size, timeout, **more)

        torch_c10d: Any = c10d
        torch_c10d.ProcessGroupGloo = Gloo

    def add(self, group: "StandingGroup") -> bool:
        """Add a group; return whether it connects to its other ranks now."""
        self._groups.append(group)
        if group.size() > 1 and self.record.is_closed:
            self._flaw = "it makes process groups in its loop, which a rank that starts later lacks"
        return self.mode is Mode.JOINED or group.size() == 1

    def learn(self, group: "StandingGroup") -> bool:
        """Take what kept ranks recorded of a group; return whether any of its ranks was kept."""
        if self._kept.isdisjoint(group.members):
            return False
        self.record.learn(group.label, self._told(group.label))
        return True

    def led_by(self, rank: int, kept: Collection[int]) -> Iterator[str]:
        """Yield the names of groups whose record this rank publishes; one rank of each does.

        Args:
            rank: This one.
            kept: The ranks that were kept, and have a record for those that were not.
        """
        for group in self._groups:
            if group.size() > 1 and rank == min(group.members & {*kept} or group.members):
                yield group.label

    def note_message(self) -> None:
        """Note that ranks send each other messages, which a new rank may do otherwise."""
        if self.record.is_closed:
            self._flaw = (
                "it sends messages between ranks in its loop, as pipelines do, whose first "
                "iteration differs from the others"
            )

    @property
    def flaw(self) -> str:
        """Return why these groups cannot be reconnected, in words; empty if they can."""
        if not dist.is_initialized() or isinstance(dist.group.WORLD, StandingGroup):
            return self._flaw
        kind = type(dist.group.WORLD).__name__
        return f"its process group is torch's {kind} ({dist.get_backend()}), and no Gloo group"

    @property
    def is_broken(self) -> bool:
        return self.mode is Mode.BROKEN

    def break_off(self) -> None:
        """End all that waits for a lost rank, so that the iteration ends.

        Any thread may call it.
        """
        self.mode = Mode.BROKEN
        self._broken.set()
        for group in self._groups:
            group.cut()

    def was_broken_off(self, within_s: float | None = None) -> bool:
        """Wait for the word that a rank is lost; return whether it came."""
        if within_s is None and not self.is_broken:
            self.tell()
        return self._broken.wait(self._order_s if within_s is None else within_s)

    def stay_apart(self) -> None:
        """Play the rest of the set-up from the record: the other ranks have done it already."""
        self.mode = Mode.ALONE

    def join(self, store: Any = None) -> None:
        """Allow collectives to communicate from now on; all ranks call it together.

        Args:
            store: One that all ranks share, and nobody has used: every group reconnects through it.
                Without one, groups stay as they are.
        """
        if store is not None:
            torch_distributed: Any = dist
            # In the order in which the script made them, which is one order on all ranks: the
            # ranks of two groups never wait for each other.
            for group in self._groups:
                prefix = f"gemini_lab/groups/{group.label}"
                group.connect(torch_distributed.PrefixStore(prefix, store))
        self.mode = Mode.JOINED
        self._broken.clear()


class StandingGroup(_Group):  # type: ignore[misc]  # torch's stubs have it as Any
    """One of training's groups, as torch's functions, engines and scripts hold it."""

    def __init__(
        self,
        groups: StandingGroups,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        **more: Any,
    ) -> None:
        super().__init__(rank, size)
        # Torch writes the group's name and ranks there once this is made.
        self.options = SimpleNamespace(group_name="", global_ranks_in_group=[])
        self._groups, self._store = groups, store
        self._is_played: bool | None = None  # by the record; unknown before the first collective
        self._timeout, self._more = timeout, more
        self._group: Any = None
        self._gloo: Any = None
        self._apart: LoneWork | None = None  # the newest
        self._promised: set[Promise] = set()
        self._promising = threading.Lock()
        self._are_promised = threading.Event()
        self._lookout: threading.Thread | None = None
        self._connections = OwnConnections()
        kind = _Group.BackendType.GLOO
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, _refusing(rank, size))
        if groups.add(self):
            self.connect(store)

    @property
    def label(self) -> str:
        """Return the name that torch gives this group on each of its ranks."""
        return str(self.options.group_name)

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self.options.global_ranks_in_group or range(self.size()))

    def connect(self, store: Any) -> None:
        """Make the real group; all of its ranks call it together."""
        if self._group is not None:
            left, self._group, self._gloo = [self._group, self._gloo], None, None
            let_go(left)
        if self._apart is not None:
            self._apart.settle(SETTLE_S)
        with self._connections.opened(links=self.size() - 1):
            gloo = _GLOO(store, self.rank(), self.size(), self._timeout, **self._more)
        kind = _Group.BackendType.GLOO
        group = _Group(store, self.rank(), self.size())
        group._set_default_backend(kind)  # noqa: SLF001 - as torch makes its own
        group._register_backend(torch.device("cpu"), kind, gloo)  # noqa: SLF001
        self._group, self._gloo = group, gloo

    def cut(self) -> None:
        """Close the connections, so that each wait for another rank fails, on every thread."""
        self._connections.cut()
        with self._promising:
            promised, self._promised = self._promised, set()
        for promise in promised:
            promise.keep(promise.otherwise)

    def wait_for(self, work: Any) -> None:
        """Wait for a collective under way, and look whether its connections are open.

        Raises:
            RuntimeError: It failed, all are broken off, or a connection has closed.
        """
        closed_s = 0.0
        while closed_s < CLOSED_S:
            try:
                work.wait(LOOK)
            except RuntimeError:
                if work.is_completed():  # it failed, or was done just after the look
                    work.wait(LOOK)
                    return
                if self._groups.is_broken:
                    raise RuntimeError("collectives are broken off: a rank is lost") from None
                closed_s = 0.0 if self._connections.are_whole else closed_s + LOOK.total_seconds()
            else:
                return
        raise closed()

    def promise(self, work: Any, otherwise: list[torch.Tensor]) -> Any:
        """Return a future of a collective, which ends at once if all are broken off.

        Its value is `otherwise` then, or if the collective fails because a rank is lost.
        """
        promise = Promise(otherwise)

        def end(done: Any) -> None:
            with self._promising:
                self._promised.discard(promise)
            try:
                promise.keep(self._value(done, otherwise))
            except RuntimeError as error:
                promise.fail(error)

        with self._promising:
            self._promised.add(promise)
            self._are_promised.set()
            if self._lookout is None:
                self._lookout = threading.Thread(target=self._look_out, daemon=True)
                self._lookout.start()
        work.get_future().then(end)
        if self._groups.is_broken:
            promise.keep(otherwise)
        return promise.future

    def _look_out(self) -> None:
        """End futures of which no wait looks at the connections: DDP waits for them in C++."""
        closed_s = 0.0
        while self._are_promised.wait():
            time.sleep(LOOK.total_seconds())
            with self._promising:
                promised = [*self._promised]
                if not promised:
                    self._are_promised.clear()
            is_waiting = promised and not self._groups.is_broken
            are_closed = is_waiting and not self._connections.are_whole
            closed_s = closed_s + LOOK.total_seconds() if are_closed else 0.0
            if closed_s >= CLOSED_S:
                self._end_all(promised)
                with self._promising:
                    self._promised.difference_update(promised)

    def _end_all(self, promised: list[Promise]) -> None:
        """End these futures, because a connection closed and none of them may ever come."""
        try:
            self.fail(closed())
        except RuntimeError as error:
            for promise in promised:
                promise.fail(error)
        else:
            for promise in promised:
                promise.keep(promise.otherwise)

    def _value(self, done: Any, otherwise: list[torch.Tensor]) -> Any:
        """Return a future's value, also if a rank is lost: DDP cannot continue after an error."""
        try:
            return done.value()
        except RuntimeError as error:
            self.fail(error)
            return otherwise

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Begin the collective of that name, as torch's functions call it."""
        groups, record = self._groups, self._groups.record
        if groups.mode is Mode.BROKEN:
            return DoneWork(args)
        if name in MESSAGES:
            groups.note_message()
        entry = None
        if self.size() > 1:
            if groups.mode is Mode.ALONE and self._is_among_kept():
                record.play(self.label, name, args)
                return DoneWork(args)
            entry = record.next(self.label, name, args)
        try:
            work = getattr(self._group, name)(*args, **kwargs)
        except RuntimeError as error:
            self.fail(error)
            return DoneWork(args)
        if name in KNOW_NO_LIMIT:
            work = self._apart = LoneWork(work)
        return Watched(work, self, args, lambda: record.fill(entry, results_of(name, args)))

    def _is_among_kept(self) -> bool:
        """Return whether a rank of it was kept; if none was, connect its new ranks at once."""
        if self._is_played is None:
            self._is_played = self._groups.learn(self)
            if not self._is_played:
                self.connect(self._store)
        return self._is_played

    def fail(self, error: RuntimeError) -> None:
        """Raise the error, unless a rank is lost."""
        if not self._groups.was_broken_off():
            raise error

    def monitored_barrier(
        self, timeout: timedelta | None = None, *, wait_all_ranks: bool = False
    ) -> None:
        """Wait as in a barrier; the root agent names the ranks that are missing in either."""
        del wait_all_ranks
        self.call("barrier").wait(timeout)

    # -- what torch asks of a backend ------------------------------------------------------------

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, because Gloo's number starts by itself."""

    def _get_backend(self, device: torch.device) -> Any:
        del device
        return self._gloo

    get_backend = _get_backend

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """Return another name than Gloo's: torch takes a group of that name for its own class."""
        return "standing gloo"


def closed() -> RuntimeError:
    """Return the error of a collective that would wait for ever."""
    return RuntimeError("a connection to another rank was closed")


def obstacle() -> str:
    """Return why this torch's groups cannot be reconnected, in words; empty if they can."""
    options = getattr(_NOBODY, "Options", None)
    if hasattr(options, "error_on_collective") and hasattr(_NOBODY, "_create_internal"):
        return ""
    return f"PyTorch {torch.__version__} has no backend that refuses collectives; 2.13 has"


def _refusing(rank: int, size: int) -> Any:
    """Return the backend that torch's own functions find, which refuses all collectives.

    A collective that `StandingGroup` overrides never reaches it.
    """
    options = _NOBODY.Options()
    options.error_on_collective = True
    return _NOBODY._create_internal(rank, size, options)  # noqa: SLF001


def _passing_on(name: str) -> Callable[..., Any]:
    def call(self: StandingGroup, *args: Any, **kwargs: Any) -> Any:
        return self.call(name, *args, **kwargs)

    call.__name__ = name
    return call


def _unknown(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"ProcessGroup.{name} of PyTorch {torch.__version__} was called, and a group that is "
            "made again when a rank is lost does not know it; call something else, or leave "
            "keep_processes out"
        )

    call.__name__ = name
    return call


for _name in COLLECTIVES:
    setattr(StandingGroup, _name, _passing_on(_name))
for _name in unknown_calls():
    setattr(StandingGroup, _name, _unknown(_name))
