"""The process in which a handed-in notebook's own code runs: it gives values, and judges nothing.

    python -m gemini_lab_course.grading.student [HIDDEN-FOLDER ...]

Each line on standard input is a request in JSON, and each line on standard output its answer.
"""

import base64
import inspect
import json
import os
import pickle
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

import cloudpickle
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.errors import ConfigError
from gemini_lab_course.grading.plain import to_plain
from gemini_lab_course.grading.walls import hide
from gemini_lab_course.own_root.process import packed
from gemini_lab_course.verdict import in_short

Reply = dict[str, object]
LONGEST: Final = 300
"""Of what is said of an error."""
MOST_DATA_BYTES: Final = 8 << 30
"""What each of its processes may take."""


class Student:
    """A handed-in notebook's variables."""

    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False  # which is a file that others use, too
        self._shell = InteractiveShell.instance(config=config)
        self._functions: list[Callable[..., object]] = []

    def answer(self, request: dict[str, object]) -> Reply:
        """What a request asks for."""
        match request:
            case {"run": str(source)}:
                result = self._shell.run_cell(source, silent=True)
                error = result.error_before_exec or result.error_in_exec
                return {"raised": "" if error is None else in_short(error)[:LONGEST]}
            case {"get": str(name)}:
                if name not in self._shell.user_ns:
                    return {"missing": True}
                return self._told(self._shell.user_ns[name])
            case {"call": int(number), "with": str(text)}:
                return self._called(self._functions[number], text)
            case {"fresh": int(number)}:
                function = cloudpickle.loads(cloudpickle.dumps(self._functions[number]))
                return self._told(function)
            case {"pack": int(number)}:
                try:
                    return {"packed": packed(self._functions[number])}
                except ConfigError as error:
                    return {"raised": str(error)}
        return {"missing": True}

    def _told(self, value: object) -> Reply:
        if not callable(value) or isinstance(value, type):
            return {"value": to_plain(value)}
        self._functions.append(value)
        return {"function": len(self._functions) - 1, "parameters": _parameters(value)}

    def _called(self, function: Callable[..., object], text: str) -> Reply:
        arguments, keywords = pickle.loads(base64.b64decode(text))  # noqa: S301 - from the judge
        try:
            value = to_plain(function(*arguments, **keywords))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an answer raises
            return {"error": [type(error).__name__, str(error)[:LONGEST]]}
        changed = [to_plain(each) for each in arguments if type(each) is dict]
        return {"value": value, "changed": changed}


def _parameters(function: Callable[..., object]) -> list[tuple[str, str, bool]]:
    """Of each: its name, its kind, and whether it has a default; none where it does not say."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [(each.name, each.kind.name, each.default is not each.empty) for each in found]


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer until there are no more requests."""
    student = Student()
    for line in requests:
        try:
            reply = student.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a value may refuse to be looked at
            reply = {"error": [type(error).__name__, "it cannot be looked at"]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Keep this process's standard streams for the judge; cells read and write none."""
    die_with_parent()
    if sys.platform == "linux":  # a cell that asks for ever more raises MemoryError
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA_BYTES, MOST_DATA_BYTES))
        with suppress(OSError):  # where the machine has less, the kernel ends this process first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    sys.path.insert(0, "")
    hide([Path(each) for each in sys.argv[1:]])
    serve(requests, replies)


if __name__ == "__main__":
    main()
