"""A handed-in notebook as its judge sees it: values, functions that run elsewhere, nothing else."""

import base64
import inspect
import json
import os
import pickle
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import psutil

from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab_course.grading.cells import Cell, needed
from gemini_lab_course.grading.plain import OtherError, from_plain

STUDENT: Final = "gemini_lab_course.grading.student"
ANSWER_S: Final = 900.0
"""What a cell or a call may take: some start nodes."""
COMPUTING_S: Final = 30.0
"""What a cell may compute meanwhile."""
CALL_COMPUTING_S: Final = 4.0
"""What a call may compute."""
STANDSTILL_S: Final = 60.0
"""How long it may do nothing, with no process of its own at work."""
NOTHING_S: Final = 0.1
"""Computing that is nothing: a loop that sleeps."""
GLANCE_S: Final = 0.5
"""Between two looks at that."""
MOST_BYTES: Final = 64 << 20
"""Of a reply."""


class NoAnswerError(Exception):
    """There is no value; the message says why."""


class GoneError(GeminiError):
    """The student's process is gone, or was ended because it took too long."""


class HandedIn:
    """A notebook's code in a process of its own.

    Args:
        cells: The notebook's.
        folder: Where it runs.
        hidden: Folders that it must not look into.
        computing_s: What a cell may compute; its nodes, other processes, compute for themselves.
        standstill_s: How long it may do nothing.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        *,
        hidden: Sequence[Path] = (),
        computing_s: float = COMPUTING_S,
        standstill_s: float = STANDSTILL_S,
    ) -> None:
        self._cells = [cell for cell in cells if not cell.is_check]
        self._folder, self._hidden = folder, hidden
        self._computing_s, self._standstill_s = computing_s, standstill_s
        self._process: subprocess.Popen[str] | None = None
        self._ran: dict[int, str] = {}
        self._ended_by: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def value(self, name: str, *, cell: str) -> object:
        """What a variable holds once the cells have run that it needs.

        Args:
            name: The variable.
            cell: The `grade_id` of the cell that is to set it; however it does so.

        Raises:
            NoAnswerError: It is not there, or its cell raised.
        """
        numbers = self._needed(name, cell)
        try:
            for number in numbers:
                self._run(number)
            reply = self.ask({"get": name})
        except GoneError as error:
            raise NoAnswerError(str(error)) from None
        if "missing" in reply:
            raised = [self._ran[number] for number in numbers if self._ran.get(number)]
            why = f"its cell raised {raised[-1]}" if raised else f"there is no `{name}`"
            raise NoAnswerError(why)
        return self.made(reply)

    def _needed(self, name: str, cell: str) -> list[int]:
        """The numbers of these cells; what comes after the next exercise's is none of them."""
        own = [number for number, each in enumerate(self._cells) if each.grade_id == cell]
        used = {name}.union(*(self._cells[number].used for number in own))
        behind = range(own[-1] + 1 if own else len(self._cells), len(self._cells))
        end = next((number for number in behind if self._cells[number].is_answer), None)
        return sorted({*needed(self._cells[:end], used), *own})

    def _run(self, number: int) -> None:
        if number in self._ran:
            return
        if number in self._ended_by:  # it would again
            raise GoneError(self._ended_by[number])
        try:
            reply = self.ask({"run": self._cells[number].source}, computing_s=self._computing_s)
        except GoneError as error:
            self._ended_by[number] = str(error)
            raise
        self._ran[number] = str(reply.get("raised") or "")

    def made(self, reply: dict[str, object]) -> object:
        """The value in a reply, or a function that asks for each call.

        Raises:
            NoAnswerError: It cannot be read.
        """
        if "function" in reply:
            return Function(self, int(str(reply["function"])), reply.get("parameters"))
        if "error" in reply:
            raise NoAnswerError("it cannot be looked at")
        try:
            return from_plain(reply.get("value"))
        except (OtherError, RecursionError, TypeError) as error:
            raise NoAnswerError(f"it cannot be read: {error}") from None

    def ask(
        self, request: dict[str, object], *, computing_s: float = CALL_COMPUTING_S
    ) -> dict[str, object]:
        """One request and its reply.

        Raises:
            GoneError: There is none.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError:
            self.end()
            raise GoneError("the notebook ended its own process") from None
        try:
            reply = self._read(process, min(computing_s, self._computing_s))
        except BaseException:
            self.end()  # what it may still say would be taken for the next reply
            raise
        return reply if isinstance(reply, dict) else {"missing": True}

    def _read(self, process: subprocess.Popen[str], computing_s: float) -> object:
        assert process.stdout is not None
        glance = partial(_glance, process)
        patience = Patience(
            glance(), computing_s=computing_s, standstill_s=self._standstill_s, answer_s=ANSWER_S
        )
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(GLANCE_S):
                if why := patience.ends_with(glance()):
                    raise GoneError(why)
        line = process.stdout.readline(MOST_BYTES)
        try:
            return json.loads(line)
        except ValueError:
            raise GoneError("the notebook ended its own process") from None

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            python_command(STUDENT, *self._hidden),
            cwd=self._folder,
            env=os.environ | {"TMPDIR": str(self._folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ask({"run": ""}, computing_s=self._computing_s)  # its imports take seconds
        return self._process

    def end(self) -> None:
        """End the process; it starts anew when something is asked again."""
        process, self._process, self._ran = self._process, None, {}
        if process is None:
            return
        with suppress(psutil.Error):
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A process as it is at a moment.

    Attributes:
        at_s: When, on any clock.
        computed_s: Its processor time so far.
        is_alone: Whether no process that it started is there.
    """

    at_s: float
    computed_s: float
    is_alone: bool


