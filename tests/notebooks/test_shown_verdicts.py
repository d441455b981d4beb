"""A verdict below a cell, in a real kernel."""

import nbformat
import pytest
from nbclient import NotebookClient

from gemini_lab_course.verdict import NOT_YET

LONG = "one word after another until a narrow cell has to break the line somewhere"
CHECK = """
from gemini_lab_course import Verdict
from gemini_lab_course.verdict import need
with Verdict() as say:
    need({condition}, "{said} & <b>more</b>")
    say("right: {said} & <b>more</b>\\nyours  reference\\n    1          2")
"""


def test_a_verdict_is_html_which_a_narrow_cell_breaks_between_words():
    """JupyterLab breaks lines of text wherever a cell ends, within words, too."""
    pytest.importorskip("ipykernel")
    cells = [CHECK.format(condition=condition, said=LONG) for condition in (True, False)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    right, wrong = (cell.outputs for cell in notebook.cells)
    (shown,) = right
    assert f">right: {LONG} &amp; &lt;b&gt;more&lt;/b&gt;</p>" in shown.data["text/html"]
    assert "yours  reference\n    1          2</pre>" in shown.data["text/html"]
    assert shown.data["text/plain"].split()[: len(LONG.split()) + 1] == ["right:", *LONG.split()]
    shown, error = wrong
    assert f">not yet: {LONG} &amp; &lt;b&gt;more&lt;/b&gt;</p>" in shown.data["text/html"]
    assert error.evalue == f"not yet: {LONG} & <b>more</b>"
    assert error.traceback == [NOT_YET]
