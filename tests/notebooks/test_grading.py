"""nbgrader takes the solutions' edition as a course, and grades what students hand in."""

import copy
import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from editions import FOLDER, SOURCES, builder, read

from gemini_lab_course.grading.__main__ import grade
from gemini_lab_course.grading.judge import judge

LAB = "03_placement"
CHEAT = """
import gemini_lab_course.lab_03 as checks
checks.exercise_2 = lambda deficit: "right: trust me"
deficit = 0.667
"""


def nbgrader(course: Path, *arguments: str) -> None:
    """Run it in the course's folder, as a teacher does, with nothing of this user's."""
    own = {name: str(course / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
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


def hand_in(course: Path, student: str, changed: dict[str, str]) -> None:
    """The notebook that students open, with some cells written anew."""
    notebook = nbformat.read(FOLDER / f"{LAB}.ipynb", as_version=4)
    for cell in notebook.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = changed.get(grade_id, cell.source)
    folder = course / "submitted" / student / LAB
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{LAB}.ipynb")


def take_out(course: Path, student: str, grade_ids: set[str]) -> None:
    """Cells that somebody deleted."""

    def taken_out(cells: list[Any]) -> None:
        ids = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in cells]
        cells[:] = [c for c, own in zip(cells, ids, strict=True) if own not in grade_ids]

    change(course, student, taken_out)


def change(course: Path, student: str, how: Callable[[list[Any]], object]) -> None:
    """Do something to the cells of a hand-in."""
    path = course / "submitted" / student / LAB / f"{LAB}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    how(notebook.cells)
    nbformat.write(notebook, path)


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


def test_nbgrader_releases_the_notebook_that_students_open(course):
    nbgrader(course, "generate_assignment", LAB)
    released = nbformat.read(course / "release" / LAB / f"{LAB}.ipynb", as_version=4)
    assert released == nbformat.read(FOLDER / f"{LAB}.ipynb", as_version=4)


def test_a_class_is_graded_by_its_answers_and_not_by_edited_checks(course, solutions):
    ring = 'five = plan_placement(nodes=5, strategy="ring")'
    cheated = {f"check-{number}": "print('right: I say so')" for number in (1, 2, 3)}
    cheated["exercise-2"] = CHEAT
    hand_in(course, "ben", {**solutions, **cheated, "exercise-1": ring, "exercise-3": "1 / 0"})
    hand_in(course, "eve", {})
    take_out(course, "eve", {"exercise-1", "check-1", "check-3"})
    reasons = grade(course, LAB)
    with (course / "grades.csv").open() as grades:
        points = {row["student_id"]: float(row["score"]) for row in csv.DictReader(grades)}
    assert points == {"ben": 1.0, "eve": 0.0}
    with reasons.open() as said:
        told = {(row["student"], row["check"]): row["said"] for row in csv.DictReader(said)}
    assert told["ben", "check-2"].startswith("not yet: that is what the bounds say")
    assert told["ben", "check-4"].startswith("right: ")
    assert told["eve", "check-1"] == "no answer: there is no `five`"
    assert told["eve", "check-3"].startswith("no answer")
    assert len(told) == 8


def test_what_is_wrong_with_one_hand_in_costs_nobody_elses_points(course, solutions):
    """Where nbgrader ends at a copied cell, and at strange marks, others get theirs."""
    for student in ("amy", "ben", "kim", "zoe"):
        hand_in(course, student, solutions)
    (course / "submitted" / "amy" / LAB / f"{LAB}.ipynb").write_text("[]")
    change(course, "ben", lambda cells: cells.extend(copy.deepcopy(cells)))
    change(course, "kim", lambda cells: [c.metadata.pop("nbgrader", None) for c in cells[:-9]])
    change(course, "kim", lambda cells: [c.metadata.update(nbgrader={}) for c in cells[-9:]])
    reasons = grade(course, LAB)
    with (course / "grades.csv").open() as grades:
        points = {row["student_id"]: float(row["score"]) for row in csv.DictReader(grades)}
    assert points == {"amy": 0.0, "ben": 4.0, "kim": 4.0, "zoe": 4.0}
    with reasons.open() as said:
        (amy,) = [row["said"] for row in csv.DictReader(said) if row["student"] == "amy"]
    assert amy == "nothing that can be graded was handed in: it is no notebook"


@pytest.mark.parametrize(
    ("source", "number"), [(SOURCES[3], 4), (SOURCES[4], 3), (SOURCES[5], 3)], ids=str
)
def test_a_planner_that_is_right_in_the_notebook_is_right_apart(source, number, tmp_path):
    """It is called from afar, by the names of its parameters."""
    notebook = read(source, with_solutions=True)
    own = {f"exercise-{number}", f"check-{number}"}
    ids = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells]
    notebook.cells = [
        cell
        for cell, grade_id in zip(notebook.cells, ids, strict=True)
        if grade_id in own or (not grade_id and cell.source.startswith(("import ", "from ")))
    ]
    released = tmp_path / "released.ipynb"
    nbformat.write(notebook, released)
    (judged,) = judge(released, nbformat.writes(notebook))
    assert judged.said.startswith("right: ")
    assert judged.is_right
