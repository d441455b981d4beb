"""How a notebook finds the pictures: through entry points, and without an import of its own."""

import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from gemini_lab import attack, display
from gemini_lab.placement import plan_placement
from gemini_lab_course.verdict import Card

ROOT = Path(__file__).parents[2]


def test_what_the_project_declares_is_installed_and_can_be_loaded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][display.GROUP]
    assert set(declared) == {"ipython", "picture"}
    installed = {point.name: point.value for point in entry_points(group=display.GROUP)}
    assert installed == declared, "install the package anew: pip install -e ."
    for name, value in declared.items():
        assert callable(EntryPoint(name, value, display.GROUP).load())


def test_a_picture_is_found_by_its_value():
    assert display.picture(plan_placement(nodes=4, replicas=2)).svg().startswith("<svg")
    with pytest.raises(TypeError, match="no picture of a int"):
        display.picture(3)


def test_a_cell_that_ends_in_a_placement_shows_its_picture():
    pytest.importorskip("ipykernel")
    cell = "from gemini_lab.placement import plan_placement\nplan_placement(nodes=4, replicas=2)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (shown,) = notebook.cells[0].outputs
    assert "<svg" in shown.data["text/html"]
    assert "Placement: 4 nodes" in shown.data["image/svg+xml"]
    assert shown.data["text/plain"].startswith("Placement(")


def test_outside_of_ipython_nothing_is_looked_for():
    code = """if True:
        import sys
        import gemini_lab
        from gemini_lab.placement import plan_placement
        plan_placement(nodes=4, replicas=2)
        assert not [name for name in sys.modules if name.startswith("gemini_lab_widgets")]
        assert "gemini_lab.display" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shell_that_is_there_is_told_of_every_value(monkeypatch):
    told = []
    formatter = SimpleNamespace(for_type_by_name=lambda *names: told.append(names[:2]))
    shell = SimpleNamespace(display_formatter=SimpleNamespace(mimebundle_formatter=formatter))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    display.show_in_ipython()
    assert ("gemini_lab.placement.planner", "Placement") in told
    assert all(importlib.util.find_spec(module) for module, _ in told)


def test_words_are_broken_between_words_in_a_narrow_terminal_too(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = "predicted: nothing; came out: " + ", ".join(f"version {n}" for n in range(12))
    found = attack(lambda nodes, replicas: None)  # noqa: ARG005 - it answers nothing
    withstood = attack(plan_placement(nodes=4, replicas=2))
    for shown, whole in (
        (repr(Card(words)), words),
        (display.picture(found).bundle()["text/plain"], repr(found)),
        (str(found), found.words),
        (str(withstood), withstood.words),
    ):
        assert shown.split() == whole.split()
        assert max(map(len, shown.splitlines())) <= 40
