"""Answers go from one process to another as plain data, and nothing of theirs judges."""

import inspect
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from gemini_lab_widgets.predictions import FILE, Prediction

from gemini_lab.errors import ConfigError
from gemini_lab.injector import NodesLoss, Scenario
from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.placement import plan_placement
from gemini_lab_course.grading.__main__ import verdicts
from gemini_lab_course.grading.cells import Cell, code_cells, needed
from gemini_lab_course.grading.hand_in import hand_in
from gemini_lab_course.grading.handed_in import (
    Glance,
    HandedIn,
    NoAnswerError,
    Patience,
    signature_of,
)
from gemini_lab_course.grading.judge import judge
from gemini_lab_course.grading.plain import LONGEST, OtherError, from_plain, to_plain
from gemini_lab_course.own_root.deciding import Fence, Kept, Start

ANSWERS = [
    None,
    True,
    -7,
    0.25,
    math.inf,
    "a text",
    [1, (2, "three")],
    {1: [None], "two": {3}},
    plan_placement(nodes=5, replicas=2),
    Scenario().add(NodesLoss(("rank-1", "rank-2")), iteration=5),
    [Chunk(span=0, replica=1, offset_bytes=0, size_bytes=4)],
    [Fence(), Start(7)],
    Kept(0, 7, 1),
]


# -- answers as plain data -------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_comes_out_as_it_went_in(answer):
    told = json.loads(json.dumps(to_plain(answer)))
    assert from_plain(told) == answer
    assert type(from_plain(told)) is type(answer)


def test_what_is_no_answer_keeps_only_its_name():
    class Yes(float):
        def __eq__(self, other):
            return True

        __hash__ = None

    class Whatever:
        pass

    assert from_plain(to_plain(Yes(0.5))) != 0.7
    assert type(from_plain(to_plain(Yes(0.5)))) is float
    assert type(from_plain(to_plain(Whatever()))).__name__ == "Whatever"
    itself = []
    itself.append(itself)
    json.dumps(to_plain(itself))


@pytest.mark.parametrize(
    "text",
    [
        {"made": "os:system", "of": {"command": "true"}},
        {"made": "gemini_lab.job:subprocess", "of": {}},
        {"made": "gemini_lab.no_such:Thing", "of": {}},
        {"made": "gemini_lab.placement.planner:Placement", "of": {"nodes": 5}},
        {"made": "gemini_lab_course.grading.handed_in:HandedIn", "of": {}},
        {"eval": ["1"]},
        {},
    ],
)
def test_what_is_no_value_of_this_package_is_not_made(text):
    with pytest.raises(OtherError):
        from_plain(text)


def test_what_can_be_gone_through_becomes_a_list():
    answers = [
        np.array([[0, 1], [1, 0]]),
        (n for n in (1, 2)),
        range(2),
        np.int64(7),
        np.float32(0.5),
    ]
    told = [from_plain(json.loads(json.dumps(to_plain(each)))) for each in answers]
    assert told == [[[0, 1], [1, 0]], [1, 2], [0, 1], 7, 0.5]
    assert [type(each) for each in told[3:]] == [int, float]


def test_what_has_no_end_is_cut():
    assert len(from_plain(to_plain(itertools.count()))) == LONGEST


@pytest.mark.parametrize(
    "parameters", [None, [], 7, [["x"]], [["x", "no kind", False]], [[1, 2, 3]]]
)
def test_a_function_that_does_not_say_takes_anything(parameters):
    (anything,) = signature_of(parameters).parameters.values()
    assert anything.kind is anything.VAR_KEYWORD


def test_a_function_elsewhere_takes_what_it_took_there(tmp_path):
    """By name, the rest too, and with its defaults."""
    function = "def f(a, /, b, *c, d=1, **e):\n    return sorted(e)"
    with HandedIn(code_cells(notebook(("exercise-1", function))), tmp_path) as answers:
        f = answers.value("f", cell="exercise-1")
        assert str(inspect.signature(f)) == "(a, /, b, *c, d=None, **e)"
        assert f(1, b=2, e=3, g=4) == ["e", "g"]


# -- which cells -----------------------------------------------------------------------------------


def test_a_name_needs_the_cells_that_define_it_and_what_these_need():
    cells = [
        Cell("import math"),
        Cell("pi = math.pi"),
        Cell("lab = Lab()"),
        Cell("found = {}"),
        Cell("found['area'] = pi"),
        Cell("found.update(more=1)"),
        Cell("%time found.setdefault('most', 1)"),
        Cell("print(pi)"),
        Cell("def area(r):\n    return found['area'] * r"),
        Cell("this is ("),
    ]
    assert needed(cells, ["area"]) == [0, 1, 3, 4, 5, 6, 8]
    assert needed(cells, ["pi"]) == [0, 1]
    assert needed(cells, ["nobody"]) == []


