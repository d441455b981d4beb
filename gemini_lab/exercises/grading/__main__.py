"""Grade a class: everything that is handed in of a lab, into one CSV.

    python -m gemini_lab.exercises.grading LAB [--course FOLDER]

The folder is a course for nbgrader, as `make solutions` writes it, with what was handed in under
`submitted/STUDENT/LAB/LAB.ipynb`. `grades.csv` has the points, `verdicts.csv` the reasons.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gemini_lab.exercises.grading.hand_in import MADE_WITH

HEAD: Final = ("student", "lab", "check", "points", "said", "made with", "judged with")
UNREAD: Final = "nothing that can be graded was handed in"


def nbgrader(course: Path, *arguments: str) -> None:
    """Run it in the course's folder.

    Raises:
        CalledProcessError: It failed.
    """
    # nbgrader calls alembic by its name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run(
        [sys.executable, "-P", "-m", "nbgrader", *arguments],
        cwd=course,
        env=os.environ | {"PATH": path},
        check=True,
    )


def verdicts(course: Path, lab: str) -> Iterator[tuple[str, ...]]:
    """What was said of each student's answers: a row for each check, in the order of `HEAD`."""
    for path in sorted((course / "autograded").glob(f"*/{lab}/{lab}.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        student = path.parent.parent.name
        made, judged = (_versions(notebook, key) for key in (MADE_WITH, "judged_with"))
        for cell in notebook["cells"]:
            grader = cell.get("metadata", {}).get("nbgrader", {})
            if not grader.get("grade"):
                continue
            (output,) = cell["outputs"]
            is_right = output["output_type"] == "stream"
            said = "".join(output["text"]) if is_right else output["evalue"]
            points = str(grader["points"] if is_right else 0)
            yield student, lab, grader["grade_id"], points, said.strip(), made, judged
    yield from _unread(course, lab)


def _unread(course: Path, lab: str) -> Iterator[tuple[str, ...]]:
    """A row for each student who handed in what has no checks, or is no notebook."""
    for folder in sorted((course / "submitted").glob(f"*/{lab}")):
        student = folder.parent.name
        graded = course / "autograded" / student / lab / f"{lab}.ipynb"
        if not graded.exists() or '"grade": true' not in graded.read_text(encoding="utf-8"):
            yield student, lab, "all", "0", UNREAD, "unknown", "unknown"


def _versions(notebook: dict[str, dict[str, dict[str, str]]], key: str) -> str:
    found = notebook["metadata"].get(key)
    return "unknown" if not isinstance(found, dict) else " ".join(f"{k} {found[k]}" for k in found)


def grade(course: Path, lab: str) -> Path:
    """Grade all hand-ins of a lab; gives the file with the reasons."""
    nbgrader(course, "generate_assignment", lab, "--force")
    with suppress(subprocess.CalledProcessError):  # it fails if one hand-in cannot be read
        nbgrader(course, "autograde", lab, "--force")
    nbgrader(course, "export", "--to=grades.csv")
    reasons = course / "verdicts.csv"
    with reasons.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(verdicts(course, lab))
    return reasons


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if nbgrader fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lab", help="such as 03_placement")
    parser.add_argument("--course", type=Path, default=Path(), help="the course's folder")
    options = parser.parse_args(arguments)
    try:
        print(grade(options.course, options.lab))  # noqa: T201 - for who asked
    except subprocess.CalledProcessError as error:
        print(f"nbgrader {error.cmd[4]} failed; its messages stand above", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
