"""Make the notebooks from their sources in `src/`.

    python notebooks/build.py               write notebooks/*.ipynb
    python notebooks/build.py --check       fail where one differs from its source
    python notebooks/build.py --students    write the edition without solutions

The same source gives the same bytes, with any versions of the tools.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbstripout import strip_output

HERE = Path(__file__).parent
STUDENTS = HERE.parent / "build" / "students"
METADATA = {
    "jupytext": {"cell_metadata_filter": "tags,jupyter,-all"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources() -> list[Path]:
    """All sources, in the order of their numbers."""
    return sorted((HERE / "src").glob("*.py"))


def build(source: Path, *, with_solutions: bool = True) -> str:
    """The text of the notebook that `source` stands for, without outputs."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    if not with_solutions:
        notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    stripped = strip_output(notebook, keep_output=False, keep_count=False, keep_id=False)
    nbformat.validate(stripped)
    return nbformat.writes(stripped, indent=1) + "\n"


def tags(cell: Any) -> list[str]:
    """The tags of a notebook's cell."""
    return list(cell.metadata.get("tags", []))


def main(arguments: list[str]) -> int:
    """Exit status 1 if a notebook differs from its source."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    group.add_argument("--students", action="store_true", help=f"without solutions, to {STUDENTS}")
    options = parser.parse_args(arguments)
    folder = STUDENTS if options.students else HERE
    folder.mkdir(parents=True, exist_ok=True)
    stale = []
    for source in sources():
        text = build(source, with_solutions=not options.students)
        notebook = folder / f"{source.stem}.ipynb"
        if not options.check:
            notebook.write_text(text, encoding="utf-8")
        elif not notebook.exists() or notebook.read_text(encoding="utf-8") != text:
            stale.append(notebook.name)
    if stale:
        print(f"{', '.join(stale)}: not what src/ gives; run `make notebooks`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
