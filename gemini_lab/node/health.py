"""The faults that a node's machine tells of: its kernel's, and those of NVIDIA's driver.

Nothing here needs root: a file that this user may not read tells nothing. All reading is done by a
thread of its own, because a broken disk or driver may never answer.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec
import numpy as np

from gemini_lab.job import python_command
from gemini_lab.memory.free import kernel_kills
from gemini_lab.recovery.ailments import RULES, MachineFault
from gemini_lab.units import format_bytes

LOOK_S: Final = 30.0
SILENT_S: Final = 120.0
"""A look that takes longer hangs."""
DRIVER_S: Final = 10.0
MOST_NEWS: Final = 256
FULL_SHARE: Final = 0.01
"""Of a disk: with less free it is full."""
JUMP_S: Final = 1.0
MOST_RECORDS: Final = 1000
"""Of the kernel's log, read in one look."""
FAILED: Final = frozenset({48, 62, 64, 74, 79, 94, 95, 119, 120})
"""XIDs after which NVIDIA has a GPU reset or examined; others are often a program's own fault."""


class HealthSource(Protocol):
    """A source of a machine's faults."""

    def read(self) -> Iterable[MachineFault]:
        """Return what was seen since the last call; it may block."""


class Counters:
    """Counts of faults that only rise: what they rose by since the last look is news."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def rise(self, name: str, count: int) -> int:
        """Return by how much a count rose; nothing at the first look, which only begins."""
        before = self._before.get(name, count)
        self._before[name] = count
        return max(0, count - before)


# -- the kernel ------------------------------------------------------------------------------------

LOG: Final = (
    (re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)"), "gpu_error"),
    (re.compile(r"\[Hardware Error\]|mce: \[|Machine check"), "machine_check"),
    (re.compile(r"I/O error, dev |Buffer I/O error|EXT4-fs error|XFS .*(?:orruption|I/O error)"),
     "disk_error"),
)  # fmt: skip
"""By their words, the faults that the kernel's log tells of."""


# Interfaces with a device: those of containers and bridges come and go.
INTERFACES: Final = "sys/class/net/*/device/net/*"
INFINIBAND: Final = "sys/class/infiniband/*/ports/*/counters"


