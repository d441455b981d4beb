"""Both editions of each notebook: what stands in them, and that they run."""

import ast
import builtins
import contextlib
import re
import statistics
import subprocess
import symtable
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from editions import FOLDER, SOURCES, builder, read, starts_nodes, tagged, to_run
from nbclient import NotebookClient

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration
from gemini_lab_course import cells
from gemini_lab_course.verdict import NOT_YET

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
FEWER = {"00_quickstart": "\niterations = 40"}
"""Parameters of a lab that every change runs."""
ALONE = [source for source in SOURCES if not starts_nodes(source)]


def test_there_are_notebooks():
    assert SOURCES
    assert ALONE


# -- what stands in them --------------------------------------------------------------------------


@each_notebook
def test_the_committed_notebook_is_the_students_edition_of_its_source(source):
    committed = (FOLDER / f"{source.stem}.ipynb").read_text(encoding="utf-8")
    assert committed == builder().build(source), "run `make notebooks`"


def test_check_fails_on_a_notebook_that_differs(tmp_path):
    build = builder()
    stale = build.stale_or_written(tmp_path, check=True)
    assert stale == [f"{source.stem}.ipynb" for source in SOURCES]
    assert build.stale_or_written(tmp_path, check=False) == []
    assert build.stale_or_written(tmp_path, check=True) == []
    (tmp_path / stale[0]).write_text("{}")
    assert build.stale_or_written(tmp_path, check=True) == stale[:1]


def solutions_of(source: Path) -> list[str]:
    """What stands between the marks."""
    text = source.read_text(encoding="utf-8")
    return [part.split("### END SOLUTION")[0] for part in text.split("### BEGIN SOLUTION")[1:]]


@each_notebook
def test_no_line_of_a_solution_is_in_the_students_edition(source):
    solutions = solutions_of(source)
    assert len(solutions) == len(tagged(read(source), "exercise")) > 0
    cells = "\n".join(cell.source for cell in read(source).cells)
    lines = {line.strip() for part in solutions for line in part.splitlines()} - {"", ")"}
    assert lines & {line.strip() for line in cells.splitlines()} == set()
    assert "SOLUTION" not in builder().build(source)


@each_notebook
def test_every_exercise_says_what_is_asked_has_a_place_for_it_and_then_a_check(source):
    edition = read(source)
    parts = [
        cell for cell in edition.cells if {"exercise", "check"} & {*cell.metadata.get("tags", [])}
    ]
    order = [tag for cell in parts for tag in cell.metadata.tags if tag in {"exercise", "check"}]
    assert order == ["exercise", "check"] * (len(parts) // 2)
    for exercise in tagged(edition, "exercise"):
        assert exercise.source.splitlines()[-1].strip() == "# YOUR CODE HERE"
        assert exercise.source.startswith(("# Your answer: ", "def "))


def names(source: str) -> tuple[set[str], set[str]]:
    """What a cell sets, and what it uses, in the functions in it too."""
    table = symtable.symtable(source, "cell", "exec")
    is_set = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    loads = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return is_set, {node.id for node in loads if isinstance(node.ctx, ast.Load)}


@each_notebook
def test_only_its_check_needs_an_answer(source):
    """So a notebook without answers runs to its end."""
    answers: set[str] = set()
    for cell in read(source, with_solutions=True).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown" or "check" in tags:
            continue
        is_set, used = names(cell.source)
        if "exercise" in tags:
            answers |= is_set
        else:
            assert not used & answers - is_set, cell.source


def names_needed_by(source: str) -> set[str]:
    """What a cell, and the functions in it, take from cells that ran before."""
    is_set = cells.names_set_by(source)
    left, needed = [symtable.symtable(source, "cell", "exec")], set()
    while left:
        table = left.pop()
        left += table.get_children()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_module or symbol.is_global()):
                needed.add(symbol.get_name())
    return needed - is_set - set(dir(builtins))


@each_notebook
def test_a_name_that_other_cells_use_is_set_in_one_cell_only(source):
    """So a cell that runs out of order finds what it needs, or nothing: never another number."""
    texts = [
        cell.source for cell in read(source, with_solutions=True).cells if "code" in cell.cell_type
    ]
    made = Counter(name for text in texts for name in cells.names_set_by(text))
    for text in texts:
        assert {name: made[name] for name in names_needed_by(text) if made[name] != 1} == {}, text


@each_notebook
def test_a_cell_reads_the_run_that_it_is_about_and_not_the_newest(source):
    """`lab.run` is another one once a later cell has run; it is given a name where it is made."""
    for cell in read(source, with_solutions=True).cells:
        if cell.cell_type == "code" and re.search(r"\blab\.run\b", cell.source):
            assert "lab.profile(" in cell.source, cell.source


@each_notebook
def test_cells_are_short(source):
    """Four lines in the middle, ten at most."""
    lines = [len(c.source.splitlines()) for c in read(source).cells if c.cell_type == "code"]
    assert max(lines) <= 10
    assert statistics.median(lines) <= 4


