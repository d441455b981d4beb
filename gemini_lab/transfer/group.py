"""The process group of checkpoint traffic, apart from all of training's groups."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.distributed as dist

from gemini_lab.transfer.sockets import OwnConnections, can_be_found

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

MEET_LOOK_S: Final = 0.05


class TransferHandle(Protocol):
    """A send or receive under way."""

    def wait(self) -> object:
        """Return when it is done."""


class CheckpointGroup:
    """All ranks of a job on Gloo, for checkpoint traffic alone.

    It is made beside torch's registry of groups, so that a script that destroys its groups at its
    end does not take the last version's way along. After `timeout_s` a transfer whose peer says
    nothing fails.
    """

    def __init__(
        self, store: "Store", *, rank: int, world_size: int, timeout_s: float = 1800
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.messages = 0  # how many this rank has begun to send and to receive
        torch_distributed: Any = dist  # its stubs leave out what this class stands on
        self._store, self._met = store, 0
        self._is_cut = False
        self._changed = threading.Condition()
        self._at_work: set[int] = set()  # threads in `used`, but for those that wait
        self._connections = OwnConnections()
        # Gloo opens its sockets here, and has no way to shut them while a rank waits.
        with self._connections.opened() if can_be_found() else nullcontext():
            # Not `new_group`: that is a collective of the script's groups, and ends with them.
            self._group: Any = torch_distributed.ProcessGroupGloo(
                torch_distributed.PrefixStore("gemini_lab", store),
                rank,
                world_size,
                timedelta(seconds=timeout_s),
            )

    # -- to be broken off --------------------------------------------------------------------------

    @contextmanager
    def used(self) -> Iterator[None]:
        """Permit this thread to write memory in the block with what it gets here: see `cut`."""
        thread = threading.get_ident()
        self._note(thread, is_at_work=True)
        try:
            self.require_whole()
            yield
        finally:
            self._note(thread, is_at_work=False)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count this thread as waiting in the block; raise a RuntimeError if the group is cut."""
        thread = threading.get_ident()
        was_at_work = thread in self._at_work
        self._note(thread, is_at_work=False)
        try:
            yield
        finally:
            self._note(thread, is_at_work=was_at_work)
        self.require_whole()

    def finish(self, works: Sequence["TransferHandle"]) -> None:
        """Wait for all of these sends and receives."""
        with self.waiting():
            for work in works:
                work.wait()

    def require_whole(self) -> None:
        """Raise a RuntimeError if the group was cut."""
        if self._is_cut:
            raise RuntimeError("the connections of checkpoint traffic were closed")

    def cut(self, within_s: float = 0.0) -> bool:
        """Close the connections, and begin nothing more; any thread may call it.

        What waits for another rank fails, but for who waits for the rest of a message that was half
        sent or received: Gloo tells nobody of that, until the group's time is out. So a thread that
        waits may go on waiting; it touches nothing any more.

        Args:
            within_s: For threads in `used` to wait or to leave.

        Returns:
            Whether they did: nothing of this group writes any memory from then on.
        """
        with self._changed:
            # The flag first: a thread that fails on a closed connection must find it set.
            self._is_cut = True
        self._connections.cut()
        with self._changed:
            return self._changed.wait_for(lambda: not self._at_work, within_s)

    def leave(self) -> None:
        """Give its threads and sockets back: from here on it is as if cut."""
        with self._changed:
            self._is_cut = True
        # The reference is dropped here, and the last one by the thread: Gloo joins its threads
        # then.
        left, self._group = [self._group], None
        let_go(left)

    def _whole(self) -> Any:
        group = self._group
        self.require_whole()
        return group

    def _note(self, thread: int, *, is_at_work: bool) -> None:
        with self._changed:
            if is_at_work:
                self._at_work.add(thread)
            else:
                self._at_work.discard(thread)
            self._changed.notify_all()

    # -- messages ----------------------------------------------------------------------------------

    def isend(self, tensor: torch.Tensor, to: int, *, tag: int = 0) -> "TransferHandle":
        """Begin to send; `finish` waits for it. Messages of a tag between two ranks keep order."""
        group = self._whole()
        self.messages += 1
        work: TransferHandle = group.send([tensor], to, tag)
        return work

    def irecv(self, tensor: torch.Tensor, source: int, *, tag: int = 0) -> "TransferHandle":
        group = self._whole()
        self.messages += 1
        work: TransferHandle = group.recv([tensor], source, tag)
        return work

    def send(self, tensor: torch.Tensor, to: int) -> None:
        self.finish([self.isend(tensor, to)])

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        self.finish([self.irecv(tensor, source)])

    def meet(self) -> None:
        """Return when every rank has come here, however long that takes.

        Not by Gloo, whose every wait has an end: a script may take hours to come to its own.
        """
        self._met += 1
        came, all_came = (f"gemini_lab/met/{word}/{self._met}" for word in ("came", "all"))
        if self._store.add(came, 1) == self.world_size:
            self._store.set(all_came, "")
        with self.waiting():
            while not self._is_cut and not self._store.check([all_came]):
                # The store's own `wait` has a time-out, and prints a warning each time that it
                # looks up.
                time.sleep(MEET_LOOK_S)

    def barrier(self) -> None:
        self.finish([self._whole().barrier()])

    def all_gather(self, values: Sequence[int]) -> list[list[int]]:
        """Return every rank's `values` (equally many, 64-bit), in rank order."""
        # Fixed width, so that ranks need not agree on sizes first.
        ours = torch.tensor(values, dtype=torch.int64)
        theirs = [torch.zeros_like(ours) for _ in range(self.world_size)]
        self.finish([self._whole().allgather([theirs], [ours])])
        return [one.tolist() for one in theirs]


def rendezvous_client(address: str) -> "TCPStore":
    """Return the job's store, which another process serves."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False)


def join_rendezvous(address: str, listen_fd: int | None) -> "TCPStore":
    """Return the job's store; the worker that was given its port serves it, the others connect."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415
    from torch.torch_version import __version__  # noqa: PLC0415

    if listen_fd is None:
        return rendezvous_client(address)
    host, _, port = address.rpartition(":")
    return TCPStore(
        host,
        int(port),
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listen_fd,
        use_libuv=__version__ >= TAKES_OPEN_PORT,
    )


TAKES_OPEN_PORT: Final = "2.8"
"""The first PyTorch whose store by libuv takes a port that is open already."""


def let_go(groups: list[Any]) -> None:
    """Free Gloo's groups with their threads, sockets and buffers.

    Who does waits until all that was asked of them is over: what waits for the rest of a message
    that was half there ends with its time-out. So a thread of its own does, and empties the list.
    """
    threading.Thread(target=groups.clear, name="gemini-groups-left", daemon=True).start()
