"""Predictions are kept as they are typed, and stand once it has come out."""

import json

import pytest

pytest.importorskip("ipywidgets")

from gemini_lab_widgets.predictions import Prediction

from gemini_lab.errors import ConfigError

QUESTION = "fatal pairs: groups, ring"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "predictions.json"


def test_what_is_typed_is_kept_and_shown_beside_what_came_out(file, capsys):
    asked = Prediction(QUESTION, file=file)
    assert asked.told.value == ""
    asked.box.value = "2, 3"
    assert asked.told.value == "kept"
    assert json.loads(file.read_text()) == {QUESTION: {"predicted": "2, 3"}}
    asked.came_out("2, 4")
    assert capsys.readouterr().out == "predicted: 2, 3; came out: 2, 4\n"
    assert "2, 4" in asked.told.value


def test_a_prediction_outlives_its_kernel_and_stands_once_it_has_come_out(file):
    Prediction("another", file=file).box.value = "7"
    Prediction(QUESTION, file=file).box.value = "2, 3"
    again = Prediction(QUESTION, file=file)
    assert (again.box.value, again.box.disabled) == ("2, 3", False)
    again.box.value = "2, 4"
    again.came_out("2, 4")
    last = Prediction(QUESTION, file=file)
    assert (last.box.value, last.box.disabled) == ("2, 4", True)
    last.box.value = "changed by a script"
    assert json.loads(file.read_text())[QUESTION] == {"predicted": "2, 4", "came_out": "2, 4"}


def test_without_a_prediction_it_says_so_and_leaves_the_question_open(file, capsys):
    asked = Prediction(QUESTION, file=file)
    asked.came_out(4)
    assert capsys.readouterr().out == "predicted: nothing; came out: 4\n"
    assert not asked.box.disabled


def test_what_is_entered_after_it_came_out_says_so(file):
    Prediction(QUESTION, file=file).came_out(4)
    late = Prediction(QUESTION, file=file)
    late.box.value = "4"
    assert late.box.disabled
    assert late.told.value == "came out: <b>4</b>; predicted after it had come out"
    late.came_out(5)
    kept = {"predicted": "4", "came_out": "5", "entered": "after it had come out"}
    assert json.loads(file.read_text())[QUESTION] == kept


def test_a_question_is_text_and_no_markup(file):
    asked = Prediction("<img src=x onerror=alert(1)>", file=file)
    asked.box.value = "1"
    asked.came_out("<b>2</b>")
    assert "<img" not in asked._row.children[0].value
    assert "<b>2" not in asked.told.value


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_file_of_something_else_is_refused_with_the_way_out(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="move that file away"):
        Prediction(QUESTION, file=file)
    assert file.read_text() == text