class KernelHealth:
    """A machine's kernel as a source: its counters and its log."""

    def __init__(
        self,
        root: Path = Path("/"),  # where its files are; another folder in tests
        *,
        folders: Sequence[Path] = (),  # of the disks that the node writes to
        # The wall clock's seconds, and those of a clock that nobody sets.
        clocks: Callable[[], tuple[float, float]] = lambda: (time.time(), time.monotonic()),
    ) -> None:
        self._root, self._clocks = root, clocks
        self._folders = folders or (Path(tempfile.gettempdir()), Path.cwd())
        self._counters = Counters()
        self._apart_s: float | None = None
        self._log = self._open_log()

    def read(self) -> Iterator[MachineFault]:
        """Yield what is seen now, or has happened since the last call."""
        for fault, files, words in (
            ("machine_memory", "sys/devices/system/edac/mc/mc*/ue_count", "uncorrected errors"),
            ("memory_corrected", "sys/devices/system/edac/mc/mc*/ce_count", "corrected errors"),
            ("link_error", f"{INTERFACES}/carrier_down_count", "losses of a network's carrier"),
            ("link_error", f"{INTERFACES}/statistics/rx_crc_errors", "broken frames received"),
            ("link_error", f"{INFINIBAND}/link_downed", "losses of an InfiniBand link"),
            ("link_error", f"{INFINIBAND}/symbol_error", "errors of InfiniBand links"),
            ("disk_error", "sys/fs/ext4/*/errors_count", "errors of ext4"),
            ("disk_error", "sys/block/*/device/ioerr_cnt", "errors of disks"),
        ):
            if more := self._counters.rise(files, sum(map(_number, self._root.glob(files)))):
                yield MachineFault(fault, f"{more} {words}")
        if more := self._counters.rise("kills", kernel_kills(self._root / "proc/vmstat")):
            yield MachineFault("oom_kill", f"the kernel's OOM killer ended {more} processes")
        if more := self._counters.rise("checks", self._checks()):
            yield MachineFault("machine_check", f"{more} machine checks")
        yield from self._disks()
        yield from self._clock()
        for line in self._records():
            yield from found_in(line)

    def _checks(self) -> int:
        """Return how many machine checks all processors had."""
        with suppress(OSError, ValueError):
            for line in (self._root / "proc/interrupts").read_text().splitlines():
                name, _, rest = line.strip().partition(":")
                if name == "MCE":
                    return sum(int(word) for word in rest.split() if word.isdigit())
        return 0

    def _disks(self) -> Iterator[MachineFault]:
        for folder in self._folders:
            with suppress(OSError):
                disk = os.statvfs(folder)
                if disk.f_blocks and disk.f_bavail < FULL_SHARE * disk.f_blocks:
                    left = disk.f_bavail * disk.f_frsize // 2**20
                    yield MachineFault("disk_full", f"{folder} has {left} MiB left")

    def _clock(self) -> Iterator[MachineFault]:
        wall_s, steady_s = self._clocks()
        before, self._apart_s = self._apart_s, wall_s - steady_s
        if before is not None and abs(self._apart_s - before) > JUMP_S:
            yield MachineFault("clock", f"the clock was set by {self._apart_s - before:+.0f} s")

    def _open_log(self) -> int | None:
        """Return a descriptor of the kernel's log from now on; `None` if this user has none."""
        with suppress(OSError):
            file = os.open(self._root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(file, 0, os.SEEK_END)
            return file
        return None

    def _records(self) -> Iterator[str]:
        if self._log is None:
            return
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self._log, 8192)  # one record at a time, at most so long
            except BlockingIOError:
                return
            except OSError:  # some were overwritten before they were read
                continue
            if not record:
                return
            yield record.decode(errors="replace")


def found_in(record: str) -> Iterator[MachineFault]:
    """Yield the faults that a record of the kernel's log tells of."""
    text = record.partition(";")[2].partition("\n")[0] or record
    for pattern, fault in LOG:
        if found := pattern.search(text):
            is_failed = fault == "gpu_error" and int(found[2]) in FAILED
            yield MachineFault("gpu_failed" if is_failed else fault, text.strip()[:300])


def _number(path: Path) -> int:
    with suppress(OSError, ValueError):
        return int(path.read_text().strip(), 0)
    return 0


# -- NVIDIA's driver -------------------------------------------------------------------------------

GPUS: Final = (
    "--query-gpu=ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.volatile.total,"
    "clocks_throttle_reasons.hw_thermal_slowdown,clocks_throttle_reasons.hw_power_brake_slowdown"
)
ROWS: Final = "--query-remapped-rows=remapped_rows.pending,remapped_rows.failure"
FORM: Final = "--format=csv,noheader,nounits"


def ask_driver(*arguments: str) -> str:
    """Return what `nvidia-smi` prints.

    Raises:
        OSError: It cannot be run.
        TimeoutExpired: It does not answer.
    """
    done = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=DRIVER_S, check=False
    )
    return done.stdout[: 1 << 20] if done.returncode == 0 else ""


