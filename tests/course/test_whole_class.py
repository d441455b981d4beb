"""A class is judged side by side, and no hand-in twice."""

import io
import json
import tempfile

import pytest

import gemini_lab
import gemini_lab_course
from gemini_lab.errors import ConfigError
from gemini_lab_course.grading import apart
from gemini_lab_course.grading.__main__ import grade, main
from gemini_lab_course.grading.apart import Paper, UnjudgedError, starts_nodes, verdict
from gemini_lab_course.grading.cells import Cell
from gemini_lab_course.grading.whole_class import hand_ins, judge_all, usual_jobs

LAB = "lab"
CHECK = """
from gemini_lab_course.verdict import WrongAnswerError
if answer != 7:
    raise WrongAnswerError("not yet: count again")
print("right: seven")
"""


def notebook(*cells):
    """As JSON, from pairs of a `grade_id` and a source."""
    made = [
        {"cell_type": "code", "source": source, "metadata": {"nbgrader": {"grade_id": grade_id}}}
        for grade_id, source in cells
    ]
    return json.dumps({"cells": made, "metadata": {}})


@pytest.fixture
def course(tmp_path):
    write(tmp_path / "source" / LAB, ("exercise-1", "answer = 7"), ("check-1", CHECK))
    return tmp_path


def write(folder, *cells):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{LAB}.ipynb").write_text(notebook(*cells))


def hand_in(course, student, answer):
    write(course / "submitted" / student / LAB, ("exercise-1", answer), ("check-1", "pass"))


def told(course):
    """What is said while a class is judged."""
    said = io.StringIO()
    judge_all(list(hand_ins(course, LAB)), jobs=2, told=said)
    return said.getvalue()


def verdicts(course):
    """What is kept of each student, by name; it judges who has nothing."""
    return {
        each.student: [
            (found["is_right"], found["said"]) for found in verdict(each.paper)["judged"]
        ]
        for each in hand_ins(course, LAB)
    }


def test_who_goes_on_judges_only_what_has_no_verdict(course):
    hand_in(course, "ada", "answer = 7")
    hand_in(course, "ben", "answer = 8")
    first = told(course)
    assert "2 to judge" in first
    assert "ada: 1 of 1 right" in first
    assert "ben: 0 of 1 right" in first
    hand_in(course, "eve", "answer = 7.5")
    hand_in(course, "dan", "answer = 7.5")
    again = told(course)
    assert "4 hand-ins, 3 of them judged before or equal to another; 1 to judge" in again
    right, wrong = [(True, "right: seven")], [(False, "not yet: count again")]
    assert verdicts(course) == {"ada": right, "ben": wrong, "dan": wrong, "eve": wrong}


def test_a_verdict_is_that_of_its_answers_and_its_checks(course):
    released = course / "source" / LAB / f"{LAB}.ipynb"
    paper = Paper(released=released, handed_in=[Cell("answer = 7", "exercise-1")])
    other = Paper(released=released, handed_in=[Cell("answer = 8", "exercise-1")])
    checked = Paper(
        released=released, handed_in=[*paper.handed_in, Cell("print('right')", "check-1")]
    )
    assert paper.key == checked.key != other.key  # a check of theirs is never run
    before = paper.key
    write(released.parent, ("exercise-1", "answer = 7"), ("check-1", CHECK.replace("7", "9")))
    assert paper.key != before


@pytest.mark.parametrize("package", [gemini_lab, gemini_lab_course])
def test_other_code_of_the_core_or_the_course_makes_a_verdict_outdated(
    course, tmp_path, monkeypatch, package
):
    """A check of the course calls the core: what it says may differ with either."""
    released = course / "source" / LAB / f"{LAB}.ipynb"
    paper = Paper(released=released, handed_in=[Cell("answer = 7", "exercise-1")])
    code = tmp_path / "package" / "stage" / "module.py"
    code.parent.mkdir(parents=True)
    monkeypatch.setattr(package, "__file__", str(tmp_path / "package" / "__init__.py"))
    monkeypatch.setattr(apart, "_package", apart._package.__wrapped__)  # not as kept
    code.write_text("SURVIVES = 1\n")
    before = paper.key
    assert paper.key == before
    code.write_text("SURVIVES = 2\n")
    assert paper.key != before


