"""The `gpu` bench: every iteration's 12 bytes a parameter to pinned memory, on one GPU.

A GPT trains in bf16 with fp32 weights and moments. Its whole state goes to a slab of pinned memory
after every update: while training waits (blocking), or on a lane of its own while the next forward
and backward passes run (interleaved). Beside them are no checkpoint at all, and other systems'
ways, which write files into memory or keep copies there.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from gemini_lab.errors import ConfigError
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.training.gpt import GPT, GPTConfig, named_size
from gemini_lab.transfer.device_queues import CudaQueues, Lanes, pin, unpin
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.version import MovedVersion, OutgoingVersion, Peers, Wire
from gemini_lab.units import GIB, MIB, format_bytes
from gemini_lab_bench.in_memory import folder_in_memory
from gemini_lab_bench.rows import Row

ITERATIONS: Final = 6
COUNTED: Final = 4
OF_PEERS: Final = 4
"""Iterations of another system's way, which may take seconds each; the last two count."""
CHUNK_BYTES: Final = 32 * MIB
NEEDED_BYTES: Final = 40 * GIB
"""Device memory for 1.1 billion parameters: 12 bytes of state and 4 of gradient each, activations,
and room for the copies that DCP makes."""


def bench(repeats: int) -> list[Row]:
    """Return iteration times of all ways, and the copy's rate beside the bus's.

    Raises:
        ConfigError: There is no GPU, or it is too small.
    """
    require_gpu()
    training = one_billion("cuda")
    with PinnedKeeper(training, lanes=CudaQueues(), pinned=True) as keeper:
        turns = [one_turn(training, keeper) for _ in range(repeats)]
    return [*rows(turns, training), *rows_of_peers(training)]


def one_billion(device: str) -> "GpuTraining":
    """Return the training of 1.1 billion parameters, 32,768 tokens an iteration."""
    return GpuTraining(named_size("1b"), device=device, batch=8, block=512, passes=8)