class GpuHealth:
    """NVIDIA's driver as a source: this machine's GPUs.

    Args:
        ask: Runs `nvidia-smi`.
    """

    def __init__(self, ask: Callable[..., str] = ask_driver) -> None:
        self._ask = ask
        self._counters = Counters()

    def read(self) -> Iterator[MachineFault]:
        """Yield what is seen now, or has happened since the last call."""
        try:
            gpus, rows = self._ask(GPUS, FORM), self._ask(ROWS, FORM)
            links = self._ask("nvlink", "--errorcounters")
        except subprocess.TimeoutExpired:
            yield MachineFault("gpu_silent", f"nvidia-smi did not answer within {DRIVER_S:.0f} s")
            return
        except OSError:
            return
        for number, (wrong, corrected, hot, power) in enumerate(_table(gpus, 4)):
            if more := self._rise(f"wrong {number}", wrong):
                yield MachineFault(
                    "gpu_memory", f"GPU {number}: {more} uncorrected errors of memory"
                )
            if more := self._rise(f"corrected {number}", corrected):
                yield MachineFault(
                    "gpu_corrected", f"GPU {number}: {more} corrected errors of memory"
                )
            for word, why in ((hot, "too hot"), (power, "short of power")):
                if word == "Active":
                    yield MachineFault("gpu_throttled", f"GPU {number} runs slower: it is {why}")
        for number, (pending, failure) in enumerate(_table(rows, 2)):
            if failure == "Yes" or (failure.isdigit() and int(failure)):
                yield MachineFault("gpu_rows", f"GPU {number} could not replace bad rows of memory")
            elif pending == "Yes" or (pending.isdigit() and int(pending)):
                yield MachineFault("gpu_reset_wanted", f"GPU {number} replaces bad rows at a reset")
        errors = sum(int(count) for count in re.findall(r"Errors?: (\d{1,18})", links))
        if more := self._counters.rise("links", errors):
            yield MachineFault("nvlink", f"{more} errors of NVLinks")

    def _rise(self, name: str, word: str) -> int:
        return self._counters.rise(name, int(word)) if re.fullmatch(r"\d{1,18}", word) else 0