def test_what_is_no_verdict_is_not_kept(course):
    write(course / "source" / LAB, ("exercise-1", ""), ("check-1", "print(answer)\n1 / 0"))
    hand_in(course, "ada", "answer = 7")
    (ada,) = hand_ins(course, LAB)
    (found,) = verdict(ada.paper)["judged"]
    assert found["said"].startswith("could not be judged")
    with pytest.raises(UnjudgedError, match=r"no end after 0\.01 s"):
        verdict(ada.paper, limit_s=0.01)
    assert not ada.paper.kept.exists()


def test_a_judge_that_is_ended_leaves_no_folder(course, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    hand_in(course, "ada", "while True: pass")
    (ada,) = hand_ins(course, LAB)
    with pytest.raises(UnjudgedError, match="no end after 8 s"):
        verdict(ada.paper, limit_s=8.0)
    assert not [*scratch.iterdir()]


def test_labs_that_start_nodes_are_judged_one_after_the_other(course):
    released = course / "source" / LAB / f"{LAB}.ipynb"
    lab = ("", "lab = Lab(nodes=2)")
    write(released.parent, lab, ("exercise-1", "answer = 7"), ("check-1", "print(answer)"))
    assert not starts_nodes(released)
    write(released.parent, lab, ("exercise-1", "answer = lab"), ("check-1", "print(answer)"))
    assert starts_nodes(released)
    assert usual_jobs(released) == 1


def test_what_cannot_be_read_stops_nobody(course):
    hand_in(course, "ada", "answer = 7")
    old = '{"nbformat": 3, "metadata": {}, "worksheets": [{"cells": [{}]}]}'
    texts = {"ben": "no notebook", "eve": "[]", "dan": '{"cells": [1]}', "kim": old}
    for student, text in texts.items():
        folder = course / "submitted" / student / LAB
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(text)
    assert [each.student for each in hand_ins(course, LAB)] == ["ada"]


def test_a_notebook_of_an_older_format_is_judged_like_any_other(course):
    hand_in(course, "ada", "answer = 7")
    path = course / "submitted" / "ada" / LAB / f"{LAB}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    of_code = {"language": "python", "collapsed": False, "outputs": []}
    old = [{**cell, **of_code, "input": cell.pop("source")} for cell in cells]
    of_3 = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": old}]}
    path.write_text(json.dumps(of_3))
    assert verdicts(course) == {"ada": [(True, "right: seven")]}


def test_a_hand_in_of_another_lab_is_told_that_it_is_one(course):
    for folder, title in ((f"source/{LAB}", "# 03 This"), ("source/other", "# 04 That")):
        headed(course / folder, title, ("exercise-1", "answer = 7"), ("check-1", CHECK))
    for student, title in (("ada", "# 03 This"), ("ben", "# 04 That"), ("eve", "# Mine")):
        headed(course / "submitted" / student / LAB, title, ("exercise-1", "answer = 7"))
    assert "ben: 0 of 1 right" in told(course)
    right = [(True, "right: seven")]
    wrong = [(False, "no answer: this is a notebook of other, and lab was asked for")]
    assert verdicts(course) == {"ada": right, "ben": wrong, "eve": right}


def headed(folder, title, *cells):
    """A notebook that begins with a title."""
    write(folder, *cells)
    path = folder / f"{LAB}.ipynb"
    content = json.loads(path.read_text())
    content["cells"].insert(0, {"cell_type": "markdown", "source": [f"{title}\n", "text"]})
    path.write_text(json.dumps(content))
    if folder.parent.name == "source":
        path.rename(folder / f"{folder.name}.ipynb")


def test_a_lab_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"there is no .*nothing\.ipynb"):
        grade(tmp_path, "nothing")
    assert main(["nothing", "--course", str(tmp_path)]) == 1
    assert "`make solutions` writes a course" in capsys.readouterr().err
