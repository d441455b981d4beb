"""nbgrader's steps that are the course's own: a hand-in is marked anew, and judged apart.

The course's configuration puts `JudgeApart` in the place of nbgrader's `Execute`. What is said of
an answer stands below its check, an error where it is not right: nbgrader counts points by that.
`MarkAnew` is in the place of `DeduplicateIds`, whose way with a copied cell, as with marks of
another version, ends the grading of all who come later.
"""

from pathlib import Path
from typing import Any

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Integer

from gemini_lab_course.grading.apart import LIMIT_S, Paper, UnjudgedError, verdict
from gemini_lab_course.grading.cells import grade_id_of


class MarkAnew(NbGraderPreprocessor):  # type: ignore[misc]
    """Gives each cell that was handed out its mark again, once, and takes all others away."""

    def preprocess(
        self, nb: nbformat.NotebookNode, resources: dict[str, Any]
    ) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
        """Of copies of a cell the first one keeps the mark, as `code_cells` has it."""
        handed_out = nbformat.read(_released(self.config, resources), as_version=4).cells
        left = {_grade_id(cell): cell for cell in handed_out if _grade_id(cell)}
        for cell in nb.cells:
            own = left.pop(_grade_id(cell), None)
            cell.metadata.pop("nbgrader", None)
            if own is not None:
                cell.metadata.nbgrader = own.metadata.nbgrader
        return nb, resources


class JudgeApart(NbGraderPreprocessor):  # type: ignore[misc]
    """Judges a hand-in in a process that runs none of its code."""

    limit_s = Integer(int(LIMIT_S), help="how long the judge may take for one notebook").tag(
        config=True
    )

    def preprocess(
        self, nb: nbformat.NotebookNode, resources: dict[str, Any]
    ) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
        """Write below each check what is said of its answer."""
        released = _released(self.config, resources)
        found = self._judged(released, nb)
        said = {each["check"]: each for each in found.get("judged", [])}
        nb.cells += _missing(released, nb)
        nb.metadata["judged_with"] = found.get("versions", {})
        for cell in nb.cells:
            grader = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            if grader.get("grade"):
                lost = {"is_right": False, "said": found.get("lost", "no verdict was given")}
                verdict = said.get(grader.get("grade_id"), lost)
                cell.outputs = [_output(verdict["said"], is_right=verdict["is_right"])]
        return nb, resources

    def _judged(self, released: Path, nb: nbformat.NotebookNode) -> dict[str, Any]:
        paper = Paper.of(released.resolve(), nb)
        try:
            return verdict(paper, limit_s=self.limit_s)
        except UnjudgedError as error:
            self.log.error("%s %s", released.stem, error)  # noqa: TRY400 - it says all
            return {"lost": str(error)}


def _released(config: Any, resources: dict[str, Any]) -> Path:
    """The notebook that was handed out, with its solutions."""
    name = str(resources["nbgrader"]["notebook"])
    course = Path(str(config.CourseDirectory.get("root", ".")))
    return course.joinpath("source", str(name), f"{name}.ipynb")


def _grade_id(cell: nbformat.NotebookNode) -> str:
    """The name that nbgrader gives a cell; empty if it has none."""
    return grade_id_of(cell.metadata)


def _missing(released: Path, nb: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The checks that somebody took out: points are counted, and reasons told, by their cells."""
    there = {_grade_id(cell) for cell in nb.cells}
    handed_out = nbformat.read(released, as_version=4).cells
    checks = [cell for cell in handed_out if cell.metadata.get("nbgrader", {}).get("grade")]
    return [cell for cell in checks if _grade_id(cell) not in there]


def _output(said: str, *, is_right: bool) -> nbformat.NotebookNode:
    if is_right:
        return nbformat.v4.new_output("stream", name="stdout", text=f"{said}\n")
    return nbformat.v4.new_output("error", ename="WrongAnswerError", evalue=said, traceback=[said])
