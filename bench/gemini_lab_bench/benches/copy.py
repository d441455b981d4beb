"""The `copy` bench: how close versions move to what memory and Gloo can do at best."""

import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from gemini_lab.memory.slab import Slab, SlotSpec, chunk_digest
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.route import WINDOW_CHUNKS
from gemini_lab.transfer.version import Carry, MovedVersion, OutgoingVersion, Peers, Wire
from gemini_lab.units import MB, MIB, format_bytes
from gemini_lab_bench.rows import Row

PAYLOAD_BYTES: Final = 128 * MIB
CHUNK_BYTES: Final = 8 * MIB
LINK_BYTES_PER_S: Final = 500 * MB
PATIENCE_S: Final = 600.0
_RATIOS: Final = (
    ("a version", "bare Gloo"),
    ("a version", "memcpy, checksums, bare Gloo"),
    ("paced, a version", "paced, bare Gloo"),
)


def bench(repeats: int) -> list[Row]:
    """Return bytes per second into the slab and over the wire, beside plain memcpy and bare Gloo.

    Within a repeat everything is measured once, in turn, so that a busy moment hits all alike; a
    ratio is that of two measurements of the same repeat.
    """
    return [*memory_rows(repeats), *wire_rows(repeats)]


def memory_rows(
    repeats: int, *, payload_bytes: int = PAYLOAD_BYTES, chunk_bytes: int = CHUNK_BYTES
) -> list[Row]:
    """Copy a shard into its slab, by one thread of one process: training has the others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    source, target = (torch.ones(payload_bytes, dtype=torch.uint8) for _ in range(2))
    slab = Slab.create([SlotSpec(0, payload_bytes)], chunk_bytes=chunk_bytes)
    try:
        works: dict[str, Callable[[], object]] = {
            "memcpy": lambda: target.copy_(source),
            "slab": lambda: _fill(slab, source, checked=False),
            "slab with checksums": lambda: _fill(slab, source, checked=True),
            "checksum": lambda: [
                chunk_digest(part.numpy()) for part in _parts(source, chunk_bytes)
            ],
        }
        times = _in_turn(works, repeats)
    finally:
        slab.close()
        torch.set_num_threads(threads)
    settings = {"size": format_bytes(payload_bytes), "threads": 1}
    rows = [_rate(name, payload_bytes, values, settings) for name, values in times.items()]
    return [
        *rows,
        _ratio("slab / memcpy", times["memcpy"], times["slab"]),
        _ratio("slab with checksums / memcpy", times["memcpy"], times["slab with checksums"]),
    ]


def wire_rows(
    repeats: int, *, payload_bytes: int = PAYLOAD_BYTES, chunk_bytes: int = CHUNK_BYTES
) -> list[Row]:
    """Exchange shards between two processes, each sending its own and receiving the other's.

    Ours is a whole version: copied into the own slab, checksummed, sent, received into the peer's
    slab and committed on both. Bare Gloo sends the same chunks from memory to memory. Where the
    link is this machine's own, copying, checksums and Gloo share its cores: the third measurement
    is what they take one after the other. The paced measurements are on a link that takes longer
    than they do, as networks between machines are.
    """
    start = multiprocessing.get_context("spawn")
    results: Any = start.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="gemini-lab-bench-") as folder:
        store = str(Path(folder) / "store")
        sizes = {"repeats": repeats, "payload_bytes": payload_bytes, "chunk_bytes": chunk_bytes}
        ranks = [
            start.Process(target=_wire_rank, args=(rank, store, results), kwargs=sizes, daemon=True)
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(PATIENCE_S)
            if process.exitcode != 0:
                raise RuntimeError(
                    f"a process of the wire bench ended with {process.exitcode} within "
                    f"{PATIENCE_S:.0f} s; what it printed says why"
                )
    times: dict[str, list[float]] = results.get()
    settings = {"size": format_bytes(payload_bytes), "chunk": format_bytes(chunk_bytes)}
    paced = settings | {"link_bytes_per_s": LINK_BYTES_PER_S}
    rates = [
        _rate(name, payload_bytes, values, paced if name.startswith("paced") else settings)
        for name, values in times.items()
    ]
    return rates + [_ratio(f"{one} / {other}", times[other], times[one]) for one, other in _RATIOS]


def _wire_rank(
    rank: int, store: str, results: Any, *, repeats: int, payload_bytes: int, chunk_bytes: int
) -> None:
    """Run one of two processes; rank 0 puts the times."""
    torch.set_num_threads(1)
    file_store = dist.FileStore(store, 2)  # type: ignore[attr-defined]
    group = CheckpointGroup(file_store, rank=rank, world_size=2)
    source, copy, room = (torch.ones(payload_bytes, dtype=torch.uint8) for _ in range(3))
    slab = Slab.create(
        [SlotSpec(shard, payload_bytes) for shard in (rank, 1 - rank)], chunk_bytes=chunk_bytes
    )
    peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
    moved: list[MovedVersion] = []

    def replicator(link: LinkBucket | None) -> Replicator:
        return Replicator(Wire(group=group, link=link), peers, slab, on_moved=moved.append)

    def version(by: Replicator) -> None:
        number, pieces = len(moved) + 1, [(0, source)]
        by.send(OutgoingVersion(version=number, pieces=pieces, payload_bytes=payload_bytes))
        by.wait()

    def bare(carry: Carry | None) -> None:
        _exchange(group, source, room, chunk_bytes, carry)
        group.barrier()

    def apart() -> None:
        copy.copy_(source)
        for part in _parts(copy, chunk_bytes):
            chunk_digest(part.numpy())
        bare(None)

    with LinkBucket(f"{store}-link-{rank}", bytes_per_s=LINK_BYTES_PER_S) as link:
        free, paced = replicator(None), replicator(link)
        times = _in_turn(
            {
                "bare Gloo": lambda: bare(None),
                "memcpy, checksums, bare Gloo": apart,
                "a version": lambda: version(free),
                "paced, bare Gloo": lambda: bare(link.carry),
                "paced, a version": lambda: version(paced),
            },
            repeats,
            before=group.barrier,
        )
        free.close()
        paced.close()
    slab.close()
    if rank == 0:
        results.put(times)


def _exchange(
    group: CheckpointGroup,
    source: torch.Tensor,
    room: torch.Tensor,
    chunk_bytes: int,
    carry: Carry | None,
) -> None:
    """Send all of `source` and receive all of `room`, some chunks at a time."""
    peer = 1 - group.rank
    under_way: deque[tuple[Any, Any]] = deque()
    for out, back in zip(_parts(source, chunk_bytes), _parts(room, chunk_bytes), strict=True):
        receive = group.irecv(back, peer)
        if carry is not None:
            carry(out.nbytes)
        under_way.append((group.isend(out, peer), receive))
        if len(under_way) > WINDOW_CHUNKS:
            _wait(under_way.popleft())
    for works in under_way:
        _wait(works)


def _wait(works: tuple[Any, Any]) -> None:
    for work in works:
        work.wait()


def _fill(slab: Slab, source: torch.Tensor, *, checked: bool) -> None:
    """Write `source` as the next version; without checksums, it is never committed."""
    newest = max((copy.version for copy in slab.copies()), default=0)
    buffer = slab.begin(0, newest + 1)
    if not checked:
        torch.from_numpy(buffer.data[: source.numel()]).copy_(source)
        return
    version = OutgoingVersion(
        version=newest + 1, pieces=[(0, source)], payload_bytes=source.numel()
    )
    LocalCopy(version, buffer).up_to(source.numel())
    buffer.commit(source.numel())


def _parts(whole: torch.Tensor, size_bytes: int) -> list[torch.Tensor]:
    return [whole[at : at + size_bytes] for at in range(0, whole.numel(), size_bytes)]


def _in_turn(
    works: dict[str, Callable[[], object]],
    repeats: int,
    *,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time each work in turn, `repeats` times after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-2, repeats):
        for name, work in works.items():
            before()
            started_s = time.perf_counter()
            work()
            if number >= 0:
                times[name].append(time.perf_counter() - started_s)
    return times


def _rate(name: str, size_bytes: int, times_s: list[float], settings: dict[str, Any]) -> Row:
    values = tuple(size_bytes / time_s / MIB for time_s in times_s)
    return Row(name, values, unit="MiB/s", settings=settings)


def _ratio(name: str, above_s: list[float], below_s: list[float]) -> Row:
    values = tuple(one / other for one, other in zip(above_s, below_s, strict=True))
    return Row(name, values, unit="")
