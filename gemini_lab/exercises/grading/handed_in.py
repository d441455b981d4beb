"""A handed-in notebook as its judge sees it: values, functions that run elsewhere, nothing else."""

import base64
import inspect
import json
import pickle
import selectors
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import GeminiError
from gemini_lab.exercises.grading.cells import Cell, needed
from gemini_lab.exercises.grading.plain import OtherError, from_plain

CELL_S: Final = 900.0
"""What a cell may take: some start nodes."""
CALL_S: Final = 4.0
"""What a call may take."""
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
    """

    def __init__(self, cells: Sequence[Cell], folder: Path) -> None:
        self._cells = [cell for cell in cells if not cell.is_check]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._ran: set[int] = set()
        self._raised = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def value(self, name: str) -> object:
        """What a variable holds once the cells have run that it needs.

        Raises:
            NoAnswerError: It is not there, or its cell raised.
        """
        self._raised = ""
        try:
            for number in needed(self._cells, [name]):
                self._run(number)
            reply = self.ask({"get": name})
        except GoneError as error:
            raise NoAnswerError(str(error)) from None
        if "missing" in reply:
            why = f"its cell raised {self._raised}" if self._raised else f"there is no `{name}`"
            raise NoAnswerError(why)
        return self.made(reply)

    def _run(self, number: int) -> None:
        if number in self._ran:
            return
        raised = self.ask({"run": self._cells[number].source}, within_s=CELL_S).get("raised")
        self._ran.add(number)
        self._raised = str(raised or self._raised)

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

    def ask(self, request: dict[str, object], *, within_s: float = CALL_S) -> dict[str, object]:
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
            reply = self._read(process, within_s)
        except BaseException:
            self.end()  # what it may still say would be taken for the next reply
            raise
        return reply if isinstance(reply, dict) else {"missing": True}

    def _read(self, process: subprocess.Popen[str], within_s: float) -> object:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(within_s):
                raise GoneError(f"there is no answer after {within_s:g} s")
        line = process.stdout.readline(MOST_BYTES)
        try:
            return json.loads(line)
        except ValueError:
            raise GoneError("the notebook ended its own process") from None

    def _start(self) -> subprocess.Popen[str]:
        self._ran = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gemini_lab.exercises.grading.student"],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ask({"run": ""}, within_s=CELL_S)  # its imports take seconds
        return self._process

    def end(self) -> None:
        """End the process; it starts anew when something is asked again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


class Function:
    """A student's function: each call is a request to where it lives.

    Args:
        handed_in: Where it lives.
        number: Which one it is there.
        parameters: Their names, as far as they are known.
    """

    def __init__(self, handed_in: HandedIn, number: int, parameters: object) -> None:
        self._handed_in, self._number = handed_in, number
        names = parameters if isinstance(parameters, list) else []
        self.__signature__ = signature_of(names)

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


def signature_of(names: Collection[object]) -> inspect.Signature:
    """A signature with these parameters; with none, of a function that takes anything."""
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    valid = [name for name in names if isinstance(name, str) and name.isidentifier()]
    if not valid:
        anything = inspect.Parameter("anything", inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature([anything])
    return inspect.Signature([inspect.Parameter(name, keyword) for name in dict.fromkeys(valid)])


def _as_raised(error: object) -> Exception:
    name, text = error if isinstance(error, list) and len(error) == 2 else ("Exception", "")
    kind = type(str(name) if str(name).isidentifier() else "Exception", (Exception,), {})
    raised: Exception = kind(str(text))
    return raised
