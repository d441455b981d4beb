"""A cell that runs too early names the cell that comes first, in a real kernel."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from gemini_lab_course import cells

pytest.importorskip("ipykernel")

BEGINS = "import gemini_lab_course"
MAKES = "# a remark\nquiet = [number for number in range(3)]\nboth = 1"
USES = "print(quiet)"
IN_A_FUNCTION = "def total():\n    return sum(quiet)\n\ntotal()"
OF_THE_STUDENT = "quite + 1"
CHECKS = """
from gemini_lab_course import Verdict, lab_03
with Verdict() as say:
    say(lab_03.exercise_2(both))
"""
RAISES = "both = 1 / 0"


@pytest.fixture
def said(tmp_path):
    """What the cells of a notebook say, if only some of them run, in this order."""

    def said(*wanted, known=True):
        texts = [BEGINS, MAKES, USES, IN_A_FUNCTION, OF_THE_STUDENT, CHECKS, RAISES]
        code = {text: nbformat.v4.new_code_cell(text) for text in texts}
        first = nbformat.v4.new_markdown_cell("# A lab\n\n## 1. Make it\nWords.")
        notebook = nbformat.v4.new_notebook(cells=[first, *code.values()])
        path = tmp_path / "lab.ipynb"
        nbformat.write(notebook, path)
        client = NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)
        variables = {cells.NOTEBOOK[0]: str(path)} if known else {}
        with client.setup_kernel(env={**os.environ, **variables}):
            for text in wanted:
                client.execute_cell(code[text], notebook.cells.index(code[text]))
        outputs = code[wanted[-1]].outputs
        told = [out.traceback[0] if "traceback" in out else out.get("text", "") for out in outputs]
        cards = [out.data["text/plain"] for out in outputs if "data" in out]
        return " ".join((cards or told)[0].split())

    return said


def test_a_skipped_cell_is_named_with_its_section(said):
    told = (
        "There is no `quiet` yet: first run the cell `quiet = [number for number in range(3)]`, in "
        "section *1. Make it*. Then run this one again."
    )
    assert said(BEGINS, USES) == told
    assert said(BEGINS, IN_A_FUNCTION) == told
    assert said(BEGINS, MAKES, USES) == "[0, 1, 2]"


def test_what_no_cell_makes_stays_an_error_of_pythons(said):
    assert "------" in said(BEGINS, OF_THE_STUDENT)
    assert "------" in said(BEGINS, USES, known=False)


def test_a_cell_that_raised_is_to_be_mended_first(said):
    told = "the cell that makes `both` raised ZeroDivisionError: division by zero; mend it"
    assert told in said(BEGINS, RAISES, CHECKS)


def test_a_check_names_the_cell_of_its_answer(said):
    assert said(BEGINS, CHECKS).startswith(
        "no answer yet: there is no `both`; first run the cell `quiet = "
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "\udcff"]
)
def test_a_file_that_is_no_notebook_names_no_cell(tmp_path, monkeypatch, text):
    path = tmp_path / "lab.ipynb"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setenv(cells.NOTEBOOK[0], str(path))
    assert cells.why_missing("quiet") == ""
    path.unlink()
    assert cells.why_missing("quiet") == ""


def test_names_within_functions_and_comprehensions_are_not_the_notebooks():
    source = "import a.b as c\nfor d, (e, f) in g:\n    h = [i for i in j]\ndef k():\n    m = 1"
    assert cells.names_set_by(source) == {"c", "d", "e", "f", "h", "k"}
    assert cells.names_set_by("%magic\nn = 1\ndef p(): pass") == {"n", "p"}
    assert cells.names_set_by("x: int = 1\ny += 1") == {"x", "y"}
