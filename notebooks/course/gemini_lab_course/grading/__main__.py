"""Table of a class's verdicts: a row a student and check, from what nbgrader has graded.

    python -m gemini_lab_course.grading LAB [--course FOLDER]

The folder is a course for nbgrader, as `make solutions` writes it. `verdicts.csv` is written there.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import nbformat

from gemini_lab.errors import ConfigError
from gemini_lab_course.grading.hand_in import MADE_WITH
from gemini_lab_course.verdict import in_short

HEAD: Final = ("student", "lab", "check", "points", "said", "made with")
NOTHING: Final = "nothing was handed in"
UNREAD: Final = "nothing that can be graded was handed in"
UNGRADED: Final = "nbgrader did not grade it: run `nbgrader autograde` and read its messages"
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


def main(arguments: Sequence[str]) -> int:
    """Return 1 if there is no such lab."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lab", help="such as 03_placement")
    parser.add_argument("--course", type=Path, default=Path(), help="the course's folder")
    options = parser.parse_args(arguments)
    try:
        rows = list(verdicts(options.course, options.lab))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    path = options.course / "verdicts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEAD, *rows])
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
