"""A folder in memory for a bench's processes: it goes with the bench, also if that is killed.

Run as `python -m gemini_lab_bench.in_memory FOLDER`, in a session of its own, this is the
folder's guard. Its standard input closes when the bench ends, however that is; then it ends what
still works in the folder, and removes it.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.job import python_command
from gemini_lab.node.processes import kill_all

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where memory files are on Linux
_DLROVER_SOCKETS: Final = Path("/tmp/ckpt_sock")  # noqa: S108 - where DLRover puts them
END_S: Final = 30.0


@contextmanager
def folder_in_memory(prefix: str) -> Iterator[Path]:
    """Make a folder in memory, or among temporary files if there is no such.

    What is beside it in memory under its name and a dash goes with it.

    Args:
        prefix: What its name begins with.
    """
    below = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=below))
    guard = subprocess.Popen(
        python_command("gemini_lab_bench.in_memory", folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # a bench's, which may be waited for until all have closed it
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        yield folder
    finally:
        guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(END_S)
        remove(folder)  # if nobody has: guards can be killed, too


def end_those_in(folder: Path) -> None:
    """End the processes that work in the folder, and what they started."""
    doomed: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                doomed |= {process, *process.children(recursive=True)}
    kill_all(doomed, within_s=END_S)


def remove(folder: Path) -> None:
    """Remove the folder, and shared memory and sockets that bear its name."""
    beside = (place.glob(f"{folder.name}-*") for place in (SHARED_MEMORY, _DLROVER_SOCKETS))
    for path in (folder, *(path for paths in beside for path in paths)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def main() -> None:
    """Guard a folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    end_those_in(folder)
    remove(folder)


if __name__ == "__main__":
    main()
