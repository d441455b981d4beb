"""An order to rank 0 of an MPI program, by way of `mpiexec`, and what it answers.

Open MPI 5 forwards more than 4096 bytes at a time to a rank on another machine wrongly: of 9,001
bytes on standard input 809 arrived, of 5,001 none. So an order goes in short lines, each when rank
0 has asked for it. Secrets are in it, which must not stand on a command line.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Final

from gemini_lab.limits import END_BYTES

MORE: Final = "gemini_lab: the next part"
PART_CHARACTERS: Final = 1000  # of at most four bytes each
ORDER_S: Final = 20.0
"""For a part to come, once rank 0 has asked for it."""
KEEPALIVE: Final = "PMIX_KEEPALIVE_PIPE"
"""The descriptor of a pipe: Open MPI 5's `mpiexec` ends, with its program, when that is closed."""
HOME_LENT: Final = "GEMINI_LAB_HOME_LENT"
"""Says that the user has no HOME: `mpiexec` does not start without, and scripts are to see none."""
TIDY_S: Final = 5.0
"""For `mpiexec` to end by itself when it is told to; then it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiAnswer:
    """An MPI program's answer and end."""

    answer: str | None  # rank 0's line of JSON, a list; `None` if it gave none
    code: int  # exit status of `mpiexec`
    text: str  # what it said besides
    is_late: bool  # whether it was ended because it took too long


def parts_of(order: str) -> Iterator[str]:
    """Yield the lines in which an order travels, an empty one at its end."""
    for start in range(0, len(order), PART_CHARACTERS):
        yield order[start : start + PART_CHARACTERS]
    yield ""


def take_order(within_s: float = ORDER_S) -> str:
    """Return the order, on rank 0.

    Args:
        within_s: For each part to come. Open MPI does not always pass on that whoever started this
            is gone: then this process ends.

    Raises:
        EOFError: The starter of this program is gone.
    """
    parts: list[str] = []
    while True:
        print(MORE, flush=True)  # noqa: T201
        late = threading.Timer(within_s, _end_forsaken, args=(within_s,))
        late.daemon = True
        late.start()
        line = sys.stdin.readline()
        late.cancel()
        if not line:
            raise EOFError("who gave the order is gone")
        if line == "\n":
            return "".join(parts)
        parts.append(line[:-1])


def _end_forsaken(within_s: float) -> None:
    sys.stderr.write(f"no order came within {within_s:g} s: who was to give it must be gone\n")
    sys.stderr.flush()
    os._exit(1)


def run_with_order(
    command: Sequence[str], order: str, *, env: Mapping[str, str], limit_s: float
) -> MpiAnswer:
    """Run `mpiexec` until it ends, giving its program an order of one line.

    It ends with this process, also where that is killed.
    """
    late = threading.Event()
    with (
        _pipe() as alive,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**env, KEEPALIVE: str(alive)},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=[alive],
        ) as process,
    ):

        def end() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            said = _converse(process.stdin, process.stdout, order)
            process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            timer.cancel()
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - END_BYTES))
        text = errors.read().strip() or "\n".join(said)
    answer = next((line for line in said if line.startswith("[{")), None)
    return MpiAnswer(answer=answer, code=process.returncode, text=text, is_late=late.is_set())


@contextmanager
def _pipe() -> Iterator[int]:
    """Give the reading end of a pipe whose other end this process alone has."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _converse(stdin: IO[str], stdout: IO[str], order: str) -> list[str]:
    """Give the order as it is asked for; returns all that is said besides."""
    parts, said = parts_of(order), list[str]()
    for line in stdout:
        if line.rstrip("\n") != MORE:
            said.append(line.rstrip("\n"))
        elif (part := next(parts, None)) is not None:
            with suppress(BrokenPipeError):  # what it says at its end tells more
                stdin.write(f"{part}\n")
                stdin.flush()
    with suppress(BrokenPipeError):
        stdin.close()
    return said


def _end(process: subprocess.Popen[str]) -> None:
    """End `mpiexec` and its program; it takes away its files in /tmp and /dev/shm if it may."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TIDY_S)
