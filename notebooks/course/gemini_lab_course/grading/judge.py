"""Judge a handed-in notebook by the released one's checks, in a process that runs none of its code.

python -m gemini_lab_course.grading.judge RELEASED.ipynb [--hide FOLDER] < HANDED-IN.ipynb
"""

import argparse
import contextlib
import io
import json
import platform
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab_course.grading.cells import Cell, code_cells, needed
from gemini_lab_course.grading.handed_in import HandedIn, NoAnswerError
from gemini_lab_course.verdict import WrongAnswerError, in_short

UNJUDGED: Final = "could not be judged"
"""How a sentence begins that is no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is said of one exercise.

    Attributes:
        check: nbgrader's name of the check.
        is_right: Whether its points are given.
        said: The sentence.
    """

    check: str
    is_right: bool
    said: str


class Judge:
    """A released notebook's cells, with somebody's answers in place of its own.

    Args:
        released: The cells of the notebook that was handed out.
        handed_in: Where answers come from.
    """

    def __init__(self, released: Sequence[Cell], handed_in: HandedIn) -> None:
        self._cells, self._handed_in = released, handed_in
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._ran: set[int] = set()

    def judge(self) -> list[Judged]:
        """All checks, in order."""
        checks = [number for number, cell in enumerate(self._cells) if cell.is_check]
        return [self._one(number) for number in checks]

    def _one(self, number: int) -> Judged:
        check = self._cells[number]
        said, around = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(around), contextlib.redirect_stderr(around):
                answers = self._answers(number)
                self._prepare(number, check.used - answers.keys())
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(around):
                exec(check.source, {**self._names, **answers})  # noqa: S102 - a released check
        except NoAnswerError as error:
            return Judged(check=check.grade_id, is_right=False, said=f"no answer: {error}")
        except WrongAnswerError as error:
            return Judged(check=check.grade_id, is_right=False, said=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the check itself could not run
            why = f"{UNJUDGED}: {in_short(error)}"
            return Judged(check=check.grade_id, is_right=False, said=why)
        return Judged(check=check.grade_id, is_right=True, said=said.getvalue().strip())

    def _answers(self, number: int) -> dict[str, object]:
        """The values that the check above which they stand asks for."""
        asked = self._cells[number].used
        own = {n: c.grade_id for c in self._cells[:number] if c.is_answer for n in c.defined}
        names = sorted(asked & own.keys())
        return {name: self._handed_in.value(name, cell=own[name]) for name in names}

    def _prepare(self, number: int, names: set[str]) -> None:
        """Run what the check needs beside the answers."""
        cells = [c if not (c.is_check or c.is_answer) else Cell("") for c in self._cells[:number]]
        for each in needed(cells, names):
            if each not in self._ran:
                exec(cells[each].source, self._names)  # noqa: S102 - a released cell
                self._ran.add(each)


def judge(released: Path, handed_in: str, *, hidden: Sequence[Path] = ()) -> list[Judged]:
    """What is said of each exercise.

    Args:
        released: The notebook that was handed out.
        handed_in: The text of the one that was handed in.
        hidden: Folders that it cannot look into.
    """
    mine = code_cells(json.loads(released.read_text(encoding="utf-8")))
    theirs = code_cells(json.loads(handed_in))
    with (
        tempfile.TemporaryDirectory(prefix="handed-in-") as folder,
        HandedIn(theirs, Path(folder), hidden=hidden) as answers,
        contextlib.chdir(folder),
    ):
        return Judge(mine, answers).judge()


def made_with() -> dict[str, str]:
    """The versions of what judges."""
    from importlib.metadata import version  # noqa: PLC0415 - reads the disk

    names = ("gemini-lab", "torch", "deepspeed", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _computed_s() -> float:
    """Processor time of this process and of those that it has seen end."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


def main(arguments: Sequence[str]) -> int:
    """Print what is said as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("released", type=Path)
    parser.add_argument("--hide", type=Path, action="append", default=[], help="a folder")
    options = parser.parse_args(arguments)
    hidden = [folder.resolve() for folder in options.hide]
    die_with_parent()
    found = judge(options.released.resolve(), sys.stdin.read(), hidden=hidden)
    said = {
        "judged": [asdict(each) for each in found],
        "versions": made_with(),
        "computed_s": _computed_s(),
    }
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
