"""Grading of a class: `gemini-lab hand-in` for students, and `gemini-lab grade` for their teacher.

`hand_in` writes a notebook with the versions that made it. nbgrader runs it, in a container: the
notebooks' README has the command. `verdicts` reads what nbgrader has graded. The folder is a course
for nbgrader, as `make solutions` writes it; `verdicts.csv` is written there.
"""

import argparse
import csv
import json
import platform
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import nbformat

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError, shortened
from gemini_lab.status_line import busy
from gemini_lab_course.cells import in_short
from gemini_lab_course.predictions import FILE, read_predictions

MADE_WITH: Final = "made_with"
"""The notebook's metadata that name the versions."""
STUB: Final = "# YOUR CODE HERE"
"""The text of an exercise without an answer."""
_NAME: Final = re.compile(r"[\w.-]+")
_LAB: Final = re.compile(r"\d\d_[a-z]+(_[a-z]+)*")
HEAD: Final = ("student", "lab", "check", "points", "said", "made with")
NOTHING: Final = "nothing was handed in"
UNREAD: Final = "nothing that can be graded was handed in"
UNGRADED: Final = "nbgrader did not grade it: run `nbgrader autograde` and read its messages"
MOST_REASONS: Final = 3
MOST_ANSWERS: Final = 8
MOST_ROWS: Final = 20
"""Of what a student drew."""
LONGEST: Final = 100
"""Characters of what a student wrote."""
Row = tuple[str, str, str, str, str, str]


# -- a student's hand-in ---------------------------------------------------------------------------


