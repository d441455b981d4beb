"""What students hand in, and the table of what was said of it."""

import copy
import json

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab_course.grading import grade_command, hand_in, hand_in_command, verdicts
from gemini_lab_course.predictions import FILE, Prediction

RIGHT = {"output_type": "stream", "name": "stdout", "text": "right: yes\n"}
SHOWN = {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "right: shown"}}
WRONG = {"output_type": "error", "ename": "WrongAnswerError", "evalue": "not yet:\nno"} | {
    "traceback": []
}


def notebook(*cells, **metadata):
    """Return a notebook of pairs of a `grade_id` and a list of outputs."""
    made = []
    for grade_id, outputs in cells:
        mark = {"grade_id": grade_id, "grade": grade_id.startswith("check"), "points": 1}
        cell = {"cell_type": "code", "source": "a = 1", "outputs": outputs, "execution_count": None}
        made.append({**cell, "metadata": {"nbgrader": mark} if grade_id else {}})
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


# -- handing in ------------------------------------------------------------------------------------


def test_a_hand_in_says_what_made_it(tmp_path):
    path = write(tmp_path / "03_placement.ipynb", notebook(("", [])))
    made = hand_in(path, student="ada", into=tmp_path / "submitted")
    assert made == tmp_path / "submitted" / "ada" / "03_placement" / "03_placement.ipynb"
    said = json.loads(made.read_text())["metadata"]["made_with"]
    assert said.keys() == {"python", "gemini-lab", "torch", "deepspeed", "numpy", "at"}


def test_predictions_are_handed_in_with_the_notebook(tmp_path):
    path = write(tmp_path / "03_placement.ipynb", notebook(("", [])))
    Prediction("how many?", file=tmp_path / FILE).box.value = "3"
    made = hand_in(path, student="ada", into=tmp_path)
    kept = json.loads((made.parent / FILE).read_text())
    assert kept == {"how many?": {"predicted": "3"}}


@pytest.mark.parametrize("name", ["03_placement-Copy1", "03_placement (1)", "03_placement"])
def test_a_copy_is_handed_in_as_what_it_is_a_copy_of(tmp_path, name):
    path = write(tmp_path / f"{name}.ipynb", notebook(("", [])))
    made = hand_in(path, student="ada", into=tmp_path)
    assert made == tmp_path / "ada" / "03_placement" / "03_placement.ipynb"


def test_of_copies_of_a_cell_the_first_is_the_exercises(tmp_path):
    """Of a notebook in which a name comes twice, or a mark is empty, nbgrader grades nothing."""
    content = notebook(("exercise-1", []), ("check-1", []))
    content["cells"] += copy.deepcopy(content["cells"])
    content["cells"].append({**content["cells"][0], "metadata": {"nbgrader": {}}})
    made = hand_in(write(tmp_path / "lab.ipynb", content), student="ada", into=tmp_path)
    marks = [each["metadata"].get("nbgrader") for each in json.loads(made.read_text())["cells"]]
    assert [mark and mark["grade_id"] for mark in marks] == ["exercise-1", "check-1"] + [None] * 3


@pytest.mark.parametrize(
    ("text", "student", "why"),
    [
        ("{}", "../ada", "a student's name"),
        ("{", "ada", "is no notebook"),
        ("[]", "ada", "is no"),
        ('{"metadata": {}, "cells": [1]}', "ada", "is no notebook"),
    ],
)
def test_what_cannot_be_handed_in_is_refused(tmp_path, text, student, why):
    path = tmp_path / "lab.ipynb"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        hand_in(path, student=student, into=tmp_path)
    assert list(tmp_path.iterdir()) == [path]


# -- the class's verdicts --------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    """A course of one lab with four checks."""
    checks = [(f"check-{number}", []) for number in (1, 2, 3, 4)]
    write(tmp_path / "source" / "lab" / "lab.ipynb", notebook(("exercise-1", []), *checks))
    return tmp_path


