"""What one process can have no more of: limits of the kernel's, set from outside and taken back."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.errors import ConfigError

SPARE_S: Final = 0.2
FILE_BYTES: Final = 1 << 20
"""Of a process whose memory files cannot grow: its log can for a while."""


def exhaust(
    process: psutil.Process, how: str, others: Callable[[], Iterable[psutil.Process]]
) -> Callable[[], None]:
    """Limit a process, and what it starts meanwhile, to what it has of something.

    Args:
        process: Which.
        how: Of `"files"`: descriptors; `"memory"`: address space; `"shm"`: memory files.
        others: Those of the run, some of which it may have started; asked when it is mended.

    Returns:
        What mends it.

    Raises:
        ConfigError: It is gone.
    """
    try:
        match how:
            case "files":
                resource, most = psutil.RLIMIT_NOFILE, process.num_fds()
            case "memory":
                resource, most = psutil.RLIMIT_AS, process.memory_info().vms
            case _:
                resource, most = psutil.RLIMIT_FSIZE, FILE_BYTES
        usual, hard = process.rlimit(resource)
        process.rlimit(resource, (most, hard))
    except (psutil.Error, ProcessLookupError) as error:
        raise ConfigError(f"process {process.pid} is gone") from error
    return lambda: lift([process, *others()], resource, most, usual)


def fill_log(
    owner: psutil.Process, log: Path, others: Callable[[], Iterable[psutil.Process]]
) -> Callable[[], None]:
    """Keep a run's owner from writing to its log, as on a full disk; return what mends it.

    Args:
        owner: Its process.
        log: The file.
        others: The run's processes: those that it starts have disks of their own, and memory.
    """
    usual, hard = owner.rlimit(psutil.RLIMIT_FSIZE)
    most = log.stat().st_size
    owner.rlimit(psutil.RLIMIT_FSIZE, (most, hard))
    is_over = threading.Event()

    def spare_others() -> None:
        while not is_over.wait(SPARE_S):
            started = [one for one in others() if one.pid != owner.pid]
            lift(started, psutil.RLIMIT_FSIZE, most, usual)

    watch = threading.Thread(target=spare_others, name="chaos-log-full", daemon=True)
    watch.start()

    def empty() -> None:
        is_over.set()
        watch.join()
        lift([owner, *others()], psutil.RLIMIT_FSIZE, most, usual)

    return empty


def lift(processes: Iterable[psutil.Process], resource: int, most: int, usual: int) -> None:
    """Give those of these that may have `most` of something as much as is usual again."""
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):  # it may be over
            now, hard = process.rlimit(resource)
            if now == most:
                process.rlimit(resource, (usual, hard))
