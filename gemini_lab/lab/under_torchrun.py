"""A user's script under plain torchrun: one for each node, all on this machine, and no lab."""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from gemini_lab.job import HASH_SEED, Job
from gemini_lab.node.build_locks import BuildLocks

LAST_LINES: Final = 12
LAST_BYTES: Final = 16_000
END_S: Final = 10.0
"""For processes that were killed to be gone."""
# Not by a preexec_fn: Python would fork for it, and gRPC's threads here do not survive a fork.
_TORCHRUN: Final = (
    "import runpy; from gemini_lab.engine.process_exit import tie_to_parent; tie_to_parent(); "
    "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
)


class UnderTorchrun:
    """It runs while this is open; what is left of it is killed at the end.

    Args:
        job: The script.
        nodes: How many torchruns.
        workers_per_node: Processes that each starts.
        folder: Has what they print.
    """

    def __init__(self, job: Job, *, nodes: int, workers_per_node: int, folder: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self._printed = folder / "printed.txt"
        _clear_locks()
        ranks = nodes * workers_per_node
        environment = {
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),  # as a lab's workers
            HASH_SEED: "0",
            **os.environ,
            **job.env,
        }
        self._torchruns = []
        with self._printed.open("wb") as printed:
            for node in range(nodes):
                words = [
                    *("--nnodes", nodes, "--node-rank", node, "--nproc-per-node", workers_per_node),
                    *("--master-addr", "127.0.0.1", "--master-port", port, "--max-restarts", 0),
                    *("--log-dir", folder),  # or it would leave one of its own
                    *(["--module"] if job.module else []),
                    *(job.script, *job.args),
                ]
                self._torchruns.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-c", _TORCHRUN, *map(str, words)],
                        cwd=job.cwd,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        families = []
        for torchrun in self._torchruns:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(torchrun.pid)
                families += [*own.children(recursive=True), own]
        for one in families:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(families, timeout=END_S)
        for torchrun in self._torchruns:
            with suppress(subprocess.TimeoutExpired):
                torchrun.wait(END_S)
        _clear_locks()

    def is_over_within(self, timeout_s: float) -> bool:
        """Whether all of them have ended; waits for one of them, but not longer than that."""
        for torchrun in self._torchruns:
            try:
                torchrun.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return self.has_failed
        return True

    @property
    def has_failed(self) -> bool:
        """Whether any of them has ended with an error."""
        return any(one.poll() not in {None, 0} for one in self._torchruns)

    @property
    def last_lines(self) -> list[str]:
        """What was printed last."""
        with self._printed.open("rb") as file:
            file.seek(max(0, self._printed.stat().st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return [*deque((line for line in lines if line.strip()), maxlen=LAST_LINES)]


def _clear_locks() -> None:
    """Take away locks of compilations whose process was killed: plain torchrun waits for ever."""
    locks = BuildLocks.here("torchrun", lambda _: None)
    if locks is not None:
        locks.clear()