class Patience:
    """For how long an answer is waited for, whatever else the machine does meanwhile.

    Args:
        begun: The process when it was asked.
        computing_s: What it may compute.
        standstill_s: How long it may do nothing, unless it started others.
        answer_s: What it may take in all.
    """

    def __init__(
        self, begun: Glance, *, computing_s: float, standstill_s: float, answer_s: float
    ) -> None:
        self._begun = self._moved = begun
        self._computing_s, self._standstill_s, self._answer_s = computing_s, standstill_s, answer_s

    def ends_with(self, now: Glance) -> str:
        """Why no answer is waited for any more; empty as long as it is."""
        if now.computed_s > self._begun.computed_s + self._computing_s:
            return f"it came to no end within {self._computing_s:g} s of computing"
        if now.at_s > self._begun.at_s + self._answer_s:
            return f"it came to no end within {self._answer_s:g} s"
        if not now.is_alone or now.computed_s > self._moved.computed_s + NOTHING_S:
            self._moved = now
        if now.at_s > self._moved.at_s + self._standstill_s:
            return f"it did nothing for {self._standstill_s:g} s"
        return ""


def _glance(process: subprocess.Popen[str]) -> Glance:
    computed_s, is_alone = 0.0, True
    with suppress(psutil.Error):
        seen = psutil.Process(process.pid)
        times = seen.cpu_times()
        computed_s, is_alone = float(times.user + times.system), not seen.children()
    return Glance(at_s=time.monotonic(), computed_s=computed_s, is_alone=is_alone)


class Function:
    """A student's function: each call is a request to where it lives.

    Args:
        handed_in: Where it lives.
        number: Which one it is there.
        parameters: Of each its name, its kind and whether it has a default, if that is known.
    """

    def __init__(self, handed_in: HandedIn, number: int, parameters: object) -> None:
        self._handed_in, self._number = handed_in, number
        self.__signature__ = signature_of(parameters)

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """What it gives; it raises what it raised there."""
        text = base64.b64encode(pickle.dumps((arguments, keywords))).decode()
        reply = self._handed_in.ask({"call": self._number, "with": text})
        if "error" in reply:
            raise _as_raised(reply["error"])
        changed = reply.get("changed")
        kept = [each for each in arguments if type(each) is dict]
        for mine, plain in zip(kept, changed if isinstance(changed, list) else [], strict=False):
            theirs = from_plain(plain)
            if isinstance(theirs, dict):
                mine.clear()
                mine.update(theirs)
        return from_plain(reply.get("value"))

    def fresh(self) -> object:
        """The same function with nothing left of earlier calls."""
        return self._handed_in.made(self._handed_in.ask({"fresh": self._number}))

    @property
    def packed(self) -> str:
        """As the nodes of a lab get it: a text that is read there, and never here."""
        reply = self._handed_in.ask({"pack": self._number})
        if "packed" not in reply:
            raise NoAnswerError(str(reply.get("raised")))
        return str(reply["packed"])


def signature_of(parameters: object) -> inspect.Signature:
    """A signature with these parameters; one that takes anything where they are no parameters."""
    anything = inspect.Parameter("anything", inspect.Parameter.VAR_KEYWORD)
    try:
        return inspect.Signature([_parameter(*each) for each in parameters or ()] or [anything])  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return inspect.Signature([anything])


def _parameter(name: str, kind: str, has_default: object) -> inspect.Parameter:
    default = None if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, getattr(inspect.Parameter, kind), default=default)


def _as_raised(error: object) -> Exception:
    name, text = error if isinstance(error, list) and len(error) == 2 else ("Exception", "")
    kind = type(str(name) if str(name).isidentifier() else "Exception", (Exception,), {})
    raised: Exception = kind(str(text))
    return raised
