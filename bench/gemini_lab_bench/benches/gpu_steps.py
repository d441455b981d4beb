"""The steps of `bench gpu --all`: what one GPU settles in ten minutes.

Each step is a process of its own with a limit of its own, and its rows are told as they come, so
that what ran counts when the time is over. With `--tiny` the same steps run on CPUs at a thousandth
of the size.
"""

import argparse
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job, python_command
from gemini_lab.lab.lab import Lab
from gemini_lab.memory.slab import Slab, SlotSpec, anonymous_file, flip_bit, reserve
from gemini_lab.node.gpu_speed import SIDE, product_tflops
from gemini_lab.node.health import GpuHealth, GpuSpeed
from gemini_lab.report import Comparison, Recovery, RunReport
from gemini_lab.training.gpt import named_size
from gemini_lab.transfer.device_queues import CudaQueues, Lanes, Mark, pin, unpin
from gemini_lab.units import GIB, MIB
from gemini_lab_bench.benches.gpu import (
    GpuTraining,
    PinnedKeeper,
    one_billion,
    one_turn,
    require_gpu,
    rows,
    rows_of_peers,
)
from gemini_lab_bench.benches.gpu import bench as one_gpu
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.in_memory import SHARED_MEMORY
from gemini_lab_bench.rows import Row, single, table

THOUSANDTH: Final = 1000
ITERATIONS: Final = 20
ROW: Final = '{"row": '
"""How a line begins that has a row; a step may print others."""
ATTACHES: Final = "attach"
"""The step that another process runs, within the first."""