@pytest.mark.parametrize(
    "source",
    [
        "%matplotlib inline\nfive = plan(5)",
        "!true\nfive = plan(5)",
        "%%time\nfive = plan(5)",
        "five = plan(5)\nfive?",
    ],
)
def test_what_a_cell_with_magics_needs_is_seen(source):
    cell = Cell(source)
    assert "five" in cell.defined
    assert "plan" in cell.used


def test_an_import_that_hides_its_names_is_always_needed():
    cells = [
        Cell("from gemini_lab import *"),
        Cell("a = 1"),
        Cell("five = plan_placement(nodes=5)"),
    ]
    assert needed(cells, ["five"]) == [0, 2]


def notebook(*cells):
    """As JSON, from pairs of a `grade_id` and a source."""
    made = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {"nbgrader": {"grade_id": grade_id}} if grade_id else {},
        }
        for grade_id, source in cells
    ]
    return {"cells": [{"cell_type": "markdown", "source": "# text"}, *made], "metadata": {}}


def test_only_code_counts():
    read = code_cells(notebook(("", "a = 1"), ("check-1", "print(a)"), ("exercise-1", "a = 2")))
    assert [(cell.is_check, cell.is_answer) for cell in read] == [
        (False, False),
        (True, False),
        (False, True),
    ]


def test_of_copies_of_a_cell_the_first_is_the_exercises():
    read = code_cells(notebook(("exercise-1", "a = 1"), ("exercise-1", "a = 2"), ("", "b = 3")))
    assert [cell.grade_id for cell in read] == ["exercise-1", "", ""]


# -- judging ---------------------------------------------------------------------------------------

CHECK = """
from gemini_lab_course import Verdict, lab_03
with Verdict():
    print(lab_03.exercise_{number}({name}))
"""
FUNCTION = """
from gemini_lab_course import Verdict, lab_01
with Verdict():
    print(lab_01.exercise_1(cases))
"""
RELEASED = notebook(
    ("", "from gemini_lab import plan_placement"),
    ("exercise-1", "five = None"),
    ("check-1", CHECK.format(number=1, name="five")),
    ("exercise-2", "deficit = None"),
    ("check-2", CHECK.format(number=2, name="deficit")),
    ("exercise-3", "tough = None"),
    ("check-3", CHECK.format(number=3, name="tough")),
    ("exercise-4", "def cases(checkpoint_s, interval_s, retrieval_s): pass"),
    ("check-4", FUNCTION),
)
CHEAT = """
import gemini_lab_course.lab_03 as checks, gemini_lab_course.verdict as verdict
checks.exercise_1 = checks.exercise_2 = lambda *_: "right: trust me"
verdict.Verdict.__exit__ = lambda *_: True
five = plan_placement(nodes=5, strategy="ring")
"""
HANDED_IN = notebook(
    ("", "from gemini_lab import plan_placement"),
    ("exercise-1", CHEAT),
    ("check-1", "print('right: I say so')"),
    ("exercise-2", "class Yes(float):\n    __sub__ = __rsub__ = lambda *_: 0\ndeficit = Yes(.5)"),
    ("exercise-3", "print('noise')\ntough = 1 / 0"),
    ("exercise-4", "def cases(c, i, r):\n    print('noise')\n    return c + r, c + r + i"),
)


def test_answers_are_judged_where_nothing_of_theirs_runs(tmp_path):
    """The checks are redefined, a number equals all, a cell raises, and a right answer is right."""
    released = tmp_path / "released.ipynb"
    released.write_text(json.dumps(RELEASED))
    first, second, third, fourth = judge(released, json.dumps(HANDED_IN))
    assert (first.is_right, second.is_right, third.is_right) == (False, False, False)
    assert "pairs are fatal" in first.said
    assert "not 0.5" in second.said
    assert third.said == "no answer: its cell raised ZeroDivisionError: division by zero"
    assert fourth.is_right
    assert fourth.said == "right: the middle of your two cases is Eq. (1)"


# -- handing in ------------------------------------------------------------------------------------


def test_a_hand_in_says_what_made_it(tmp_path):
    path = tmp_path / "03_placement.ipynb"
    path.write_text(json.dumps(notebook(("", "a = 1"))))
    made = hand_in(path, student="ada", into=tmp_path / "submitted")
    assert made == tmp_path / "submitted" / "ada" / "03_placement" / "03_placement.ipynb"
    said = json.loads(made.read_text())["metadata"]["made_with"]
    assert said.keys() == {"python", "gemini-lab", "torch", "deepspeed", "numpy", "at"}