@each_notebook
def test_a_lab_is_read_in_900_words(source):
    """More of them hold more than one idea."""
    texts = [cell.source for cell in read(source).cells if cell.cell_type == "markdown"]
    assert len(" ".join(texts).split()) <= 900


@each_notebook
def test_a_folded_explanation_ends_its_cell(source):
    """JupyterLab leaves no room between it and a text that follows in the same cell."""
    texts = [cell.source for cell in read(source).cells if "</details>" in cell.source]
    assert [text for text in texts if not text.endswith("</details>")] == []


@each_notebook
def test_one_cell_takes_papermills_parameters(source):
    assert len(tagged(read(source), "parameters")) == 1


def test_lab_05_counts_what_the_log_has_twice():
    """And not what a recovery says of itself: a new root may know an old iteration only."""
    (cell,) = (each for each in read(SOURCES[5]).cells if "def done_again(" in each.source)
    names = {"Counter": Counter}
    exec(cell.source, names)

    def done(rank, *iterations, restored=False):
        epoch = {"epoch": 1, "duration_s": 0.1, "waited_s": 0.0, "restored": restored}
        said = [Iteration(rank=rank, iteration=number, **epoch) for number in iterations]
        return [Entry(at_s=1.0, node="node-0", event=event) for event in said]

    # Rank 0 went with its node, and the log misses its last iteration; version 2 comes back.
    before = done(0, 1, 2, 3) + done(1, 1, 2, 3, 4)
    after = done(0, 2, restored=True) + done(0, 3, 4, 5) + done(1, 3, 4, 5)
    assert names["done_again"](SimpleNamespace(events=lambda _: before + after)) == 2
    assert names["done_again"](SimpleNamespace(events=lambda _: before)) == 0


# -- that they run --------------------------------------------------------------------------------


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in `folder`; an error in a cell that is no check is raised."""
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()


def said_by(cell: nbformat.NotebookNode, stream: str) -> str:
    return "".join(out.get("text", "") for out in cell.outputs if out.get("name") == stream)


def verdict_of(check: nbformat.NotebookNode) -> list[str]:
    """What stands below a check's cell where it failed, once, and not as a traceback."""
    errors = [out for out in check.outputs if "traceback" in out]
    assert all(error.traceback == [NOT_YET] for error in errors)
    # As text it is broken into lines between words.
    assert all(error.evalue.split() == shown_by(check).split() for error in errors)
    return [error.evalue for error in errors]


def shown_by(check: nbformat.NotebookNode) -> str:
    return "".join(out.data["text/plain"] for out in check.outputs if "data" in out)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", [to_run(source) for source in SOURCES])
def test_each_check_asks_for_an_answer_and_then_takes_the_solution(source, tmp_path):
    """Each exercise stands there twice: as students find it, and solved."""
    notebook = read(source, with_solutions=True)
    students = read(source)
    asked = []
    for blank, check in zip(tagged(students, "exercise"), tagged(students, "check"), strict=True):
        solved = tagged(notebook, "exercise")[len(asked)]
        notebook.cells[notebook.cells.index(solved) : notebook.cells.index(solved)] = [blank, check]
        blank.metadata.tags.remove("exercise")
        check.metadata.tags.remove("check")
        asked.append(check)
    for cell in tagged(notebook, "parameters"):
        cell.source += FEWER.get(source.stem, "")
    execute(notebook, tmp_path)
    for check in asked:
        (sentence,) = verdict_of(check)
        assert sentence.startswith("no answer yet: ")
        assert "Traceback" not in sentence
    for check in tagged(notebook, "check"):
        assert verdict_of(check) == []
        assert "right: " in shown_by(check)
    warnings = [said_by(cell, "stderr") for cell in notebook.cells if cell.cell_type == "code"]
    assert "".join(warnings) == ""
    assert processes_in(tmp_path) == []


LIGHT = [source for source in ALONE if source.stem[:2] in {"01", "03", "06"}]
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"torch", "deepspeed", "mpi4py", "grpc"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import matplotlib
matplotlib.use("Agg")
"""


@pytest.mark.parametrize("source", LIGHT, ids=lambda source: source.stem)
def test_labs_that_start_nothing_run_where_no_training_library_is_installed(source, tmp_path):
    """So a class can begin without gigabytes of PyTorch and DeepSpeed."""
    cells = [cell for cell in read(source).cells if cell.cell_type == "code"]
    left_out = {"exercise", "check"}
    told = [
        cell.source + "\nseeds, nodes, days = 2, 100, 5" * ("seeds = " in cell.source)
        for cell in cells
        if not left_out & {*cell.metadata.get("tags", [])}
    ]
    script = tmp_path / "lab.py"
    script.write_text("\n".join([WITHOUT, *told]))
    subprocess.run([sys.executable, "-W", "ignore", script], cwd=tmp_path, check=True, timeout=300)


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started in `folder`, as all of a notebook's are, and do not end."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == folder:
                found.append(process)
    _, alive = psutil.wait_procs(found, timeout=10)
    return alive