class HostLanes:
    """Lanes on CPUs, which do everything as soon as they are told to: the stand-in of `--tiny`."""

    def enter_thread(self) -> None:
        pass

    def require_here(self, tensors: Iterable[torch.Tensor]) -> None:
        pass

    def room(self, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    home = room

    def copy(self, _lane: object, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def swap(self, lane: object, sends: object, receives: object) -> None:
        raise NotImplementedError("one rank sends nothing")

    def mark(self, _lane: object) -> Mark:
        return None

    def follow(self, lane: object, mark: Mark) -> None:
        pass

    def join(self, lane: object, work: object) -> None:
        pass

    def finish(self, mark: Mark) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Rig:
    """What the steps run on: a GPU, or CPUs at a thousandth of the size."""

    is_tiny: bool  # whether it is the stand-in

    def scaled(self, size_bytes: int) -> int:
        """Return the bytes to use for what would be `size_bytes` on a GPU: whole pages."""
        return size_bytes if not self.is_tiny else max(1, size_bytes // THOUSANDTH // 4096) * 4096

    def device(self) -> str:
        return "cpu" if self.is_tiny else "cuda"

    def lanes(self) -> Lanes:
        return HostLanes() if self.is_tiny else CudaQueues()

    def pin(self, memory: Any) -> None:
        if not self.is_tiny:
            pin(memory)

    def unpin(self, memory: Any) -> None:
        if not self.is_tiny:
            unpin(memory)

    def finish(self) -> None:
        if not self.is_tiny:
            torch.cuda.synchronize()


def took(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


# -- 1: memory that outlives its process ----------------------------------------------------------


def register(rig: Rig) -> Iterator[Row]:
    """Pin a memory file, release it, and have another process pin it again, as a recovery does."""
    size_bytes = rig.scaled(16 * GIB)
    fd = anonymous_file()
    reserve(fd, size_bytes)
    yield from _registered(rig, fd, "first process")
    command = [*step_command(ATTACHES, is_tiny=rig.is_tiny), "--fd", str(fd)]
    told = subprocess.run(command, pass_fds=[fd], check=True, capture_output=True, text=True)
    yield from rows_in(told.stdout)


def attach(rig: Rig, fd: int) -> Iterator[Row]:
    """Pin a memory file that another process has filled."""
    yield from _registered(rig, fd, "another process, the pages stand")


def _registered(rig: Rig, fd: int, who: str) -> Iterator[Row]:
    size_bytes = os.fstat(fd).st_size
    with mmap.mmap(fd, size_bytes) as mapped:
        memory = np.frombuffer(mapped, np.uint8)
        settings = {"bytes": size_bytes}
        works: tuple[tuple[str, Callable[[], object]], ...] = (
            ("touch", memory[::4096].sum),
            ("pin", partial(rig.pin, memory)),
            ("release", partial(rig.unpin, memory)),
            ("pin again", partial(rig.pin, memory)),
        )
        for name, work in works:
            per_gb_s = took(work) * 1e9 / size_bytes
            yield Row(name=f"{who}: {name}", values=(per_gb_s,), unit="s/GB", settings=settings)
        rig.unpin(memory)
        del memory, work, works  # or the mapping cannot be closed: they refer to it


# -- 2: bytes off the device ----------------------------------------------------------------------

CHUNKS_MIB: Final = (4, 16, 32, 64, 128, 256)


def copies(rig: Rig) -> Iterator[Row]:
    """Copy from the device to three kinds of memory, by chunks of several sizes, alone and not."""
    size_bytes = rig.scaled(12 * GIB)
    source = rig.lanes().room(size_bytes)
    fd = anonymous_file()
    reserve(fd, size_bytes)
    memory = np.frombuffer(mmap.mmap(fd, size_bytes), np.uint8)
    rig.pin(memory)
    registered = torch.from_numpy(memory)
    targets = {
        "pageable": torch.empty(size_bytes, dtype=torch.uint8),
        "pin_memory": torch.empty(size_bytes, dtype=torch.uint8, pin_memory=not rig.is_tiny),
        "registered slab's memory": registered,
    }
    rates = {}
    for name, target in targets.items():
        _copied(rig, target, source, size_bytes)
        seconds = [_copied(rig, target, source, rig.scaled(32 * MIB)) for _ in range(3)]
        rates[name] = tuple(size_bytes / MIB / one for one in seconds)
        yield Row(name=f"to {name}", values=rates[name], unit="MiB/s")
    pairs = zip(rates["registered slab's memory"], rates["pin_memory"], strict=True)
    yield Row(name="registered / pin_memory", values=tuple(a / b for a, b in pairs), unit="")
    for chunk in CHUNKS_MIB:
        chunk_bytes = rig.scaled(chunk * MIB)
        seconds = [_copied(rig, registered, source, chunk_bytes) for _ in range(3)]
        rate = tuple(size_bytes / MIB / one for one in seconds)
        yield Row(name=f"slab, chunks of {chunk} MiB", values=rate, unit="MiB/s")
    yield from _beside_products(rig, registered, source)
    rig.unpin(memory)
    os.close(fd)


def _copied(rig: Rig, target: torch.Tensor, source: torch.Tensor, chunk_bytes: int) -> float:
    lanes = rig.lanes()

    def copy() -> None:
        for at in range(0, len(source), chunk_bytes):
            lanes.copy("local", target[at : at + chunk_bytes], source[at : at + chunk_bytes])
        lanes.finish(lanes.mark("local"))

    return took(copy)


def _beside_products(rig: Rig, target: torch.Tensor, source: torch.Tensor) -> Iterator[Row]:
    """Tell how much longer matrix products take that outlast a copy under way."""
    width = 8192 if not rig.is_tiny else 64
    dtype = torch.bfloat16 if not rig.is_tiny else torch.float32
    left = torch.randn(width, width, device=rig.device(), dtype=dtype)
    lanes = rig.lanes()

    def products() -> None:
        for _ in range(500):
            left @ left
        lanes.finish(lanes.mark("training"))

    def beside() -> None:
        chunk_bytes = rig.scaled(32 * MIB)
        for at in range(0, len(source), chunk_bytes):
            lanes.copy("local", target[at : at + chunk_bytes], source[at : at + chunk_bytes])
        products()

    products()
    alone, both = [], []
    for _ in range(3):
        alone.append(took(products))
        both.append(took(beside))
        rig.finish()
    yield Row(name="500 products alone", values=tuple(alone))
    yield Row(name="500 products, and a copy of 12 GiB", values=tuple(both))


# -- 3: what a checkpoint of every iteration costs -------------------------------------------------


def overhead(rig: Rig) -> Iterator[Row]:
    """Train with each way to checkpoint, in turns on the same tensors."""
    if rig.is_tiny:
        training = GpuTraining(named_size("tiny"), device="cpu", batch=1, block=16, passes=2)
    else:
        training = one_billion("cuda")
    with PinnedKeeper(training, lanes=rig.lanes(), pinned=not rig.is_tiny) as keeper:
        turns = [one_turn(training, keeper) for _ in range(1 if rig.is_tiny else 2)]
    yield from rows(turns, training)
    yield from rows_of_peers(training)


# -- 4 and 5: real runs ---------------------------------------------------------------------------


def restart(rig: Rig) -> Iterator[Row]:
    """Kill the one worker of a real run, under FSDP2 and under ZeRO-3: the same losses?"""
    for framework, size, *more in (("fsdp2", "300m", "--compile"), ("zero3", "small")):
        scenario = Scenario().add(WorkerCrash("rank-0"), iteration=ITERATIONS // 2)
        with ready_lab(1, below=SHARED_MEMORY) as lab:
            result = twice(lab, _job(rig, framework, size, *more), scenario, replicas=1)
        yield from _of_recovery(framework, result)


def two_workers(rig: Rig) -> Iterator[Row]:
    """Train on two nodes over Gloo, copies every step, and kill one with its memory."""
    scenario = Scenario().add(NodeLoss("rank-1"), iteration=ITERATIONS // 2)
    with ready_lab(2, 1, below=SHARED_MEMORY) as lab:
        result = twice(lab, _job(rig, "fsdp2", "small", "--backend", "gloo"), scenario, replicas=2)
    yield from _of_recovery("two workers, Gloo", result)


def twice(lab: Lab, job: Job, scenario: Scenario, *, replicas: int) -> tuple[RunReport, Comparison]:
    """Run a job without and with failures; returns the report of the latter, and both compared."""
    plain = lab.train(job, name="undisturbed", replicas=replicas).wait().report()
    run = lab.train(job, name="with-failures", replicas=replicas, scenario=scenario)
    report = run.wait().report()
    return report, report.losses_match(plain)


def _job(rig: Rig, framework: str, size: str, *more: str) -> Job:
    if rig.is_tiny:
        size, more = "tiny", tuple(one for one in more if one != "--compile")
    args = ["--framework", framework, "--size", size, "--iterations", str(ITERATIONS), *more]
    return Job(
        script="gemini_lab_bench.benches.gpu_job", args=args, module=True, name=f"gpu-{framework}"
    )


def _of_recovery(name: str, result: tuple[RunReport, Comparison]) -> Iterator[Row]:
    """Tell whether the losses were the same, and what the recovery took.

    Raises:
        GeminiError: A run did not finish, or had no recovery.
    """
    report, comparison = result
    if report.outcome != "finished" or not report.recoveries:
        raise GeminiError(f"{name}: {report.outcome}, {len(report.recoveries)} recoveries")
    recovery: Recovery = report.recoveries[0]
    verdict = {"verdict": str(comparison)}
    yield single(f"{name}: losses bit-identical", float(bool(comparison)), verdict)
    for step in recovery.steps:
        yield Row(name=f"{name}: {step.label}", values=(step.duration_s,))
    for receipt in recovery.receipts:
        rate = receipt.size_bytes / MIB / max(receipt.load_s, 1e-9)
        where = {"tier": receipt.tier, "bytes": receipt.size_bytes}
        yield Row(name=f"{name}: load", values=(rate,), unit="MiB/s", settings=where)


# -- 6: health -------------------------------------------------------------------------------------

QUERY: Final = (
    "name,ecc.errors.uncorrected.volatile.total,temperature.gpu,clocks.sm,pcie.link.gen.current"
)


def health(rig: Rig) -> Iterator[Row]:
    """Read the GPU's health and speed, and see a flipped bit in pinned memory refused."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    if rig.is_tiny:
        command = ["echo", "no GPU, 0, 0, 0"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    yield single("GPU read", 1.0, {"told": told.stdout.strip()})
    side, dtype = (64, torch.float32) if rig.is_tiny else (SIDE, torch.float16)
    tflops = product_tflops(torch.device(rig.device()), side=side, dtype=dtype)
    found = [one.seen for source in (GpuHealth(), GpuSpeed()) for one in source.read()]
    yield Row(name="matrix products", values=(tflops,), unit="TFLOPS", settings={"faults": found})
    size_bytes = rig.scaled(1 * GIB)
    slab = Slab.create([SlotSpec(0, size_bytes)], chunk_bytes=rig.scaled(32 * MIB))
    rig.pin(slab.memory)
    version = slab.begin(0, 1)
    version.data[:size_bytes] = 7
    version.seal(size_bytes)
    version.commit(size_bytes)
    whole = not slab.read(0, 1).bad_chunks()
    flip_bit(slab, 0, 1, byte_offset=size_bytes // 2, bit=3)
    refused = bool(slab.read(0, 1).bad_chunks())
    rig.unpin(slab.memory)
    slab.close()
    if not (whole and refused):
        raise IntegrityError(f"a whole version was {whole}, and a damaged one refused: {refused}")
    yield single("a flipped bit in pinned memory is found", 1.0)


# -- all of them -----------------------------------------------------------------------------------

STEPS: Final[dict[str, tuple[Callable[[Rig], Iterator[Row]], float]]] = {
    "register": (register, 80.0),
    "copies": (copies, 100.0),
    "overhead": (overhead, 150.0),
    "restart": (restart, 160.0),
    "two workers": (two_workers, 80.0),
    "health": (health, 60.0),
}
"""What each step does, and the seconds that it may take: ten minutes in all."""


def step_command(step: str, *, is_tiny: bool) -> list[str]:
    """Return the command of one step's process."""
    tiny = ["--tiny"] if is_tiny else []
    return python_command("gemini_lab_bench.benches.gpu_steps", step, *tiny)


def rows_in(text: str) -> list[Row]:
    """Return the rows that a step printed, one a line of JSON; other lines do not count."""
    found = []
    for line in text.splitlines():
        if line.startswith(ROW):
            told = json.loads(line)["row"]
            told["values"] = tuple(told["values"])
            found.append(Row(**told))
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this bench can be told besides."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="all that one GPU settles in ten minutes: pinned memory, copies, overhead, restarts, "
        "two workers, health",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="with --all: on CPUs at a thousandth of the size"
    )
    parser.add_argument(
        "--lines", type=Path, metavar="FILE", help="with --all: append values here as they come"
    )


def bench(
    repeats: int,
    *,
    all: bool,  # noqa: A002 - the option's own name
    tiny: bool,
    lines: Path | None,
) -> list[Row]:
    """Run the `gpu` bench, or with `all` every step, whose numbers of repeats are their own.

    Raises:
        ConfigError: There is no GPU, or it is too small.
    """
    if not all:
        return one_gpu(repeats)
    if not tiny:
        require_gpu()
    return every_step(is_tiny=tiny, lines=lines)


def every_step(*, is_tiny: bool, lines: Path | None) -> list[Row]:
    """Run all steps, and tell each one's rows when it ends."""
    found: list[Row] = []
    for step, (_, limit_s) in STEPS.items():
        started_s = time.monotonic()
        told = run_step(step, limit_s * (4 if is_tiny else 1), is_tiny=is_tiny)
        print(f"\n{step}, {time.monotonic() - started_s:.1f} s")  # noqa: T201
        print(table(told))  # noqa: T201
        sys.stdout.flush()
        if lines is not None:
            with _made(lines).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"step": step, **row.to_json()}) + "\n" for row in told)
        found += told
    return found


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run_step(step: str, limit_s: float, *, is_tiny: bool) -> list[Row]:
    """Run one step in a session of its own; what it told before it failed counts, too."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            step_command(step, is_tiny=is_tiny),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            why = "" if process.wait(limit_s) == 0 else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            why = f"it took longer than its {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        text = out.read()
    told = rows_in(text)
    if why:
        last = [line for line in text.splitlines() if line.strip() and not line.startswith(ROW)][
            -1:
        ]
        told.append(Row(name=step, values=(), why_not=f"{why}: {' '.join(last)[:200]}"))
    return told


def main() -> None:
    """Run one step, and print its rows."""
    parser = argparse.ArgumentParser(prog="gpu_steps", description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=[*STEPS, ATTACHES])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--fd", type=int)
    told = parser.parse_args()
    rig = Rig(told.tiny)
    made = attach(rig, told.fd) if told.step == ATTACHES else STEPS[told.step][0](rig)
    for row in made:
        plain = {name: getattr(row, name) for name in row.__slots__}
        print(json.dumps({"row": plain}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
