"""A verdict below a cell, in a real kernel: one card, which says what to do next."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from gemini_lab_course.verdict import GRADES, NOT_YET, READER

pytest.importorskip("ipykernel")

LONG = "one word after another until a narrow cell has to break the line somewhere"
CHECK = """
from gemini_lab_course import Verdict
from gemini_lab_course.verdict import need
with Verdict() as say:
    need({condition}, "{said} & `<b>more</b>`", hint="think of `racks`")
    say("right: {said} & `<b>more</b>`\\nyours  reference\\n    1          2")
"""


def outputs(*cells: str, **variables: str) -> list[list]:
    """What stands below each cell, in a kernel with these variables besides."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)
    known = {name: value for name, value in os.environ.items() if name not in {READER, GRADES}}
    with client.setup_kernel(env=known | variables):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    return [cell.outputs for cell in notebook.cells]


def test_a_verdict_is_a_card_that_sets_its_text():
    """JupyterLab breaks lines of text wherever a cell ends, within words, too."""
    cells = [CHECK.format(condition=condition, said=LONG) for condition in (True, False)]
    ((right,), (wrong, error)) = outputs(*cells)
    assert "✓ Right" in right.data["text/html"]
    assert f">O{LONG[1:]} &amp; <code>&lt;b&gt;more&lt;/b&gt;</code></p>" in right.data["text/html"]
    assert "yours  reference\n    1          2</pre>" in right.data["text/html"]
    assert right.data["text/plain"].split()[: len(LONG.split()) + 1] == ["right:", *LONG.split()]
    assert ">Not yet</p>" in wrong.data["text/html"]
    assert "<summary>A hint</summary>think of <code>racks</code>" in wrong.data["text/html"]
    assert "Change your answer above" in wrong.data["text/html"]
    assert "Change your answer above" not in right.data["text/html"]
    assert error.evalue == f"not yet: {LONG} & `<b>more</b>`"
    assert error.traceback == [NOT_YET]


def test_who_reads_a_notebook_sees_a_card_and_no_error_and_nbgrader_sees_an_error():
    check = CHECK.format(condition=False, said="it is not")
    ((card,),) = outputs(check, **{READER: "/03_placement.ipynb"})
    assert "Not yet" in card.data["text/html"]
    ((_, error),) = outputs(check, **{READER: "/03_placement.ipynb", GRADES: "1"})
    assert error.evalue.startswith("not yet: ")


CHECKED = """
from gemini_lab_course import Verdict
def exercise_1(answer):
    print("tried", answer)
    return "right: yes"
"""


def test_an_older_value_is_not_tried_once_its_cell_raised():
    """A check may train for half a minute."""
    check = "with Verdict() as say:\n    say(exercise_1(mine))"
    *_, raised, (card,) = outputs(
        CHECKED, "mine = 5", check, "mine = 1 / 0", check, **{READER: "x"}
    )
    assert raised
    assert "`mine` raised ZeroDivisionError" in " ".join(card.data["text/plain"].split())


ANSWERS = (
    "from gemini_lab_course import Verdict, lab_03\nfrom gemini_lab import plan_placement",
    "five = plan_placement(nodes=5, strategy='ring')",
    "with Verdict() as say:\n    say(lab_03.exercise_1(five))",
    "five = 1 / 0",
    "with Verdict() as say:\n    say(lab_03.exercise_1(five))",
    "five = plan_placement(nodes=5,",
    "with Verdict() as say:\n    say(lab_03.exercise_1(five))",
    "five = plan_placement(nodes=5)",
    "with Verdict() as say:\n    say(lab_03.exercise_1(five))",
    "def planner(**asked): return plan_placement(**asked, strategy='ring')",
    "with Verdict() as say:\n    say(lab_03.exercise_4(planner))",
)


def test_a_card_draws_its_counterexample_and_judges_no_value_of_before_a_cell_that_raised():
    shown_below = outputs(*ANSWERS, **{READER: "x"})
    assert [
        number
        for number, shown in enumerate(shown_below)
        if any(each.output_type == "error" for each in shown)
    ] == [3, 5], "only the cells that raise are red, and no check is"
    cards = [shown[0].data for shown in shown_below if shown and "data" in shown[0]]
    ring, raised, unread, groups, attacked = cards
    assert "5 pairs are fatal" in ring["text/plain"]
    assert "<svg" in ring["text/html"]
    assert "`five` raised ZeroDivisionError: division by zero; mend it" in " ".join(
        raised["text/plain"].split()
    )
    assert "`five` raised SyntaxError" in " ".join(unread["text/plain"].split())
    assert "4 pairs are fatal" in groups["text/plain"]
    assert "4 nodes, 2 replicas" in attacked["text/plain"]
    assert "Broken: placement" in attacked["text/html"]
