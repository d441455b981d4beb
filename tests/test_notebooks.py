"""Notebooks agree with their sources, keep to their form, and run."""

import contextlib
import importlib.util
import statistics
from pathlib import Path
from types import ModuleType

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from gemini_lab import Job, Run, Scenario
from gemini_lab.errors import LaunchError, RunFailedError
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.mpi import find_mpiexec
from gemini_lab.log.events import Event

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted((FOLDER / "src").glob("*.py"))
PARTS = ("exercise", "solution", "check")
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def builder() -> ModuleType:
    """`notebooks/build.py`, which is a script and no module of a package."""
    spec = importlib.util.spec_from_file_location("build_notebooks", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(source: Path, *, with_solutions: bool = True) -> nbformat.NotebookNode:
    return nbformat.reads(builder().build(source, with_solutions=with_solutions), as_version=4)


def tagged(notebook: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def missing_programs() -> str:
    """Why no lab can start on this machine; empty if one can."""
    for find in (find_mpiexec, find_etcd):
        try:
            find()
        except LaunchError as error:
            return str(error)
    return ""


def test_there_are_notebooks():
    assert SOURCES


@each_notebook
def test_the_committed_notebook_is_what_its_source_gives(source):
    committed = (FOLDER / f"{source.stem}.ipynb").read_text(encoding="utf-8")
    assert committed == builder().build(source), "run `make notebooks`"


def test_check_fails_on_a_notebook_that_differs(tmp_path, monkeypatch, capsys):
    build = builder()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "00_one.py").write_text("# %%\n1 + 1\n")
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    (tmp_path / "src" / "00_one.py").write_text("# %%\n1 + 2\n")
    assert build.main(["--check"]) == 1
    assert "00_one.ipynb" in capsys.readouterr().err


@each_notebook
def test_cells_are_short(source):
    """Three lines in the middle, ten at most."""
    lines = [len(c.source.splitlines()) for c in read(source).cells if c.cell_type == "code"]
    assert max(lines) <= 10
    assert statistics.median(lines) <= 3


@each_notebook
def test_one_cell_takes_papermills_parameters(source):
    assert len(tagged(read(source), "parameters")) == 1


@each_notebook
def test_every_exercise_has_its_solution_and_then_its_check(source):
    order = [
        tag for cell in read(source).cells for tag in cell.metadata.get("tags", []) if tag in PARTS
    ]
    assert order
    assert order == list(PARTS) * (len(order) // len(PARTS))


@each_notebook
def test_solutions_are_folded(source):
    assert all(cell.metadata.jupyter.source_hidden for cell in tagged(read(source), "solution"))


@each_notebook
def test_the_students_edition_asks_for_each_answer(source):
    """Without its solution, and whatever became of others, a check says at once what to do."""
    edition = read(source, with_solutions=False)
    assert not tagged(edition, "solution")
    exercises, checks = tagged(edition, "exercise"), tagged(edition, "check")
    for exercise, check in zip(exercises, checks, strict=True):
        known: dict[str, object] = {}
        exec(exercise.source, known)
        with pytest.raises(AssertionError, match="no answer yet"):
            exec(check.source, known)


def run_in(folder: Path) -> Run:
    """A run that no lab stands behind."""
    folder.mkdir()
    return Run(
        folder=folder, number=1, job=Job(script="train.py"), scenario=Scenario(),
        obey=lambda _: None, stop=lambda _: None, living=list, racks={}, workers_per_node=1,
        root=None,
    )  # fmt: skip


def tell(run: Run, kind: str, **data: object) -> None:
    run.take(Event(kind=kind, at_s=1.0, node="node-0", data=data))


def test_progress_returns_at_the_iteration_it_was_given_and_else_at_the_end(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, "recovery_planned", members=["node-0"])
    tell(run, "iteration", rank=0, iteration=3)
    assert run.progress(9, until=3) is run
    assert not run.is_over
    tell(run, "run_finished")
    assert run.progress(9).is_over


def test_progress_says_why_a_run_was_given_up(tmp_path):
    run = run_in(tmp_path / "run")
    tell(run, "run_failed", reason="no such script")
    with pytest.raises(RunFailedError, match="no such script"):
        run.progress()


def test_a_hostile_name_stays_text_in_a_notebook(tmp_path):
    run = run_in(tmp_path / "<script>alert(1)<")
    tell(run, "recovery_planned", members=["<b>node"])
    html = run._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;node" in html


def starts_nodes(source: Path) -> bool:
    return "Lab(" in source.read_text(encoding="utf-8")


def to_run(source: Path) -> object:
    """A notebook that starts nodes is skipped where none can be started."""
    if not starts_nodes(source):
        return pytest.param(source, id=source.stem)
    why = missing_programs()
    marks = [pytest.mark.cluster, pytest.mark.skipif(bool(why), reason=why or "all there")]
    return pytest.param(source, id=source.stem, marks=marks)


def said_by(cell: nbformat.NotebookNode, stream: str) -> str:
    return "".join(out.get("text", "") for out in cell.outputs if out.get("name") == stream)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", [to_run(source) for source in SOURCES])
def test_a_notebook_runs_without_a_warning_and_leaves_no_process(source, tmp_path):
    """Its own check cells give the verdicts."""
    notebook = read(source)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    for check in tagged(notebook, "check"):
        assert said_by(check, "stdout").splitlines()[-1].startswith("right")
    warnings = [said_by(cell, "stderr") for cell in notebook.cells if cell.cell_type == "code"]
    assert "".join(warnings) == ""
    assert processes_in(tmp_path) == []


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started in `folder`, as all of a notebook's are, and do not end."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == folder:
                found.append(process)
    _, alive = psutil.wait_procs(found, timeout=10)
    return alive
