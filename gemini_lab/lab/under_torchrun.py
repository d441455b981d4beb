"""Commands under plain torchrun: what they start ends with them, and with whoever started them.

torchrun starts ranks in sessions of their own, so they outlive a torchrun that is killed, and a
terminal's Ctrl-C does not reach them. A keeper beside each command adopts and ends what is left.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from gemini_lab.engine.process_exit import adopt_orphans
from gemini_lab.job import HASH_SEED, Job, python_command
from gemini_lab.node.build_locks import BuildLocks
from gemini_lab.node.processes import end_orphans

LAST_LINES: Final = 12
LAST_BYTES: Final = 16_000
END_S: Final = 10.0
"""For processes that were killed to be gone."""
LOOK_S: Final = 0.2
"""Between two looks of a keeper at its starter; polling also notices one that dies early."""


def start_with_keeper(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command; SIGTERM, or the end of this process, ends it with all that it has started.

    Returns:
        The keeper. Its exit status is that of the command; if a signal ended that, 128 and more.
    """
    words = [*python_command(__name__, os.getpid()), *command]
    # In a session of its own, a terminal's Ctrl-C does not end the keeper before its command.
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def end_keepers(keepers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End commands that `start_with_keeper` has started, and wait until they are gone."""
    for keeper in keepers:
        keeper.terminate()
    for keeper in keepers:
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(2 * END_S)


class UnderTorchrun:
    """A script under one torchrun for each node, all on this machine, while this is open."""

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
        words = [
            *python_command("torch.distributed.run"),
            *("--nnodes", nodes, "--nproc-per-node", workers_per_node, "--max-restarts", 0),
            *("--master-addr", "127.0.0.1", "--master-port", port),
            *("--log-dir", folder),  # or it would leave one of its own
        ]
        script = [*(["--module"] if job.module else []), job.script, *job.args]
        self._torchruns: list[subprocess.Popen[bytes]] = []
        try:
            with self._printed.open("wb") as printed:
                for node in range(nodes):
                    self._torchruns.append(
                        start_with_keeper(
                            [*map(str, words), f"--node-rank={node}", *script],
                            cwd=job.cwd,
                            env=environment,
                            stdout=printed,
                            stderr=subprocess.STDOUT,
                        )
                    )
        except BaseException:  # Ctrl-C comes at any place, and nobody would leave this
            end_keepers(self._torchruns)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_keepers(self._torchruns)
        _clear_locks()

    def is_over_within(self, timeout_s: float) -> bool:
        """Wait so long for one torchrun; return whether all have ended, or one has failed."""
        for torchrun in self._torchruns:
            try:
                torchrun.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return self.has_failed
        return True

    @property
    def has_failed(self) -> bool:
        return any(one.poll() not in {None, 0} for one in self._torchruns)

    @property
    def last_lines(self) -> list[str]:
        with self._printed.open("rb") as file:
            file.seek(max(0, self._printed.stat().st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return [*deque((line for line in lines if line.strip()), maxlen=LAST_LINES)]


def _clear_locks() -> None:
    """Remove locks of compilations whose process was killed: plain torchrun waits for ever."""
    locks = BuildLocks.here("torchrun", lambda _: None)
    if locks is not None:
        locks.clear()


def keep(parent: int, command: Sequence[str]) -> int:
    """Run a command until it or its starter ends; then end what it has started."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code = 128 + signal.SIGKILL
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while os.getppid() == parent:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(LOOK_S)
                break
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut this short
        end_orphans(lambda _: True, within_s=END_S)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
