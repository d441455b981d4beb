"""The stacks of a worker's threads, on demand: how a worker offers them, and its agent takes them.

A file in the worker's folder asks, and another one answers. So it works from a script's first line
on, and while the training thread is stuck. The pulse's thread answers with Python's lock held: no
frame changes while it is read. A call that keeps this lock lets no thread of Python answer. Then a
signal's handler writes the stacks, and no frame changes because none can run.
"""

import asyncio
import faulthandler
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gemini_lab.limits import read_end
from gemini_lab.node.processes import is_process_stopped

WANTED: Final = "stacks-wanted"
GIVEN: Final = "stacks"
BY_SIGNAL: Final = "stacks-by-signal"
SIGNAL: Final[int] = getattr(signal, "SIGRTMAX", 0) - 3
"""Of real time, which scripts and batch systems do not use; negative on systems without."""
PULSE_S: Final = 3.0  # for the pulse to answer; it looks once a second
SIGNAL_S: Final = 2.0
LOOK_S: Final = 0.05
_THREAD: Final = re.compile(r"^(?:Current t|T)hread (0x[0-9a-f]+)[^\n]*", re.MULTILINE)


class Stacks(NamedTuple):
    """The stacks of a worker's threads."""

    lines: tuple[str, ...]  # in order, the training thread's last; its innermost call comes first
    how: str  # how they were made, or why there are none


# -- the worker ------------------------------------------------------------------------------------


def offer_stacks(folder: str) -> Callable[[], None]:
    """Prepare this process to answer its agent; return the function that its pulse calls.

    Args:
        folder: The worker's own; without one nothing is offered.
    """
    if not folder:
        return lambda: None
    place = Path(folder)
    if SIGNAL > 0:
        # faulthandler keeps the file; appended to, because the agent empties it between two uses.
        faulthandler.register(SIGNAL, (place / BY_SIGNAL).open("ab"), all_threads=True, chain=False)
        # A signal ends a sleep, and some other calls. So all threads block it but the pulse's.
        signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    return lambda: _answer(place)


def _answer(place: Path) -> None:
    if SIGNAL > 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    if not (place / WANTED).exists():
        return
    draft = place / f"{GIVEN}.draft"
    with suppress(OSError):
        (place / WANTED).unlink(missing_ok=True)
        with draft.open("wb") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        names = {one.ident or 0: one.name for one in threading.enumerate()}
        draft.write_text(named(read_end(draft), names, but=threading.get_ident()))
        draft.replace(place / GIVEN)


def named(text: str, names: Mapping[int, str], *, but: int = 0) -> str:
    """Return what faulthandler wrote with the names of the threads.

    Args:
        text: One paragraph a thread.
        names: By the threads' numbers.
        but: The thread that wrote it, which is left out.
    """
    kept = []
    for part in text.strip().split("\n\n"):
        head = _THREAD.search(part)
        number = int(head[1], 16) if head else 0
        if head is None or number != but:
            name = names.get(number, "without a name in Python")
            kept.append(_THREAD.sub(f"thread {name}, its innermost call first:", part))
    return "\n\n".join(kept) + "\n"


# -- its agent -------------------------------------------------------------------------------------


async def take_stacks(folder: str, pid: int | None) -> Stacks:
    """Return the stacks of a worker's threads; it goes on as before.

    Args:
        folder: The worker's own.
        pid: Its process, if that has begun.
    """
    if pid is None:
        return Stacks((), "its process has not begun yet")
    if not folder:
        return Stacks((), "its node had no room for the worker's temporary files")
    if is_process_stopped(pid):
        return Stacks((), "its process is stopped, as by SIGSTOP; `kill -CONT` lets it go on")
    place = Path(folder)
    try:
        (place / GIVEN).unlink(missing_ok=True)
        (place / WANTED).touch()
        if text := await _text_of(place / GIVEN, PULSE_S):
            return Stacks(tuple(text.splitlines()), "by its own thread")
        (place / WANTED).unlink(missing_ok=True)
        if not _catches(pid):
            return Stacks((), f"no thread of its Python ran within {PULSE_S:.0f} s")
        os.truncate(place / BY_SIGNAL, 0)
        os.kill(pid, SIGNAL)
        text = await _text_of(place / BY_SIGNAL, SIGNAL_S)
    except OSError as error:
        return Stacks((), f"{error}")
    if not text:
        return Stacks((), "it does not answer; the kernel may hold it in a call")
    how = f"by a signal: a call has kept Python's lock for {PULSE_S:.0f} s and longer"
    return Stacks(tuple(named(text, {}).splitlines()), how)


async def _text_of(path: Path, within_s: float) -> str:
    """Return a file's text once it is there and has stopped growing; empty if it does not come."""
    text = ""
    for _ in range(round(within_s / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        with suppress(FileNotFoundError):
            before, text = text, read_end(path)
            if text and text == before:
                return text
    return text


def _catches(pid: int) -> bool:
    """Return whether a process handles our signal: any other would end by it."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return SIGNAL > 0 and bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