def test_predictions_are_handed_in_with_the_notebook(tmp_path):
    path = tmp_path / "03_placement.ipynb"
    path.write_text(json.dumps(notebook(("", "a = 1"))))
    Prediction("how many?", file=tmp_path / FILE).box.value = "3"
    made = hand_in(path, student="ada", into=tmp_path)
    kept = json.loads((made.parent / FILE).read_text())
    assert kept == {"how many?": {"predicted": "3"}}


@pytest.mark.parametrize("name", ["03_placement-Copy1", "03_placement (1)", "03_placement"])
def test_a_copy_is_handed_in_as_what_it_is_a_copy_of(tmp_path, name):
    path = tmp_path / f"{name}.ipynb"
    path.write_text(json.dumps(notebook(("", "a = 1"))))
    made = hand_in(path, student="ada", into=tmp_path)
    assert made == tmp_path / "ada" / "03_placement" / "03_placement.ipynb"


@pytest.mark.parametrize(
    ("text", "student", "why"),
    [("{}", "../ada", "a student's name"), ("{", "ada", "is no notebook"), ("[]", "ada", "is no")],
)
def test_what_cannot_be_handed_in_is_refused(tmp_path, text, student, why):
    path = tmp_path / "lab.ipynb"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        hand_in(path, student=student, into=tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_reasons_are_told_check_by_check(tmp_path):
    folder = tmp_path / "autograded" / "ada" / "lab"
    folder.mkdir(parents=True)
    graded = notebook(("check-1", ""), ("check-2", ""), ("exercise-1", ""))
    graded["metadata"] = {"made_with": {"python": "3.11"}}
    right = {"output_type": "stream", "text": ["right: yes\n"]}
    wrong = {"output_type": "error", "evalue": "not yet: no"}
    for cell, output in zip(graded["cells"][1:3], (right, wrong), strict=True):
        cell["metadata"]["nbgrader"] |= {"grade": True, "points": 1}
        cell["outputs"] = [output]
    (folder / "lab.ipynb").write_text(json.dumps(graded))
    assert list(verdicts(tmp_path, "lab")) == [
        ("ada", "lab", "check-1", "1", "right: yes", "python 3.11", "unknown"),
        ("ada", "lab", "check-2", "0", "not yet: no", "python 3.11", "unknown"),
    ]


# -- what is handed in stays apart ----------------------------------------------------------------

SNOOPS = {
    "reads": "five = open('{course}/solution.txt').read()",
    "reads, but says so nowhere": "globals()['five'] = open('{course}/solution.txt').read()",
    "empties": "import os\nfive = os.truncate('{course}/solution.txt', 0)",
    "writes": "five = open('{course}/json.py', 'w').write('raise SystemExit')",
    "speaks for its judge": "import os\nfive = open(f'/proc/{{os.getppid()}}/fd/1', 'w')",
    "signals to its judge": "import os\nfive = os.kill(os.getppid(), 0)",
}


@pytest.fixture
def apart():
    """Whether a kernel hides folders cannot be asked without hiding one for good."""
    asked = "import sys, pathlib; from gemini_lab_course.grading.walls import hide; "
    asked += "sys.exit(not hide([pathlib.Path(sys.argv[1])]))"
    command = [sys.executable, "-c", asked, str(Path(__file__).parent)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this kernel has no Landlock")


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("code", SNOOPS.values(), ids=SNOOPS)
def test_a_hand_in_reaches_neither_the_course_nor_its_judge(tmp_path, code):
    course, elsewhere = tmp_path / "course", tmp_path / "elsewhere"
    course.mkdir()
    elsewhere.mkdir()
    (course / "solution.txt").write_text("(0, 1)")
    cells = code_cells(notebook(("exercise-1", code.format(course=course)), ("", "a = 1")))
    with HandedIn(cells, elsewhere, hidden=[course]) as answers:
        with pytest.raises(NoAnswerError, match="its cell raised PermissionError"):
            answers.value("five", cell="exercise-1")
        assert answers.value("a", cell="") == 1
    assert [path.name for path in course.iterdir()] == ["solution.txt"]
    assert (course / "solution.txt").read_text() == "(0, 1)"


def test_a_cell_that_ends_its_process_is_not_run_again_and_costs_no_other_answer(tmp_path):
    ends = "from pathlib import Path\nimport os\nPath('ran').open('a').write('.')\nos._exit(0)"
    cells = code_cells(
        notebook(("", "a = 1"), ("exercise-1", f"five = a\n{ends}"), ("exercise-2", "b = a + 1"))
    )
    with HandedIn(cells, tmp_path) as answers:
        for _ in range(2):
            with pytest.raises(NoAnswerError, match="ended its own process"):
                answers.value("five", cell="exercise-1")
        assert answers.value("b", cell="exercise-2") == 2
    assert (tmp_path / "ran").read_text() == "."


def test_a_cell_that_computes_for_ever_is_ended_long_before_one_that_waits_for_nodes(tmp_path):
    cells = code_cells(notebook(("exercise-1", "five = 0\nwhile True: five += 1")))
    with (
        HandedIn(cells, tmp_path, computing_s=0.5) as answers,
        pytest.raises(NoAnswerError, match=r"no end within 0\.5 s of computing"),
    ):
        answers.value("five", cell="exercise-1")


def test_what_the_next_exercise_sets_is_not_an_earlier_ones_answer(tmp_path):
    cells = code_cells(
        notebook(("exercise-1", "k = 3\nfive = k"), ("check-1", ""), ("exercise-2", "k = five = 9"))
    )
    with HandedIn(cells, tmp_path) as answers:
        assert answers.value("five", cell="exercise-1") == 3
        assert answers.value("five", cell="exercise-2") == 9


def test_who_handed_in_no_notebook_stands_in_the_reasons_with_no_points(tmp_path):
    (tmp_path / "submitted" / "ben" / "lab").mkdir(parents=True)
    (tmp_path / "submitted" / "eve" / "another").mkdir(parents=True)
    ben, eve = verdicts(tmp_path, "lab")
    assert ben[:5] == ("ben", "lab", "all", "0", "nothing that can be graded was handed in")
    assert eve[:5] == ("eve", "lab", "all", "0", "nothing was handed in")


# -- how long an answer is waited for --------------------------------------------------------------


def seen(at_s, computed_s, *, is_alone=True):
    return Glance(at_s=at_s, computed_s=computed_s, is_alone=is_alone)


def patience():
    return Patience(seen(100, 5), computing_s=30, standstill_s=60, answer_s=900)


def test_a_busy_machine_takes_no_time_away_from_an_answer():
    waiting = patience()
    slowly = [seen(100 + 10 * each, 5 + each / 4) for each in range(80)]
    assert {waiting.ends_with(each) for each in slowly} == {""}
    assert "within 30 s of computing" in waiting.ends_with(seen(110, 35.1))


def test_an_answer_that_only_sleeps_is_given_up_and_one_that_waits_for_its_nodes_is_not():
    sleeps, waits = patience(), patience()
    asleep = [seen(100 + 10 * each, 5 + each / 1000) for each in range(8)]
    with_nodes = [seen(each.at_s, each.computed_s, is_alone=False) for each in asleep]
    assert [bool(sleeps.ends_with(each)) for each in asleep] == [False] * 7 + [True]
    assert not any(waits.ends_with(each) for each in with_nodes)
    assert "did nothing for 60 s" in sleeps.ends_with(asleep[-1])
    assert "no end within 900 s" in waits.ends_with(seen(1001, 6, is_alone=False))


def test_a_cell_that_sleeps_for_ever_is_ended(tmp_path):
    cells = code_cells(notebook(("exercise-1", "import time\nfive = time.sleep(10**6)")))
    with (
        HandedIn(cells, tmp_path, standstill_s=0.5) as answers,
        pytest.raises(NoAnswerError, match=r"it did nothing for 0\.5 s"),
    ):
        answers.value("five", cell="exercise-1")


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such limit")
def test_a_cell_that_asks_for_ever_more_memory_raises(tmp_path):
    cells = code_cells(notebook(("exercise-1", "five = bytearray(9 << 30)"), ("", "a = 1")))
    with HandedIn(cells, tmp_path) as answers:
        with pytest.raises(NoAnswerError, match="its cell raised MemoryError"):
            answers.value("five", cell="exercise-1")
        assert answers.value("a", cell="") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it takes half a second")
def test_a_cell_that_never_ends_ends_with_its_judge(tmp_path):
    """A judge is killed while a hand-in computes."""
    released = tmp_path / "released.ipynb"
    released.write_text(json.dumps(RELEASED))
    told = tmp_path / "told"
    endless = f"import os\nopen('{told}', 'w').write(str(os.getpid()))\nwhile True: five = 1"
    command = [sys.executable, "-m", "gemini_lab_course.grading.judge", str(released)]
    judging = subprocess.Popen(
        command, stdin=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    judging.stdin.write(json.dumps(notebook(("exercise-1", endless))))
    judging.stdin.close()
    while not (told.exists() and told.read_text()):
        assert judging.poll() is None
        time.sleep(0.1)
    student = psutil.Process(int(told.read_text()))
    judging.kill()
    judging.wait()
    assert psutil.wait_procs([student], timeout=30)[0]
