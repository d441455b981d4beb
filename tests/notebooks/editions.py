"""The labs' editions, as `notebooks/build.py` makes them."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.mpi import find_mpiexec

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
SOURCES = sorted((FOLDER / "src").glob("*.py"))


@cache
def builder() -> ModuleType:
    """`notebooks/build.py`, which is a script and no module of a package."""
    spec = importlib.util.spec_from_file_location("build_notebooks", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(source: Path, *, with_solutions: bool = False) -> nbformat.NotebookNode:
    return nbformat.reads(builder().build(source, with_solutions=with_solutions), as_version=4)


def tagged(notebook: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def starts_nodes(source: Path) -> bool:
    return "Lab(" in source.read_text(encoding="utf-8")


def missing_programs() -> str:
    """Why no lab can start on this machine; empty if one can."""
    for find in (find_mpiexec, find_etcd):
        try:
            find()
        except LaunchError as error:
            return str(error)
    return ""


def to_run(source: Path) -> object:
    """A notebook that starts nodes is skipped where none can be started."""
    if not starts_nodes(source):
        return pytest.param(source, id=source.stem)
    why = missing_programs()
    marks = [pytest.mark.cluster, pytest.mark.skipif(bool(why), reason=why or "all there")]
    if source != SOURCES[0]:
        marks.append(pytest.mark.long)
    return pytest.param(source, id=source.stem, marks=marks)
