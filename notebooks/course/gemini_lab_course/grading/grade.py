"""`gemini-lab grade`: a class's verdicts, from what nbgrader has graded, and a summary.

The folder is a course for nbgrader, as `make solutions` writes it. `verdicts.csv` is written there.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import nbformat

from gemini_lab.display import busy, tell
from gemini_lab.errors import ConfigError, shortened
from gemini_lab_course.cells import in_short
from gemini_lab_course.grading.hand_in import MADE_WITH, PREDICTIONS
from gemini_lab_course.predictions import read_predictions

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


def command(arguments: Sequence[str]) -> int:
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
    for path in sorted(submitted.glob(f"*/{lab}/{PREDICTIONS}")):
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
