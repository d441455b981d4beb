"""Predictions are kept as they are typed, and a result is hidden until this kernel reveals it."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("ipywidgets")

from gemini_lab.errors import ConfigError
from gemini_lab_course import predictions
from gemini_lab_course.predictions import CHANGE, MOST_CHARACTERS, Drawing, Prediction

QUESTION = "fatal pairs of the ring?"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "predictions.json"


@pytest.fixture
def restart():
    """Forget what this kernel has revealed, as the next one does not know it."""

    def restart():
        predictions._revealed.clear()
        predictions._results.clear()

    return restart


def kept(file):
    return json.loads(file.read_text())[QUESTION]


def test_what_is_typed_is_kept_and_shown_beside_what_came_out(file, capsys):
    asked = Prediction(QUESTION, file=file)
    assert asked.words == "predicted: nothing"
    asked.box.value, asked.why.value = "4", "each has a neighbour"
    assert asked.words == f"predicted: 4, because each has a neighbour; {CHANGE}"
    assert kept(file) == {"predicted": "4", "why": "each has a neighbour"}
    asked.came_out(4)
    assert capsys.readouterr().out == f"{asked.words}\n"
    assert asked.words == "predicted: 4, because each has a neighbour; came out: 4"
    assert kept(file)["came_out"] == "4"


def test_what_shows_a_result_is_hidden_with_it(file, capsys):
    asked = Prediction(QUESTION, file=file)
    asked.came_out(4, "ring [(0, 1), (1, 2)]", "more")
    assert "(0, 1)" not in capsys.readouterr().out
    hidden = asked._as_result()
    assert "(0, 1)" not in hidden["text/plain"]
    assert "<details>" in hidden["text/html"].partition("(0, 1)")[0]
    asked.reveal()
    assert asked._as_result()["text/plain"].endswith("came out: 4\nring [(0, 1), (1, 2)]\nmore")
    assert "<details>" not in asked._as_result()["text/html"]


def test_a_choice_is_one_of_those_and_is_judged(file):
    asked = Prediction(QUESTION, "two", "four", file=file)
    assert asked.box.value is None, "nothing is chosen for who predicts"
    asked.box.value = "four"
    asked.came_out("four")
    assert asked.words == "predicted: four; and so it came out: four"
    asked.came_out("two")
    assert asked.words == "predicted: four; it came out: two"
    assert Prediction(QUESTION, "one", "two", file=file).box.value is None


def test_the_next_kernel_shows_no_result_and_takes_an_honest_prediction(file, restart):
    """Run All reveals every result once; who predicts after that is not told, nor called late."""
    Prediction(QUESTION, file=file).came_out(4)
    restart()
    asked = Prediction(QUESTION, file=file)
    assert "4" not in asked.words
    assert "4" not in str(asked._as_text())
    asked.box.value = "2"
    assert asked.words == f"predicted: 2; {CHANGE}"
    assert kept(file) == {"predicted": "2"}
    asked.came_out(4)
    assert kept(file) == {"predicted": "2", "came_out": "4"}
    restart()
    again = Prediction(QUESTION, file=file)
    assert (again.box.value, again.words) == ("2", f"predicted: 2; {CHANGE}")


def test_after_run_all_a_prediction_still_comes_before_its_result(file):
    asked = Prediction(QUESTION, file=file)
    asked.came_out(4)
    assert asked.words == "predicted: nothing"
    assert "came out" not in str(asked._as_text())
    asked.box.value = "3"
    asked.box.value = "2"  # a second thought, with the result still hidden
    asked.keep_button.click()
    assert asked.words == "predicted: 2; came out: 4"
    assert "entered" not in kept(file)


def test_what_is_entered_after_its_result_says_so_until_it_is_asked_again(file):
    asked = Prediction(QUESTION, file=file)
    asked.came_out(4)
    asked.reveal()
    asked.box.value = "4"
    assert asked.words == "predicted: 4 (entered after it had come out); came out: 4"
    asked.came_out(4)
    assert kept(file)["entered"] == "after it had come out"
    asked.reset_button.click()
    assert (asked.box.value, asked.words) == ("", "predicted: nothing")
    assert kept(file) == {}
    asked.box.value = "3"
    assert asked.words == f"predicted: 3; {CHANGE}"


def test_a_reset_forgets_a_choice_too(file):
    asked = Prediction(QUESTION, "two", "four", file=file)
    asked.box.value = "two"
    asked.came_out("two")
    asked.reset()
    assert (asked.box.value, asked.words) == (None, "predicted: nothing")


def test_an_endless_answer_is_cut(file):
    asked = Prediction(QUESTION, file=file)
    asked.box.value = asked.why.value = "7" * 10**6
    assert {len(text) for text in kept(file).values()} == {MOST_CHARACTERS}


CELLS = f"""
from gemini_lab_course.predictions import Prediction
asked = Prediction("<img src=x onerror=alert(1)>")
asked
# %%
asked.box.value = "<b>2</b>, {"3 and " * 20}4"
asked.keep_button.click()
# %%
asked.came_out(4)
# %%
other = Prediction("nobody predicted this")
other.came_out("a secret")
# %%
other.box.value = "a guess"
other.keep_button.click()
# %%
asked.reset_button.click()
"""


def test_a_saved_notebook_has_a_prediction_as_text_where_no_kernel_knows_the_box(tmp_path):
    """What stands there after each cell: boxes, and once they are filled text in their place."""
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
        (said,) = cells[2].outputs
        for one in (asked, said):
            assert "came out: 4" in one.data["text/html"]
            assert "<b>2" not in one.data["text/html"]
            assert "<img" not in one.data["text/html"]
        client.execute_cell(cells[3], 3)
        (folded,) = cells[3].outputs
        assert WIDGET in folded.data
        assert "<details><summary>nobody predicted this" in folded.data["text/html"]
        assert "a secret" not in folded.data["text/plain"]
        client.execute_cell(cells[4], 4)
        assert "predicted: a guess; came out: a secret" in folded.data["text/html"]
        client.execute_cell(cells[5], 5)
        assert WIDGET in asked.data


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_file_of_something_else_is_refused_with_the_way_out(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="move that file away"):
        Prediction(QUESTION, file=file)
    assert file.read_text() == text


# -- a drawing ------------------------------------------------------------------------------------

TABLE = {"rows": ("DP", "TP"), "columns": ("weights", "data"), "marks": ("same", "own")}


def test_a_drawing_is_clicked_kept_and_compared_cell_by_cell(file, capsys):
    asked = Drawing(QUESTION, **TABLE, file=file)
    buttons = asked.box.buttons
    assert asked.words == "drawn: 0 cells"
    assert {button.tooltip for button in buttons.values()} == {
        *("DP, weights", "DP, data", "TP, weights", "TP, data")
    }
    buttons["DP", 0].click()
    buttons["TP", 1].click()
    buttons["TP", 1].click()
    assert kept(file)["predicted"] == "DP: same ?\nTP: ? own"
    assert [each.description for each in buttons.values()] == ["same", " ", " ", "own"]
    asked.came_out("DP: same own\nTP: own own")
    assert capsys.readouterr().out == f"{asked.words}\n"
    assert asked.words == "drawn: 2 cells; 2 of 4 came out so"
    shown = asked._as_text()["text/html"]
    assert shown.count("✓") == 2
    assert "<b>own</b>" in shown
    assert kept(file)["came_out"] == "DP: same own\nTP: own own"


def test_a_drawing_is_there_again_in_the_next_kernel_and_a_reset_empties_it(file, restart):
    Drawing(QUESTION, **TABLE, file=file).box.buttons["DP", 0].click()
    restart()
    asked = Drawing(QUESTION, **TABLE, file=file)
    assert asked.box.buttons["DP", 0].description == "same"
    asked.reset()
    assert [each.description for each in asked.box.buttons.values()] == [" "] * 4
    assert kept(file) == {}
    for _ in range(3):  # the third click takes the mark away
        asked.box.buttons["DP", 0].click()
    assert asked.is_empty


@pytest.mark.parametrize("before", ["<b>", "DP: <b> same more", "XP: same own", "DP", ": \n: x"])
def test_a_drawing_takes_of_a_file_only_what_it_knows(file, before):
    file.write_text(json.dumps({QUESTION: {"predicted": before}}))
    asked = Drawing(QUESTION, **TABLE, file=file)
    assert {each.description for each in asked.box.buttons.values()} <= {" ", "same", "own"}
    asked.box.buttons["TP", 0].click()
    asked.came_out("DP: same own\nTP: own own")
    assert "<b>s" not in asked._as_text()["text/html"].replace("<b>same</b>", "")
