"""Starts the ranks of one peer for one turn, watches their memory, and collects what they found."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.units import format_seconds
from gemini_lab_bench.in_memory import folder_in_memory
from gemini_lab_bench.peers.contract import Findings, PeerTask
from gemini_lab_bench.peers.environments import source_folder
from gemini_lab_bench.peers.turn import SAMPLED, SAMPLING

PATIENCE_S: Final = 600.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTurn:
    """What all ranks of a peer found in one turn: of each time and count, the worst."""

    findings: Findings  # times and flips
    # Most memory of ranks, helpers and memory files during a save and a restore.
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What every peer is measured with; see `PeerTask`."""

    size_bytes: int
    ranks: int
    iteration_s: float


def run_turn(peer: str, python: Path, conditions: Conditions, *, flips: int, seed: int) -> PeerTurn:
    """Run one turn of one peer, in processes that are gone afterwards."""
    with workplace("gemini-lab-peers-") as folder:
        port = free_port()
        processes = [
            _start(
                PeerTask(
                    peer=peer,
                    rank=rank,
                    ranks=conditions.ranks,
                    flips=flips,
                    seed=seed,
                    size_bytes=conditions.size_bytes,
                    iteration_s=conditions.iteration_s,
                    folder=folder,
                ),
                python,
                port,
            )
            for rank in range(conditions.ranks)
        ]
        try:
            peak_bytes = _watch(processes, folder)
        finally:
            end_ranks(processes)
        found = collect(folder, conditions.ranks)
    return PeerTurn(findings=combine(found), peak_bytes=peak_bytes)


def collect(folder: Path, ranks: int) -> list[Findings]:
    """Return the ranks' answers, and why one gave none if none reported an error."""
    found, silent = [], []
    for rank in range(ranks):
        path = folder / f"rank-{rank}.json"
        if path.exists():
            found.append(Findings(**json.loads(path.read_text(encoding="utf-8"))))
        else:
            silent.append(rank)
    if silent and not any(one.error for one in found):
        log = folder.parent / f"log-{silent[0]}"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        text = f"rank {silent[0]} ended, or was silent for {format_seconds(PATIENCE_S)}: {last}"
        found.append(Findings(error=text))
    return found


def combine(found: Sequence[Findings]) -> Findings:
    """Return what the ranks found, as one: the longest times, the flips of the one that flipped."""
    details: dict[str, float] = {}
    for one in found:
        for name, took_s in one.details.items():
            details[name] = max(took_s, details.get(name, 0.0))
    return Findings(
        held_up_s=_longest([one.held_up_s for one in found]),
        peer_copy_s=_longest([one.peer_copy_s for one in found]),
        back_to_back_s=_longest([one.back_to_back_s for one in found]),
        restore_s=_longest([one.restore_s for one in found]),
        guarded_torn=_most([one.guarded_torn for one in found]),
        torn=_most([one.torn for one in found]),
        refuses_torn=any(one.refuses_torn for one in found),
        take_over_s=_longest([one.take_over_s for one in found]),
        lost_saves=_most([one.lost_saves for one in found]),
        flips=next((one.flips for one in found if one.flips), {}),
        details=details,
        versions=next((one.versions for one in found if one.versions), ""),
        error=next((one.error for one in found if one.error), ""),
    )


def _longest(times_s: Sequence[float | None]) -> float | None:
    return max((one for one in times_s if one is not None), default=None)


def _most(counts: Sequence[int | None]) -> int | None:
    return max((one for one in counts if one is not None), default=None)


def _start(task: PeerTask, python: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a rank, as the only one of a node of its own."""
    values = {name: getattr(task, name) for name in task.__slots__} | {"folder": str(task.folder)}
    environment = {
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": task.rank,
        "GROUP_WORLD_SIZE": task.ranks,
        "NODE_RANK": task.rank,
        "TORCHELASTIC_RUN_ID": f"{task.folder.parent.name}-{task.rank}",
    }
    command = [str(python), "-m", "gemini_lab_bench.peers.turn", json.dumps(values)]
    return start_rank(
        command, task.rank, task.ranks, folder=task.folder, port=port, environment=environment
    )


def start_rank(
    command: Sequence[str],  # what it runs
    rank: int,  # its number
    ranks: int,  # how many there are
    *,
    # It works there; beside it, `path` is what it imports from, and its log is written.
    folder: Path,
    port: int,  # where the ranks meet
    environment: Mapping[str, object] | None = None,  # further variables
) -> subprocess.Popen[bytes]:
    """Start a process with a rank's environment, in a session of its own."""
    variables = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // ranks),
        "PYTHONPATH": folder.parent / "path",
        "DS_ACCELERATOR": "cpu",
        **(environment or {}),
    }
    with (folder.parent / f"log-{rank}").open("wb") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )


@contextmanager
def workplace(prefix: str) -> Iterator[Path]:
    """Make a folder for ranks to work in, in memory if possible; see `start_rank`."""
    with folder_in_memory(prefix) as folder:
        (folder / "path").mkdir()
        (folder / "path" / "gemini_lab").symlink_to(source_folder())
        (folder / "data").mkdir()
        yield folder / "data"


def _watch(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait until all ranks have answered or one cannot any more; gives the most memory seen."""
    peak_bytes = 0
    deadline_s = time.monotonic() + PATIENCE_S
    answers = [folder / f"rank-{rank}.json" for rank in range(len(processes))]
    while time.monotonic() < deadline_s:
        if all(answer.exists() for answer in answers):
            break
        ended = [process.poll() is not None for process in processes]
        if any(gone and not answers[rank].exists() for rank, gone in enumerate(ended)):
            break
        if any(_has_error(answer) for answer in answers):
            break
        if (folder / SAMPLING).exists():
            now_bytes = family_bytes(one.pid for one in processes) + folder_bytes(folder)
            peak_bytes = max(peak_bytes, now_bytes)
            (folder / SAMPLED).touch()
        time.sleep(_POLL_S)
    return peak_bytes


def _has_error(answer: Path) -> bool:
    return answer.exists() and bool(json.loads(answer.read_text(encoding="utf-8"))["error"])


def end_ranks(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the ranks and the helpers that they started."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in processes:
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- memory of processes ---------------------------------------------------------------------------


def family_bytes(roots: Iterable[int]) -> int:
    """Sum the proportional set size of `roots` and all their descendants.

    Memory that several of them map counts once. Where the system does not tell it, resident sizes
    are added up, which counts shared memory in each of them.
    """
    family: dict[int, psutil.Process] = {}
    for pid in roots:
        try:
            root = psutil.Process(pid)
            family |= {one.pid: one for one in (root, *root.children(recursive=True))}
        except psutil.Error:  # it ended meanwhile
            continue
    return sum(_process_bytes(process) for process in family.values())


def _process_bytes(process: psutil.Process) -> int:
    try:
        info = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "pss", info.rss))


def folder_bytes(folder: Path) -> int:
    """Sum the size of all files below `folder`, without those that go or move meanwhile."""
    total = 0
    for where, _, names in os.walk(folder):  # unlike `rglob`, it bears folders that are renamed
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(where, name).stat().st_size
    return total
