"""Make the notebooks from their sources in `src/`.

    python notebooks/build.py               write the students' edition, notebooks/*.ipynb
    python notebooks/build.py --check       fail where one differs from its source
    python notebooks/build.py --solutions   write the solutions' edition, a course for nbgrader

A source's solutions stand between `### BEGIN SOLUTION` and `### END SOLUTION`. The students'
edition is what `nbgrader generate_assignment` makes of the solutions' one. The same source gives
the same bytes, with any versions of the tools.
"""

import argparse
import shutil
import sys
from pathlib import Path

import jupytext
import nbformat
from nbgrader.preprocessors import ClearSolutions, ComputeChecksums, LockCells
from nbstripout import strip_output
from traitlets.config import Config, PyFileConfigLoader

HERE = Path(__file__).parent
CONFIG = HERE / "nbgrader_config.py"
COURSE = HERE.parent / "build" / "course"
POINTS = 1  # for each check
METADATA = {
    "jupytext": {"cell_metadata_filter": "tags,nbgrader,-all"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ROLES = {
    "exercise": {"grade": False, "locked": False, "solution": True},
    "check": {"grade": True, "locked": True, "solution": False, "points": POINTS},
}


def sources() -> list[Path]:
    """All sources, in the order of their numbers."""
    return sorted((HERE / "src").glob("*.py"))


def build(source: Path, *, with_solutions: bool = False) -> str:
    """The text of the notebook that `source` stands for, without outputs."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    mark(notebook)
    if not with_solutions:
        for step in (LockCells, ClearSolutions, ComputeChecksums):
            notebook, _ = step(config=settings()).preprocess(notebook, {})
    stripped = strip_output(notebook, keep_output=False, keep_count=False, keep_id=False)
    nbformat.validate(stripped)
    return nbformat.writes(stripped, indent=1) + "\n"


def settings() -> Config:
    """nbgrader's settings of the course."""
    return PyFileConfigLoader(CONFIG.name, path=str(CONFIG.parent)).load_config()


def mark(notebook: nbformat.NotebookNode) -> None:
    """Give the cells of each exercise nbgrader's metadata.

    A check raises where an answer is not right, and "Run All" has to go on behind it.
    """
    number = 0
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        role = next((tag for tag in tags if tag in ROLES), None)
        if role is None:
            continue
        number += role == "exercise"
        grader = {"grade_id": f"{role}-{number}", "schema_version": 3, "task": False}
        cell.metadata["nbgrader"] = grader | ROLES[role]
        if role == "check":
            tags.append("raises-exception")


def stale_or_written(folder: Path, *, check: bool) -> list[str]:
    """Write the students' edition, or only say which notebooks differ from it."""
    stale = []
    for source in sources():
        text = build(source)
        notebook = folder / f"{source.stem}.ipynb"
        if not check:
            notebook.write_text(text, encoding="utf-8")
        elif not notebook.exists() or notebook.read_text(encoding="utf-8") != text:
            stale.append(notebook.name)
    return stale


def write_course(course: Path) -> None:
    """Write the solutions' edition where nbgrader looks for it: source/LAB/LAB.ipynb."""
    for source in sources():
        folder = course / "source" / source.stem
        folder.mkdir(parents=True, exist_ok=True)
        notebook = folder / f"{source.stem}.ipynb"
        notebook.write_text(build(source, with_solutions=True), encoding="utf-8")
    shutil.copy(CONFIG, course)


def main(arguments: list[str]) -> int:
    """Exit status 1 if a notebook differs from its source."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    group.add_argument("--solutions", action="store_true", help=f"with solutions, into {COURSE}")
    options = parser.parse_args(arguments)
    if options.solutions:
        write_course(COURSE)
        return 0
    stale = stale_or_written(HERE, check=options.check)
    if stale:
        print(f"{', '.join(stale)}: not what src/ gives; run `make notebooks`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
