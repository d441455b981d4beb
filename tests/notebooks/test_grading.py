"""nbgrader takes the solutions' edition as a course, and grades what students hand in."""

import copy
import csv
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from editions import FOLDER, builder

from gemini_lab_course.grading import grade_command, hand_in
from gemini_lab_course.verdict import READER

LAB = "03_placement"


def nbgrader(course: Path, *arguments: str) -> None:
    """Run it in the course's folder, with nothing of this user's, as from a notebook's cell."""
    own = {name: str(course / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    own[READER] = "/grading.ipynb"
    # nbgrader calls alembic by its name: the environment is active for a teacher.
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=course,
        env=os.environ | own,
        check=True,
        capture_output=True,
        timeout=250,
    )


@pytest.fixture
def course(tmp_path):
    builder().write_course(tmp_path)
    return tmp_path


@pytest.fixture
def solutions(course):
    """By `grade_id`."""
    notebook = nbformat.read(course / "source" / LAB / f"{LAB}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in cells}


def answered(course: Path, student: str, changed: dict[str, str], *, without: str = "") -> None:
    """Hand in the notebook that students open, twice over, with some cells written anew."""
    notebook = nbformat.read(FOLDER / f"{LAB}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = changed.get(grade_id(cell), cell.source)
    notebook.cells = [cell for cell in notebook.cells if grade_id(cell) != without or not without]
    notebook.cells += [copy.deepcopy(cell) for cell in notebook.cells if grade_id(cell)]
    own = course / f"{LAB}.ipynb"
    nbformat.write(notebook, own)
    hand_in(own, student=student, into=course / "submitted")


def grade_id(cell: nbformat.NotebookNode) -> str:
    return str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))


def test_nbgrader_releases_the_notebook_that_students_open(course):
    nbgrader(course, "generate_assignment", LAB)
    released = nbformat.read(course / "release" / LAB / f"{LAB}.ipynb", as_version=4)
    assert released == nbformat.read(FOLDER / f"{LAB}.ipynb", as_version=4)


def test_a_class_is_graded_by_its_answers_and_not_by_edited_checks(course, solutions):
    """The solutions are out of the way then, as they are in a teacher's container."""
    ring = 'five = plan_placement(nodes=5, strategy="ring")'
    edited = {f"check-{number}": "print('right: I say so')" for number in (1, 2, 3)}
    answered(course, "amy", solutions, without="check-2")
    answered(course, "ben", {**solutions, **edited, "exercise-1": ring, "exercise-3": "1 / 0"})
    nbgrader(course, "generate_assignment", LAB)
    (course / "source").rename(course / "away")
    for student in ("amy", "ben"):
        nbgrader(course, "autograde", LAB, f"--student={student}")
    (course / "away").rename(course / "source")
    nbgrader(course, "export", "--to=grades.csv")
    with (course / "grades.csv").open() as grades:
        points = {row["student_id"]: float(row["score"]) for row in csv.DictReader(grades)}
    assert points == {"amy": 3.0, "ben": 2.0}
    assert grade_command([LAB, "--course", str(course)]) == 0
    with (course / "verdicts.csv").open() as said:
        told = {(row["student"], row["check"]): row for row in csv.DictReader(said)}
    counted = {
        name: sum(int(r["points"]) for (s, _), r in told.items() if s == name) for name in points
    }
    assert counted == points
    assert "pairs are fatal" in told["ben", "check-1"]["said"]
    assert told["ben", "check-3"]["said"].startswith("no answer yet: there is no `tough`")
    assert told["amy", "check-2"]["said"].startswith("no answer: the check was taken out")
    assert told["ben", "check-4"]["said"].startswith("right: ")
    assert len(told) == 8