def test_the_reasons_are_told_check_by_check(course):
    """A check that somebody took out has its row, too."""
    made = {"made_with": {"python": "3.11"}}
    write(course / "submitted" / "ada" / "lab" / "lab.ipynb", notebook(**made))
    said = {"check-1": [RIGHT], "check-2": [SHOWN, WRONG], "check-3": [SHOWN], "exercise-1": []}
    graded = notebook(*said.items())
    write(course / "autograded" / "ada" / "lab" / "lab.ipynb", graded)
    gone = "no answer: the check was taken out of the notebook"
    assert list(verdicts(course, "lab")) == [
        ("ada", "lab", "check-1", "1", "right: yes", "python 3.11"),
        ("ada", "lab", "check-2", "0", "not yet: no", "python 3.11"),
        ("ada", "lab", "check-3", "1", "right: shown", "python 3.11"),
        ("ada", "lab", "check-4", "0", gone, "python 3.11"),
    ]


def test_who_handed_in_no_notebook_stands_in_the_reasons_with_no_points(course):
    (course / "submitted" / "ben" / "lab").mkdir(parents=True)
    (course / "submitted" / "eve" / "another").mkdir(parents=True)
    write(course / "submitted" / "kim" / "lab" / "lab.ipynb", [])
    write(course / "submitted" / "zoe" / "lab" / "lab.ipynb", notebook())
    said = {row[0]: row[4] for row in verdicts(course, "lab") if row[2:4] == ("all", "0")}
    assert said == {
        "ben": "nothing that can be graded was handed in",
        "eve": "nothing was handed in",
        "kim": "nothing that can be graded was handed in: it is no notebook",
        "zoe": "nbgrader did not grade it: run `nbgrader autograde` and read its messages",
    }


def test_a_lab_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.ipynb; `make solutions` writes a course"):
        grade_command(["nothing", "--course", str(tmp_path)])


def test_a_class_is_summed_up_with_its_reasons_and_predictions(course, capsys):
    for student, said, predicted in (("ada", RIGHT, "2"), ("ben", WRONG, "3"), ("kim", WRONG, "3")):
        write(course / "submitted" / student / "lab" / "lab.ipynb", notebook())
        write(
            course / "submitted" / student / "lab" / "predictions.json",
            {
                "how many?": {"predicted": predicted},
                "not asked": {"predicted": ""},
                "which?": {"predicted": f"DP: same own\nTP: own {predicted}"},
            },
        )
        graded = notebook(("check-1", [said]), *((f"check-{n}", [RIGHT]) for n in (2, 3, 4)))
        write(course / "autograded" / student / "lab" / "lab.ipynb", graded)
    (course / "submitted" / "kim" / "lab" / "predictions.json").write_text("no predictions")
    assert grade_command(["lab", "--course", str(course)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "3 hand-ins",
        "exercise 1: 1 of 3 right",
        "  2 x not yet: no",
        "exercise 2: 3 of 3 right",
    ]
    assert said[-9:-6] == ["how many?", "  # 1  2", "  # 1  3"]
    assert said[-6:-1] == [
        "which? DP",
        "  ## 2  same own",
        "which? TP",
        "  # 1  own 2",
        "  # 1  own 3",
    ]
    assert (course / "verdicts.csv").exists()


def test_a_student_is_told_what_is_still_empty(tmp_path, capsys):
    content = notebook(("exercise-1", []), ("exercise-2", []), ("check-1", []))
    for cell, source in zip(
        content["cells"], ("five = 5", "x = None\n# YOUR CODE HERE"), strict=False
    ):
        cell["source"] = source
        cell["metadata"]["nbgrader"]["solution"] = True
    path = write(tmp_path / "03_placement.ipynb", content)
    assert hand_in_command([str(path), "--student", "ada", "--into", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 exercises are empty" in said
    assert f"send this folder: {tmp_path / 's' / 'ada'}" in said
