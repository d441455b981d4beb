"""The page of symptoms, from the code that says them: events that ask for something, and errors.

An event's docstring has a paragraph that begins with `Way out:`; an error's message ends with it,
behind its last semicolon.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gemini_lab import errors
from gemini_lab.log.events import KINDS

PACKAGE: Final = Path(errors.__file__).parent
LEFT_OUT: Final = frozenset({"GeminiError", "MessageError", "CannotGoOnError"})
"""Errors between our own processes, which no user provokes."""
RAISED: Final = frozenset(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.GeminiError) and name not in LEFT_OUT
)
ROOMS: Final = {
    "Settings, sizes and numbers": ("settings", "units", "limits", "job", "seats"),
    "`protect` and the script": ("engine", "shard", "kept"),
    "Trainer, Accelerate, Lightning": ("adapters",),
    "Commands": ("cli", "display"),
    "Starting nodes": ("launch", "memory", "node"),
    "Labs and runs": ("lab", "report", "log", "training"),
    "Recovery and versions in flight": ("recovery", "transfer", "wire"),
    "The persistent tier": ("storage",),
    "Placement, profiles and schedules": ("placement", "pipeliner", "profiler"),
    "Failures to inject": ("injector",),
    "The simulator": ("simulator",),
    "Pages in the browser and controls": ("../widgets/gemini_lab_widgets",),
    "Benches, figures and campaigns": ("../bench/gemini_lab_bench",),
    "The labs": ("../notebooks/course/gemini_lab_course",),
}
"""Rooms of the package, and packages beside it, by what a reader was doing."""
HEAD: Final = """\
# Symptoms: what a message means, and the way out

Search this page for a few words of what you saw. Parts of a message that change (names, numbers)
stand here as `…`. Related pages: [](../../how-to/hang.md), [](../exit-codes.md),
[](../../how-to/resume.md), [](../../how-to/nan.md).
"""
WAY_OUT: Final = re.compile(r"^Way out: (.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)


class Message(NamedTuple):
    """An error as the code writes it."""

    text: str
    way_out: str


def page() -> str:
    """Return the page in Markdown."""
    parts = [HEAD, "## Events in log, terminal and report\n", *_events()]
    for title, rooms in ROOMS.items():
        found = sorted({message for room in rooms for message in messages(room)})
        rows = [f"| {_cell(text)} | {_cell(way_out)} |" for text, way_out in found]
        parts += [f"\n## {title}\n", "| message | way out |", "|---|---|", *rows]
    return "\n".join([*parts, ""])


def _events() -> Iterator[str]:
    yield "| event | what happened | way out |"
    yield "|---|---|---|"
    for name, kind in KINDS.items():
        text = inspect.getdoc(kind) or ""
        if (found := WAY_OUT.search(text)) is not None:
            meaning = " ".join(text.partition("\n\n")[0].split())
            yield f"| `{name}` | {meaning} | {' '.join(found[1].split())} |".replace("||", "|")


def messages(room: str) -> Iterator[Message]:
    """Yield the errors that a room of the package, or one of its modules, raises."""
    folder = PACKAGE / room
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        for called in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Name):
                continue
            if called.func.id in RAISED and called.args:
                text = _text(called.args[0])
                if text.replace("…", "").strip(" .,:;()"):
                    what, _, way_out = text.rpartition("; ")
                    yield Message(what or way_out, way_out if what else "")


def _text(node: ast.expr) -> str:
    """Return a string as far as it stands in the code; empty if nothing of it does."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text(left) + _text(right)
    return ""


def _cell(text: str) -> str:
    """Return words as a table's cell shows them: nothing in them is Markdown's, but code."""
    escaped = re.sub(r"([\\|<>*_\[\]$#~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\", ""), escaped)