def _table(text: str, columns: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == columns:
            yield words


# -- at the start ----------------------------------------------------------------------------------

COPIED_BYTES: Final = 64 * 2**20
WRITTEN_BYTES: Final = 8 * 2**20
LEAST_MEMORY_SPEED: Final = 2**30  # bytes/s
"""A machine whose memory is slower than this does not train; others reach five times as much."""
LEAST_DISK_SPEED: Final = 4 * 2**20  # bytes/s


class FirstLook:
    """A look at the speed of memory and disk, once; it takes a second.

    Args:
        folder: On the disk.
        clocks: Seconds that this thread has computed, and those that have passed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clocks: tuple[Callable[[], float], Callable[[], float]] = (
            time.thread_time,
            time.monotonic,
        ),
    ) -> None:
        self._folder = folder
        self._computed_s, self._passed_s = clocks
        self._is_done = False

    def read(self) -> Iterator[MachineFault]:
        """Yield what is far too slow, at the first call."""
        if self._is_done:
            return
        self._is_done = True
        source, copy = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
        copy[:] = 0  # so that the kernel gives its pages now
        # A busy machine is no slow one: only the time on a processor counts.
        took_s = self._took_s(self._computed_s, lambda: np.copyto(copy, source))
        if LEAST_MEMORY_SPEED * took_s > COPIED_BYTES:
            yield MachineFault("slow_memory", _speed(COPIED_BYTES, took_s))
        with suppress(OSError), tempfile.TemporaryFile(dir=self._folder) as file:
            took_s = self._took_s(self._passed_s, lambda: _write_through(file))
            if LEAST_DISK_SPEED * took_s > WRITTEN_BYTES:
                yield MachineFault("slow_disk", _speed(WRITTEN_BYTES, took_s))

    @staticmethod
    def _took_s(clock: Callable[[], float], do: Callable[[], object]) -> float:
        """Return the shortest of three times."""
        times_s = []
        for _ in range(3):
            began_s = clock()
            do()
            times_s.append(clock() - began_s)
        return min(times_s)


USUAL_TFLOPS: Final = (
    (re.compile(r"\bB200\b"), 2250.0),
    (re.compile(r"\bH200\b|\bH100\b.*\bHBM3\b"), 989.0),
    (re.compile(r"\bH100 PCIe\b"), 756.0),
    (re.compile(r"\bA100\b"), 312.0),
    (re.compile(r"\bV100\b"), 112.0),
)
"""By its name, a GPU's products of fp16 matrices as NVIDIA's data sheets give them, dense."""
LEAST_SHARE: Final = 0.3
"""Of that. Products of this size reach some two thirds; what trains beside them takes a part."""
GPU_S: Final = 60.0
"""For importing torch, which takes most of it, and the products of all GPUs."""


class GpuSpeed:
    """A look at the speed of GPUs, once, by `gemini_lab.node.gpu_speed`.

    Args:
        program: Prints the speeds; by default, that module.
    """

    def __init__(self, program: Sequence[str] = ()) -> None:
        self._program = program or python_command("gemini_lab.node.gpu_speed")
        self._is_done = False

    def read(self) -> Iterator[MachineFault]:
        """Yield the GPUs that are far too slow, at the first call."""
        if self._is_done:
            return
        self._is_done = True
        try:
            done = subprocess.run(
                self._program, capture_output=True, text=True, timeout=GPU_S, check=False
            )
        except subprocess.TimeoutExpired:
            yield MachineFault("slow_gpu", f"no matrix product within {GPU_S:.0f} s")
            return
        for number, line in enumerate(done.stdout[: 1 << 16].splitlines()):
            name, tflops = msgspec.json.decode(line, type=tuple[str, float])
            for pattern, usual in () if "MIG" in name else USUAL_TFLOPS:
                if pattern.search(name) and tflops < LEAST_SHARE * usual:
                    yield MachineFault(
                        "slow_gpu",
                        f"GPU {number} ({name[:100]}): {tflops:.0f} TFLOPS, its kind {usual:.0f}",
                    )


def _write_through(file: IO[bytes]) -> None:
    file.seek(0)
    file.write(bytes(WRITTEN_BYTES))
    file.flush()
    os.fsync(file.fileno())


def _speed(size_bytes: int, took_s: float) -> str:
    return f"{format_bytes(size_bytes / took_s)}/s"


# -- all of it -------------------------------------------------------------------------------------


def sources() -> list[HealthSource]:
    """Return what there is on this machine."""
    found: list[HealthSource] = [KernelHealth(), FirstLook()]
    if shutil.which("nvidia-smi") is not None:
        found += [GpuHealth(), GpuSpeed()]
    return found


class MachineHealth:
    """Reads all sources every `LOOK_S`, on a thread of its own.

    Args:
        make: Makes the sources, on that thread.
        every_s: Between two looks.
    """

    def __init__(
        self, make: Callable[[], list[HealthSource]] = sources, *, every_s: float = LOOK_S
    ) -> None:
        self._make, self._every_s = make, every_s
        self._news: deque[MachineFault] = deque(maxlen=MOST_NEWS)
        self._looking_since_s: float | None = None
        # A daemon: a read that never returns must not hold up the agent's end.
        self._thread = threading.Thread(target=self._look, name="gemini-health", daemon=True)

    def news(self) -> list[MachineFault]:
        """Return what was found since the last call; it never blocks. The first call begins."""
        if self._thread.ident is None:
            self._thread.start()
        found = [self._news.popleft() for _ in range(len(self._news))]
        since_s = self._looking_since_s
        if since_s is not None and time.monotonic() - since_s > SILENT_S:
            found.append(MachineFault("silent", f"no answer for {SILENT_S:.0f} s and longer"))
        return found

    def _look(self) -> None:
        made = self._make()
        while True:
            self._looking_since_s = time.monotonic()
            for source in made:
                try:
                    self._news.extend(one for one in source.read() if one.fault in RULES)
                except Exception as error:  # noqa: BLE001 - an edge: it is told, and read again
                    self._news.append(MachineFault("silent", f"{type(error).__name__}: {error}"))
            self._looking_since_s = None
            time.sleep(self._every_s)
