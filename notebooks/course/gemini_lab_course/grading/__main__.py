"""Grade a class: everything that is handed in of a lab, into one CSV.

    python -m gemini_lab_course.grading LAB [--course FOLDER] [--jobs N]

The folder is a course for nbgrader, as `make solutions` writes it, with what was handed in under
`submitted/STUDENT/LAB/LAB.ipynb`. `grades.csv` has the points, `verdicts.csv` the reasons. What was
judged is kept in `judged/`: after an interruption the same command goes on.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import nbformat

from gemini_lab.errors import ConfigError
from gemini_lab_course.grading.apart import KEPT
from gemini_lab_course.grading.hand_in import MADE_WITH
from gemini_lab_course.grading.whole_class import hand_ins, judge_all, usual_jobs
from gemini_lab_course.verdict import in_short

HEAD: Final = ("student", "lab", "check", "points", "said", "made with", "judged with")
UNREAD: Final = "nothing that can be graded was handed in"
NOTHING: Final = "nothing was handed in"


def nbgrader(course: Path, *arguments: str) -> None:
    """Run it in the course's folder; of ten lines a hand-in it says those that tell of trouble.

    Tracebacks are left out: why something cannot be read stands among the reasons.

    Raises:
        CalledProcessError: It failed.
    """
    # nbgrader calls alembic by its name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-P", "-W", "ignore", "-m", "nbgrader", *arguments]
    with subprocess.Popen(
        [*command, "--log-level=WARN"],
        cwd=course,
        env=os.environ | {"PATH": path},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if not line.startswith("    ") and "raceback" not in line:
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


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
    """A row for each student of this or another lab who handed in nothing that can be graded."""
    for folder in sorted(each for each in (course / "submitted").glob("*") if each.is_dir()):
        if not (course / "autograded" / folder.name / lab / f"{lab}.ipynb").exists():
            why = _why_unread(folder / lab / f"{lab}.ipynb")
            yield folder.name, lab, "all", "0", why, "unknown", "unknown"


def _why_unread(path: Path) -> str:
    if not path.exists():
        return UNREAD if path.parent.exists() else NOTHING
    try:
        nbformat.validate(nbformat.read(path, as_version=4))
    except (AttributeError, TypeError):
        return f"{UNREAD}: it is no notebook"
    except Exception as error:  # noqa: BLE001 - whatever nbformat raises of what is no notebook
        return f"{UNREAD}: {in_short(error)}"
    return UNREAD


def autograde(course: Path, lab: str) -> None:
    """Have nbgrader count the points of all who can be read, whatever becomes of anybody else.

    It gives up at some of what is wrong with a hand-in: then each one that is left goes by itself.
    """
    students = [each.student for each in hand_ins(course.resolve(), lab)]
    graded = course / "autograded"
    for student in students:  # what an earlier grading left is none
        shutil.rmtree(graded / student / lab, ignore_errors=True)
    with suppress(subprocess.CalledProcessError):  # it fails if one hand-in cannot be read
        nbgrader(course, "autograde", lab, "--force")
    for student in students:
        if not (graded / student / lab / f"{lab}.ipynb").exists():
            with suppress(subprocess.CalledProcessError):
                nbgrader(course, "autograde", lab, "--force", f"--student={student}")


def _versions(notebook: dict[str, dict[str, dict[str, str]]], key: str) -> str:
    found = notebook["metadata"].get(key)
    return "unknown" if not isinstance(found, dict) else " ".join(f"{k} {found[k]}" for k in found)


def grade(course: Path, lab: str, *, jobs: int | None = None) -> Path:
    """Grade all hand-ins of a lab; gives the file with the reasons.

    Args:
        course: nbgrader's folder.
        lab: Such as `03_placement`.
        jobs: How many to judge at a time; None for as many as the machine has cores, or one after
            the other where a lab starts nodes.

    Raises:
        ConfigError: There is no such lab.
        CalledProcessError: nbgrader failed.
    """
    released = course.resolve() / "source" / lab / f"{lab}.ipynb"
    if not released.exists():
        raise ConfigError(f"there is no {released}; `make solutions` writes a course")
    judge_all(
        list(hand_ins(course.resolve(), lab)), jobs=jobs or usual_jobs(released), told=sys.stderr
    )
    nbgrader(course, "generate_assignment", lab, "--force")
    autograde(course, lab)
    nbgrader(course, "export", "--to=grades.csv")
    reasons = course / "verdicts.csv"
    with reasons.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(verdicts(course, lab))
    return reasons


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if nbgrader fails, 130 if interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lab", help="such as 03_placement")
    parser.add_argument("--course", type=Path, default=Path(), help="the course's folder")
    parser.add_argument("--jobs", type=int, metavar="N", help="how many to judge at a time")
    parser.add_argument("--again", action="store_true", help="judge also what was judged before")
    options = parser.parse_args(arguments)
    if options.again:
        shutil.rmtree(options.course / KEPT / options.lab, ignore_errors=True)
    try:
        print(grade(options.course, options.lab, jobs=options.jobs))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:
        print(f"nbgrader {error.cmd[6]} failed; its messages stand above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