def require_gpu() -> None:
    """Refuse where the bench cannot run.

    Raises:
        ConfigError: There is no GPU, or it is too small.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "the gpu bench needs a CUDA GPU, and PyTorch sees none here; run it on a machine with "
            "one, with PyTorch's CUDA build (`gemini-lab doctor` says what is there)"
        )
    size_bytes = torch.cuda.get_device_properties(0).total_memory
    if size_bytes < NEEDED_BYTES:
        raise ConfigError(
            f"the gpu bench trains 1.1 billion parameters and needs {format_bytes(NEEDED_BYTES)} "
            f"of device memory, this GPU has {format_bytes(size_bytes)}; use a larger one"
        )


class GpuTraining:
    """A GPT, its optimizer, and a batch that never changes."""

    def __init__(
        self, config: GPTConfig, *, device: str, batch: int, block: int, passes: int = 1
    ) -> None:
        torch.manual_seed(1)
        self.device = device
        with torch.device(device):
            self.model = GPT(config)
        self._passes = passes
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        tokens = torch.randint(256, (batch, block + 1), device=device)
        self._batch = tokens[:, :-1], tokens[:, 1:]
        self.gradients()
        self.update()  # now the optimizer has its moments

    @property
    def params(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    def gradients(self) -> None:
        """Run the forward and backward passes, which change no state."""
        for _ in range(self._passes):
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.model(*self._batch)
            loss.backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what a version is made of: weights and both moments, in fp32."""
        for name, weight in self.model.named_parameters():
            yield name, weight.detach()
            for moment in ("exp_avg", "exp_avg_sq"):
                yield f"{name}.{moment}", self.optimizer.state[weight][moment]

    def finish(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class PinnedKeeper:
    """Takes versions of a training's state into a slab, by the product's own replicator."""

    def __init__(self, training: GpuTraining, *, lanes: Lanes, pinned: bool) -> None:
        self.pieces: list[tuple[int, torch.Tensor]] = []
        self.size_bytes = 0
        for _, tensor in training.state():
            self.pieces.append((self.size_bytes, tensor.view(-1)))
            self.size_bytes += tensor.nbytes
        self.slab = Slab.create([SlotSpec(0, self.size_bytes)], chunk_bytes=CHUNK_BYTES)
        self._pinned = pinned
        if pinned:
            pin(self.slab.memory)
        self.lanes = lanes
        self.moved: list[MovedVersion] = []  # what each version took
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        wire = Wire(group=CheckpointGroup(store, rank=0, world_size=1), lanes=lanes)
        self._replicator = Replicator(wire, Peers(rank=0), self.slab, on_moved=self.moved.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replicator.close()
        if self._pinned:
            unpin(self.slab.memory)
        self.slab.close()

    def start(self) -> None:
        """Begin to take the newest version."""
        number = len(self.moved) + 1
        self._replicator.send(
            OutgoingVersion(version=number, pieces=self.pieces, payload_bytes=self.size_bytes)
        )

    def wait(self) -> None:
        self._replicator.wait()

    def bus_s(self) -> float:
        """Time one bare copy of as many bytes to pinned memory, chunk by chunk."""
        source, target = self.lanes.room(CHUNK_BYTES), self.lanes.home(CHUNK_BYTES)
        started_s = time.perf_counter()
        for at in range(0, self.size_bytes, CHUNK_BYTES):
            size_bytes = min(CHUNK_BYTES, self.size_bytes - at)
            self.lanes.copy("bus", target[:size_bytes], source[:size_bytes])
        self.lanes.finish(self.lanes.mark("bus"))
        return time.perf_counter() - started_s


Ways = tuple[Callable[[], object], Callable[[], object]]
"""What is called after an update, and before the next."""
Turn = dict[str, float]
"""Seconds by what took them."""


def one_turn(
    training: GpuTraining,  # what trains
    keeper: PinnedKeeper,  # takes its versions
    *,
    iterations: int = ITERATIONS,  # of each way
    counted: int = COUNTED,  # how many of the last ones count
) -> Turn:
    """Run each of the product's ways once; then a version and the bus, each alone."""

    def at_once() -> None:
        keeper.start()
        keeper.wait()

    ways: dict[str, Ways] = {
        "none": (_nothing, _nothing),
        "blocking": (at_once, _nothing),
        "interleaved": (keeper.start, keeper.wait),
    }
    turn = {}
    for name, (after, before) in ways.items():
        turn[name] = timed_iterations(
            training, after, before, iterations=iterations, counted=counted
        )
        print(f"{name}: {turn[name]:.3f} s an iteration", file=sys.stderr)  # noqa: T201
    keeper.wait()
    training.finish()
    at_once()
    return turn | {"a version": keeper.moved[-1].local_s, "bus": keeper.bus_s()}


def _nothing() -> None:
    pass


def timed_iterations(
    training: GpuTraining,
    after: Callable[[], object],
    before: Callable[[], object],
    *,
    iterations: int,
    counted: int,
) -> float:
    """Return median seconds of an iteration with `after` each update and `before` the next."""
    times = []
    for _ in range(iterations):
        started_s = time.perf_counter()
        after()
        training.gradients()
        before()
        training.update()
        training.finish()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times[-counted:])


@contextmanager
def _dcp_async(training: GpuTraining) -> Iterator[Ways]:
    """Save by PyTorch's distributed checkpoint, each time when the save before has ended."""
    with folder_in_memory("gemini-lab-gpu-") as folder:
        under_way: list[Any] = []
        count = 0

        def save() -> None:
            nonlocal count
            if under_way:
                under_way.pop().result()
            count += 1
            place = folder / str(count % 2)
            under_way.append(
                async_save(
                    dict(training.state()),
                    storage_writer=FileSystemWriter(place, overwrite=True),
                    no_dist=True,
                )
            )

        yield save, _nothing
        for one in under_way:
            one.result()


@contextmanager
def _torch_checkpointing(training: GpuTraining) -> Iterator[Ways]:
    from torch_checkpointing import CheckpointManager  # noqa: PLC0415 - it may not be installed

    manager: Any = CheckpointManager()
    state, count = dict(training.state()), 0
    with folder_in_memory("gemini-lab-gpu-") as folder:
        under_way: list[Any] = []

        def begin() -> None:
            nonlocal count
            if under_way:
                under_way.pop().result()
            count += 1
            shutil.rmtree(folder / str(count - 2), ignore_errors=True)
            under_way.append(manager.save(str(folder / str(count)), {"state": state}))

        def before() -> None:
            with manager.lock():  # its documents: update with the lock held
                return

        yield begin, before
        for one in under_way:
            one.result()
        manager.close()


@contextmanager
def _lm_resiliency(training: GpuTraining) -> Iterator[Ways]:
    from lm_resiliency.checkpointing.config import InMemoryCkptConfig  # noqa: PLC0415
    from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager  # noqa: PLC0415

    tensors, count = [tensor for _, tensor in training.state()], 0
    with folder_in_memory("gemini-lab-gpu-") as folder:
        config = InMemoryCkptConfig(
            interval=1,
            replication_jump=0,
            disk_flush_interval=0,
            disk_folder=str(folder),
            run_id="gpu",
        )
        manager: Any = InMemoryCheckpointManager(config)

        def begin() -> None:
            nonlocal count
            count += 1
            manager.save_tensors(tensors, count)

        yield begin, manager.finalize_replication
        manager.close()


PEERS: Final[dict[str, Callable[[GpuTraining], AbstractContextManager[Ways]]]] = {
    "LM Resiliency": _lm_resiliency,
    "DCP async": _dcp_async,
    "torch_checkpointing": _torch_checkpointing,
}
"""Other systems' ways to take a version of the same tensors."""


def rows_of_peers(training: GpuTraining) -> Iterator[Row]:
    """Time each other system's way, with iterations without a checkpoint right before it."""

    def timed(after: Callable[[], object], before: Callable[[], object]) -> float:
        return timed_iterations(training, after, before, iterations=OF_PEERS, counted=2)

    for name, peer in PEERS.items():
        plain_s = timed(_nothing, _nothing)
        try:
            with peer(training) as (begin, before):
                each_s = timed(begin, before)
        except Exception as error:  # noqa: BLE001 - another system's; the row says what it raised
            yield Row(name=name, values=(), why_not=f"{type(error).__name__}: {error}"[:200])
            continue
        yield from _beside(name, (each_s,), (plain_s,))


def _beside(name: str, each_s: Sequence[float], plain_s: Sequence[float]) -> Iterator[Row]:
    """Tell a way's iterations, as they are and beside those without a checkpoint."""
    pairs = list(zip(each_s, plain_s, strict=True))
    yield Row(name=name, values=tuple(each_s))
    yield Row(name=f"{name} / none", values=tuple(a / b for a, b in pairs), unit="")
    yield Row(name=f"{name}: added", values=tuple(1e3 * (a - b) for a, b in pairs), unit="ms")


def rows(turns: list[Turn], training: GpuTraining) -> list[Row]:
    """Return times, their ratios to none, and rates, each of one turn."""
    size_bytes = 12 * training.params
    settings = {
        "params": training.params,
        "checkpoint_bytes": size_bytes,
        "device": training.device,
    }
    if training.device == "cuda":
        settings["device"] = torch.cuda.get_device_name(0)
    plain_s = [turn["none"] for turn in turns]
    found = [Row(name="none", values=tuple(plain_s), settings=settings)]
    for way in ("blocking", "interleaved"):
        found += _beside(way, [turn[way] for turn in turns], plain_s)
    for name in ("a version", "bus"):
        rates = tuple(size_bytes / MIB / turn[name] for turn in turns)
        found.append(Row(name=name, values=rates, unit="MiB/s"))
    found.append(
        Row(name="a version / bus", values=tuple(t["bus"] / t["a version"] for t in turns), unit="")
    )
    return found