def hand_in(notebook: Path, *, student: str, into: Path) -> Path:
    """Write the notebook to `into/STUDENT/LAB/LAB.ipynb`, which nbgrader reads.

    A copy's name, such as `03_placement-Copy1.ipynb`, is taken for the lab's. The predictions that
    lie beside the notebook go along.

    Raises:
        ConfigError: It is no notebook, or the name cannot be a folder's.
    """
    if not _NAME.fullmatch(student) or student.startswith("."):
        raise ConfigError(
            f"a student's name is made of letters, digits, '.', '_' and '-', and not {student!r}"
        )
    try:
        content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
        metadata = content["metadata"]
        _mark_once(content["cells"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{notebook} is no notebook ({error})") from None
    packages = ("gemini-lab", "torch", "deepspeed", "numpy")
    made_with = {"python": platform.python_version()}
    for each in packages:
        with suppress(PackageNotFoundError):  # some labs need neither torch nor DeepSpeed
            made_with[each] = version(each)
    metadata[MADE_WITH] = made_with | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    of_a_lab = _LAB.match(notebook.stem)
    lab = of_a_lab[0] if of_a_lab else notebook.stem
    target = into / student / lab / f"{lab}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if (predictions := notebook.parent / FILE).is_file():
        shutil.copyfile(predictions, target.parent / FILE)
    return target


def _mark_once(cells: list[dict[str, Any]]) -> None:
    """Take nbgrader's marks from all but the first copy of a cell."""
    known = set()
    for cell in cells:
        # nbgrader 0.9.6 leaves an empty mark on a copied cell, and then refuses the notebook.
        if (mark := cell.get("metadata", {}).get("nbgrader")) is not None:
            if not mark.get("grade_id") or mark["grade_id"] in known:
                del cell["metadata"]["nbgrader"]
            else:
                known.add(mark["grade_id"])


def empty_exercises(notebook: Path) -> tuple[int, int]:
    """Return how many exercises of a hand-in have no answer, and how many there are."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    marks = [cell.get("metadata", {}).get("nbgrader", {}) for cell in cells]
    answers = [cell for cell, mark in zip(cells, marks, strict=True) if mark.get("solution")]
    return sum(STUB in "".join(cell["source"]) for cell in answers), len(answers)


def hand_in_command(arguments: Sequence[str]) -> int:
    """Make the hand-in, and say what is still empty in it."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab hand-in", description="Make a notebook ready for your teacher."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--student", required=True, help="your name, as your teacher knows it")
    parser.add_argument(
        "--into", type=Path, default=Path("submitted"), help="folder (default: submitted)"
    )
    options = parser.parse_args(arguments)
    made = hand_in(options.notebook, student=options.student, into=options.into)
    empty, exercises = empty_exercises(made)
    if empty:
        tell(f"{empty} of {exercises} exercises are empty: `# YOUR CODE HERE` is still in them")
    else:
        tell(f"all {exercises} exercises have an answer")
    tell(f"now send this folder: {options.into / options.student}")
    return 0


# -- a teacher's table -----------------------------------------------------------------------------


def verdicts(course: Path, lab: str) -> Iterator[Row]:
    """Yield what was said of each student's answers, in the order of `HEAD`.

    Raises:
        ConfigError: There is no such lab.
    """
    released = course / "source" / lab / f"{lab}.ipynb"
    if not released.exists():
        raise ConfigError(f"there is no {released}; `make solutions` writes a course")
    for folder in sorted(each for each in (course / "submitted").glob("*") if each.is_dir()):
        student, place = folder.name, Path(lab) / f"{lab}.ipynb"
        graded = course / "autograded" / student / place
        handed_in, why = _read(folder / place)
        if handed_in is None or not graded.exists():
            yield student, lab, "all", "0", why or UNGRADED, "unknown"
            continue
        versions = handed_in.metadata.get(MADE_WITH)
        made = " ".join(f"{k} {versions[k]}" for k in versions) if versions else "unknown"
        found = _checks(nbformat.read(graded, as_version=4))
        for check in _checks(nbformat.read(released, as_version=4)):
            points, said = _verdict(found.get(check))
            yield student, lab, check, points, said, made


def _read(path: Path) -> tuple[Any, str]:
    """Return a hand-in, or `None` and the reason."""
    if not path.exists():
        return None, UNREAD if path.parent.exists() else NOTHING
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (AttributeError, TypeError):
        return None, f"{UNREAD}: it is no notebook"
    except Exception as error:  # noqa: BLE001 - nbformat raises of many kinds
        return None, f"{UNREAD}: {in_short(error)}"
    return notebook, ""


def _checks(notebook: Any) -> dict[str, Any]:
    marks = {id(cell): cell.metadata.get("nbgrader", {}) for cell in notebook.cells}
    return {m["grade_id"]: c for c in notebook.cells if (m := marks[id(c)]).get("grade")}


def _verdict(cell: Any) -> tuple[str, str]:
    """Return the points of a check's cell as nbgrader counts them, and its words."""
    if cell is None:
        return "0", "no answer: the check was taken out of the notebook"
    errors = [each.evalue for each in cell.outputs if each.output_type == "error"]
    if errors:
        return "0", " ".join(errors[0].split())
    shown = [
        each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs
    ]
    return str(cell.metadata.nbgrader.points), "\n".join(each.strip() for each in shown)


def grade_command(arguments: Sequence[str]) -> int:
    """Write the table, and print how the class did."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab grade", description="Write a class's verdicts, and print a summary."
    )
    parser.add_argument("lab", help="such as 03_placement")
    parser.add_argument("--course", type=Path, default=Path(), help="folder (default: this one)")
    options = parser.parse_args(arguments)
    with busy(f"reading what was handed in for {options.lab}"):
        rows = list(verdicts(options.course, options.lab))
    path = options.course / "verdicts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEAD, *rows])
    for line in summary(rows):
        tell(line)
    for line in predicted(options.course / "submitted", options.lab):
        tell(line)
    tell(f"every verdict: {path}")
    return 0


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many students have each exercise right, and the most frequent reasons."""
    students = {row[0] for row in rows}
    yield f"{len(students)} hand-in{'s' * (len(students) != 1)}"
    for check in sorted({row[2] for row in rows} - {"all"}):
        mine = [row for row in rows if row[2] == check]
        right = sum(row[3] != "0" for row in mine)
        yield f"{check.replace('check-', 'exercise ')}: {right} of {len(students)} right"
        reasons = Counter(row[4].partition(";")[0] for row in mine if row[3] == "0")
        for why, count in reasons.most_common(MOST_REASONS):
            yield f"  {count} x {shortened(why, LONGEST)}"


def predicted(submitted: Path, lab: str) -> Iterator[str]:
    """Yield for each question of the lab's boxes what the class predicted, as a histogram."""
    answers: dict[str, Counter[str]] = {}
    for path in sorted(submitted.glob(f"*/{lab}/{FILE}")):
        with suppress(ConfigError):  # of a student whose file is no such file
            for question, told in read_predictions(path).items():
                for row, answer in _rows_of(str(told.get("predicted", ""))):
                    asked = f"{question[:LONGEST]} {row}".strip()
                    answers.setdefault(asked, Counter())[answer] += 1
    for asked, counts in answers.items():
        yield asked
        for answer, count in counts.most_common(MOST_ANSWERS):
            yield f"  {'#' * min(count, 40)} {count}  {answer}"


def _rows_of(predicted: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a drawing, each with its marks; of another prediction the only answer."""
    lines = predicted.strip().splitlines()[:MOST_ROWS]
    for line in lines:
        row, _, marks = line.partition(": ") if len(lines) > 1 else ("", "", line)
        if marks.strip():
            yield row[:LONGEST], marks.strip()[:LONGEST]
