"""A node's link with a rate of its own, shared by training and checkpoint traffic.

A token bucket hands out the link's time in the order of the requests: a message of b bytes holds a
link of rate B for b / B seconds, and whoever comes next waits behind it. It stands for the node's
sending direction; in ring algorithms and ring-like placements a node receives as much as it sends.
"""

import fcntl
import math
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import torch.distributed as dist

from gemini_lab.errors import ConfigError
from gemini_lab.units import format_bytes

_FREE_AT: Final = struct.Struct("d")

SHARES: Final[Mapping[str, Callable[[int], float]]] = {
    **dict.fromkeys(
        ("all_reduce", "inference_all_reduce", "all_reduce_coalesced"), lambda n: 2 * (n - 1) / n
    ),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor"), lambda n: 2 * (n - 1) / n),
    **dict.fromkeys(("all_gather", "all_gather_into_tensor"), lambda n: (n - 1) / n),
    **dict.fromkeys(("all_gather_base", "all_gather_coalesced"), lambda n: (n - 1) / n),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), lambda n: (n - 1) / n),
    **dict.fromkeys(("reduce", "gather", "scatter"), lambda n: (n - 1) / n),
    "broadcast": lambda n: float(math.ceil(math.log2(n))),
    **dict.fromkeys(("send", "isend"), lambda _: 1.0),
    "batch_isend_irecv": lambda _: 0.5,
}
"""For each operation: from the number n of nodes to the share of the full tensor's bytes that
crosses a node's link, one way, as torch's Gloo sends them.

A ring all-gather passes every part but one over each link: (n-1)/n. A ring all-reduce is a
reduce-scatter and an all-gather: 2(n-1)/n. In an all-to-all each node keeps 1/n of what it has. A
gather or scatter moves (n-1)/n over the root's link, which is the slowest. A message goes over its
sender's link once, so of a batch of sends and receives half; receiving calls and barriers are free.
Counted at the interfaces of 2 and 4 nodes: Gloo's reduce-scatter sends as much as an all-reduce,
and its broadcast is a tree in which the root sends log2(n) times.
"""


def wire_bytes(name: str, size_bytes: int, *, nodes: int) -> float:
    """Return bytes that a collective of `size_bytes` sends over each node's link.

    Args:
        name: The operation's name; one that is not in `SHARES` sends nothing.
        size_bytes: The full tensor's size.
        nodes: How many nodes the group spans; a group on one node uses no link.
    """
    return size_bytes * SHARES[name](nodes) if name in SHARES and nodes > 1 else 0.0


class LinkBucket:
    """The token bucket of one node, shared by its processes and their threads.

    Its state, the time at which the link is free again, lies in a file of 8 bytes that all of the
    node's processes map. A process that dies gives its lock back.

    Args:
        path: The file; made if it is missing.
        bytes_per_s: The link's rate.

    Raises:
        ConfigError: The rate is not above zero, or what is at `path` is a link or another user's.
    """

    def __init__(self, path: Path | str, *, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ConfigError(f"a link's rate must be above zero (got {bytes_per_s} B/s)")
        self.bytes_per_s = bytes_per_s
        self._fd = _own_file(path)
        if os.fstat(self._fd).st_size < _FREE_AT.size:
            os.ftruncate(self._fd, _FREE_AT.size)
        self._memory = mmap.mmap(self._fd, _FREE_AT.size)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LinkBucket({format_bytes(self.bytes_per_s)}/s)"

    def reserve(self, size_bytes: float) -> float:
        """Take the link behind all that is reserved; return when it will have carried the bytes.

        The time is one of `time.monotonic`.
        """
        if size_bytes <= 0:
            return 0.0
        with self._lock:
            # After the thread lock: POSIX locks are the process's, and would not keep its threads
            # apart.
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                (free_s,) = _FREE_AT.unpack_from(self._memory)
                done_s = max(time.monotonic(), free_s) + size_bytes / self.bytes_per_s
                _FREE_AT.pack_into(self._memory, 0, done_s)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return float(done_s)

    def carry(self, size_bytes: float) -> None:
        sleep_until(self.reserve(size_bytes))

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sleep_until(at_s: float) -> None:
    """Return at that time of `time.monotonic`."""
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(left_s)


class LinkPacer:
    """Reserves a node's link for the collectives of one of its ranks; the `pace` of a `CommHook`.

    Rings are laid node by node, as NCCL lays them, so a ring crosses each node's link once however
    many of its ranks take part: each of them reserves its part of those bytes.
    """

    def __init__(
        self,
        bucket: LinkBucket,  # the node's
        *,
        # From a rank to its node; by default each rank is alone on one.
        node_of: Callable[[int], Hashable] = lambda rank: rank,
    ) -> None:
        self.bucket = bucket
        self._node_of = node_of
        self._shapes: dict[dist.ProcessGroup | None, tuple[int, int]] = {}

    def __call__(self, name: str, size_bytes: int, group: dist.ProcessGroup | None) -> float:
        """Reserve the link for one collective; when it will be done, by `time.monotonic`."""
        nodes, here = self._shape(group)
        return self.bucket.reserve(wire_bytes(name, size_bytes, nodes=nodes) / here)

    def _shape(self, group: dist.ProcessGroup | None) -> tuple[int, int]:
        """Return how many nodes the group spans, and how many of its ranks share this one."""
        if group not in self._shapes:
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            self._shapes[group] = group_shape(ranks, rank=dist.get_rank(), node_of=self._node_of)
        return self._shapes[group]


def group_shape(
    ranks: Sequence[int], *, rank: int, node_of: Callable[[int], Hashable]
) -> tuple[int, int]:
    """Return the nodes that `ranks` span, and how many are on the node of `rank` (at least 1)."""
    nodes = [node_of(one) for one in ranks]
    return len(set(nodes)), max(1, nodes.count(node_of(rank)))


def _own_file(path: Path | str) -> int:
    """Open a file of this user's own: in /tmp another one may have put something in its place."""
    try:
        # O_NOFOLLOW: /tmp may have another user's symlink of that name.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(fd).st_uid == os.getuid():
            return fd
        os.close(fd)
        found = "it is another user's"
    except OSError as error:
        found = f"it cannot be opened ({error.strerror})"
    raise ConfigError(
        f"{path} was to have the state of a link, and {found}; remove it, or name another folder "
        "with TMPDIR"
    )


def node_link(
    *, job: str, node: str, bytes_per_s: float, barrier: Callable[[], None]
) -> LinkBucket:
    """Return the bucket that all workers of a node share; its file is gone when this returns.

    Args:
        job: What tells this job, and this start of it, from others on the machine, such as the
            address of its rendezvous.
        node: The node's name.
        bytes_per_s: The link's rate.
        barrier: Returns when every worker has come to it.
    """
    name = "".join(c if c.isalnum() else "-" for c in f"gemini-link-{job}-{node}")
    path = Path(tempfile.gettempdir()) / name
    bucket = LinkBucket(path, bytes_per_s=bytes_per_s)
    barrier()
    # All have it mapped after the barrier; so no killed job leaves a file.
    path.unlink(missing_ok=True)
    return bucket


def own_link(bytes_per_s: float) -> LinkBucket:
    """Return a bucket of this process alone, such as for the bus between device and CPU memory."""
    with tempfile.NamedTemporaryFile(prefix="gemini-bus-") as file:
        return LinkBucket(file.name, bytes_per_s=bytes_per_s)
