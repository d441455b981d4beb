"""Predictions are kept as they are typed, and stand once it has come out."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("ipywidgets")

from gemini_lab.errors import ConfigError
from gemini_lab_course.predictions import CHANGE, Prediction

QUESTION = "fatal pairs: groups, ring"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "predictions.json"


def test_what_is_typed_is_kept_and_shown_beside_what_came_out(file, capsys):
    asked = Prediction(QUESTION, file=file)
    assert asked.words == "predicted: nothing"
    asked.box.value = "2, 3"
    assert asked.words == f"predicted: 2, 3; {CHANGE}"
    assert json.loads(file.read_text()) == {QUESTION: {"predicted": "2, 3"}}
    asked.came_out("2, 4")
    assert capsys.readouterr().out == "predicted: 2, 3; came out: 2, 4\n"
    assert asked.words == "predicted: 2, 3; came out: 2, 4"


def test_a_prediction_outlives_its_kernel_and_stands_once_it_has_come_out(file):
    Prediction("another", file=file).box.value = "7"
    Prediction(QUESTION, file=file).box.value = "2, 3"
    again = Prediction(QUESTION, file=file)
    assert (again.box.value, again.stands) == ("2, 3", False)
    again.box.value = "2, 4"
    again.came_out("2, 4")
    last = Prediction(QUESTION, file=file)
    assert (last.box.value, last.stands) == ("2, 4", True)
    last.box.value = "changed by a script"
    assert json.loads(file.read_text())[QUESTION] == {"predicted": "2, 4", "came_out": "2, 4"}


def test_without_a_prediction_it_says_so_and_leaves_the_question_open(file, capsys):
    asked = Prediction(QUESTION, file=file)
    asked.came_out(4)
    assert capsys.readouterr().out == "predicted: nothing; came out: 4\n"
    assert not Prediction(QUESTION, file=file).stands


def test_what_is_entered_after_it_came_out_says_so(file):
    Prediction(QUESTION, file=file).came_out(4)
    late = Prediction(QUESTION, file=file)
    late.box.value = "4"
    assert late.stands
    assert late.words == "predicted: 4 (entered after it had come out); came out: 4"
    late.came_out(5)
    kept = {"predicted": "4", "came_out": "5", "entered": "after it had come out"}
    assert json.loads(file.read_text())[QUESTION] == kept


CELLS = f"""
from gemini_lab_course.predictions import Prediction
asked = Prediction("<img src=x onerror=alert(1)>")
asked
# %%
asked.box.value = "<b>2</b>, {"3 and " * 20}4"
# %%
asked.came_out(4)
# %%
Prediction(asked.question)
"""


def test_a_saved_notebook_has_a_prediction_as_text_where_no_kernel_knows_the_box(tmp_path):
    """What stands there after each cell: a box beside the text, and once there is one no box."""
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS.split("# %%")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": tmp_path}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources)
    with client.setup_kernel():
        client.execute_cell(cells[0], 0)
        (asked,) = cells[0].outputs
        assert WIDGET in asked.data
        assert "predicted: nothing" in asked.data["text/html"]
        client.execute_cell(cells[1], 1)
        assert WIDGET not in asked.data
        assert CHANGE in asked.data["text/html"]
        client.execute_cell(cells[2], 2)
        client.execute_cell(cells[3], 3)
    (said,), (again,) = cells[2].outputs, cells[3].outputs
    for one in (asked, said, again):
        assert "came out: 4" in one.data["text/html"]
        assert "<b>2" not in one.data["text/html"]
        assert "<img" not in one.data["text/html"]
    assert "\n" in said.data["text/plain"], "a terminal breaks a long line within a word"


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_file_of_something_else_is_refused_with_the_way_out(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="move that file away"):
        Prediction(QUESTION, file=file)
    assert file.read_text() == text
