"""How long a killed worker stops training under NVRx's restart within the process.

Four ranks train the lab's tiny GPT in plain PyTorch, and a fifth waits in reserve. One is killed:
the others break off, meet again without it, the fifth takes its place, and all start over in their
processes. Nothing is loaded: the model is what it was in each process, and a new one in the fifth.
"""

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.errors import GeminiError
from gemini_lab_bench.peers.one_turn import end_ranks, free_port, start_rank, workplace

ACTIVE: Final = 4
RANKS: Final = ACTIVE + 1
KILLED: Final = 1
END: Final = "end"
"""A file that tells the ranks to end."""
WARM_UP: Final = 5
"""Iterations of all ranks before one is killed."""
LOOK_S: Final = 0.1
"""How often NVRx may look for failures: more often, its store's time-outs take the processors."""
LIMIT_S: Final = 120.0
END_S: Final = 10.0
_POLL_S: Final = 0.02


def ended_file(folder: Path, first_rank: int) -> Path:
    """Return the file with a line for each iteration that ended: restarts before it, and when."""
    return folder / f"ended-{first_rank}"


def monitor_file(folder: Path, rank: int | str) -> Path:
    """Return the file with the number of the process by which NVRx watches a rank."""
    return folder / f"monitor-{rank}"


def restart_s(python: Path, *, size: str = "tiny", look_s: float | None = None) -> float:
    """Measure from the kill until all active ranks have ended an iteration again.

    Raises:
        GeminiError: They do not begin, or not again.
    """
    with workplace("gemini-lab-nvrx-") as folder:
        words = [folder, free_port(), ACTIVE, size, *([] if look_s is None else [look_s])]
        module = "gemini_lab_bench.peers.nvrx_restart"
        command = [str(python), "-m", module, *map(str, words)]
        port = free_port()
        ranks = [start_rank(command, r, RANKS, folder=folder, port=port) for r in range(RANKS)]
        try:
            _wait_until_all_ended(folder, ranks, restart=0, iterations=WARM_UP)
            killed_s = time.monotonic()
            ranks[KILLED].send_signal(signal.SIGKILL)
            return _wait_until_all_ended(folder, ranks, restart=1) - killed_s
        finally:
            _end(folder, ranks)


def ends_of(folder: Path, restart: int) -> list[list[float]]:
    """Return when each process that ended any iterations did so, after so many restarts."""
    found = []
    for file in folder.glob(ended_file(folder, 0).name.replace("0", "*")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        found.append([ended_s for number, ended_s in told if number == restart])
    return [ends for ends in found if ends]


def _wait_until_all_ended(
    folder: Path, ranks: list[subprocess.Popen[bytes]], *, restart: int, iterations: int = 1
) -> float:
    """Return when all active ranks had ended so many iterations after so many restarts.

    Raises:
        GeminiError: They do not.
    """
    give_up_s = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_s:
        ends = [one for one in ends_of(folder, restart) if len(one) >= iterations]
        if len(ends) >= ACTIVE:
            return max(one[iterations - 1] for one in ends)
        if any(one.poll() is not None for r, one in enumerate(ranks) if r != KILLED):
            break
        time.sleep(_POLL_S)
    logs = [(folder.parent / f"log-{r}").read_text(errors="replace") for r in range(RANKS)]
    last = [text.strip().splitlines()[-1:] for text in logs]
    raise GeminiError(
        f"NVRx's ranks did not end iteration {iterations} after restart {restart} within "
        f"{LIMIT_S:.0f} s; the last lines of each: {last}"
    )


def _end(folder: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    """End the ranks, by their own word if they listen, and the processes that watch them."""
    (folder / END).touch()
    give_up_s = time.monotonic() + END_S
    while any(one.poll() is None for one in ranks) and time.monotonic() < give_up_s:
        time.sleep(_POLL_S)
    watchers = [int(file.read_text()) for file in folder.glob("monitor-*")]
    end_ranks(ranks)
    for pid in watchers:
        with suppress(psutil.NoSuchProcess):
            watcher = psutil.Process(pid)
            if any(str(folder) in word for word in watcher.cmdline()):  # and no later process
                watcher.kill()
