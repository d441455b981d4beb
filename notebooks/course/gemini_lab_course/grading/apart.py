"""Judge hand-ins, each in processes of its own, and keep what was said of them.

A kept verdict is found by all that it depends on: the checks, the answers, the code of
the course and of the core, and the versions. So a class that is graded again, or after an
interruption, is judged only as far as it is new.
"""

import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import nbformat
from nbformat import ValidationError

import gemini_lab
import gemini_lab_course
from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab_course.grading.cells import Cell, Notebook, code_cells, needed, title_of
from gemini_lab_course.grading.judge import UNJUDGED, Judged, made_with

LIMIT_S: Final = 1800.0
"""How long the judge may take for one notebook."""
KEPT: Final = "judged"
"""The course's folder of verdicts."""


class UnjudgedError(GeminiError):
    """There is no verdict; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A hand-in to be judged.

    Attributes:
        released: The notebook that was handed out, with its checks, in its course.
        handed_in: The cells that were handed in.
        title: The line with which they begin.
    """

    released: Path
    handed_in: Sequence[Cell]
    title: str = ""

    @classmethod
    def of(cls, released: Path, notebook: Notebook) -> Self:
        """A hand-in as it was read.

        Raises:
            ValueError: It is no notebook.
        """
        try:
            cells, title = code_cells(notebook), title_of(notebook)
        except (AttributeError, TypeError):
            raise ValueError("it is no notebook") from None
        return cls(released=released, handed_in=cells, title=title)

    @property
    def another(self) -> str:
        """The course's lab that was handed in, where it is another one than was asked for."""
        labs = _titles(self.released.parents[1])
        asked_for = self.released.stem
        lab = labs.get(self.title, asked_for)
        return "" if lab == asked_for else lab

    @property
    def key(self) -> str:
        """The same for hand-ins of which the same is said."""
        answers = [asdict(each) for each in self.handed_in if not each.is_check]
        checks = [asdict(each) for each in cells_of(self.released)]
        told = json.dumps([checks, answers, self.another, made_with(), _package()], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def kept(self) -> Path:
        """Where its verdict is, once it has one."""
        course = self.released.parents[2]
        return course / KEPT / self.released.stem / f"{self.key}.json"


def read_notebook(path: Path) -> Notebook:
    """What a notebook's file has in it.

    Raises:
        ValueError: It is no notebook.
        OSError: It cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    content: Notebook = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no notebook")  # noqa: TRY004 - its content, not an argument
    # Notebooks had worksheets before version 4 of their format.
    return _of_now(text) if "worksheets" in content else content


def cells_of(released: Path) -> list[Cell]:
    """The cells with code of a notebook that was handed out."""
    return code_cells(read_notebook(released))


@cache
def _titles(source: Path) -> dict[str, str]:
    """The labs of a course by the lines with which they begin."""
    found = {title_of(read_notebook(path)): path.stem for path in sorted(source.glob("*/*.ipynb"))}
    found.pop("", None)
    return found


def _of_now(text: str) -> Notebook:
    """A notebook of an older format.

    Raises:
        ValueError: It is none.
    """
    try:
        found: Notebook = nbformat.reads(text, as_version=4)
    except ValidationError as error:
        raise ValueError(f"it is no notebook: {error}") from None
    return found


def starts_nodes(released: Path) -> bool:
    """Whether a lab's checks need cells that start nodes."""
    cells = cells_of(released)
    names = {name for cell in cells if cell.is_check for name in cell.used}
    return any("Lab" in cells[number].used for number in needed(cells, names))


def verdict(paper: Paper, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """What is said of a hand-in: the kept verdict if there is one, else a new one, which is kept.

    Raises:
        UnjudgedError: The judge came to no end.
    """
    if lab := paper.another:
        return _of_another(paper, lab)
    kept = paper.kept
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    said = _judge(paper, limit_s)
    if not any(each["said"].startswith(UNJUDGED) for each in said["judged"]):
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(said), encoding="utf-8")
        unfinished.replace(kept)
    return said


def _of_another(paper: Paper, lab: str) -> dict[str, Any]:
    """What is said of a hand-in of another lab, of each exercise the same."""
    said = f"no answer: this is a notebook of {lab}, and {paper.released.stem} was asked for"
    checks = [cell.grade_id for cell in cells_of(paper.released) if cell.is_check]
    judged = [asdict(Judged(check=check, is_right=False, said=said)) for check in checks]
    return {"judged": judged, "versions": made_with(), "computed_s": 0.0}


def _judge(paper: Paper, limit_s: float) -> dict[str, Any]:
    command = python_command("gemini_lab_course.grading.judge")
    command += [part for each in _hidden(paper.released) for part in ("--hide", str(each))]
    with tempfile.TemporaryDirectory(prefix="judging-", ignore_cleanup_errors=True) as scratch:
        judge = subprocess.Popen(
            [*command, str(paper.released)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": scratch},
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = judge.communicate(_as_notebook(paper.handed_in), timeout=limit_s)
            said: dict[str, Any] = json.loads(out)
        except subprocess.TimeoutExpired:
            raise UnjudgedError(f"{UNJUDGED}: no end after {limit_s:g} s") from None
        except ValueError:
            raise UnjudgedError(f"{UNJUDGED}: the judge ended with {judge.returncode}") from None
        finally:
            with suppress(ProcessLookupError):  # its own end takes all of it along
                os.killpg(judge.pid, signal.SIGKILL)
            judge.wait()
    return said


def _as_notebook(cells: Sequence[Cell]) -> str:
    made = [
        {
            "cell_type": "code",
            "source": e.source,
            "metadata": {"nbgrader": {"grade_id": e.grade_id}},
        }
        for e in cells
    ]
    return json.dumps({"cells": made})


def _hidden(released: Path) -> list[Path]:
    """Where solutions lie: in the course, and in a checkout that made it."""
    course, checkout = released.resolve().parents[2], Path(gemini_lab.__file__).parents[1]
    return [course, checkout / "notebooks" / "src"]


@cache
def _package() -> str:
    """Return a hash of the code that judges: the course's checks, and the core that they call."""
    found = hashlib.sha256()
    for folder in (Path(gemini_lab.__file__).parent, Path(gemini_lab_course.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            name = f"{folder.name}/{path.relative_to(folder)}\0"
            found.update(name.encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
