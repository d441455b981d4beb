"""nbgrader's step that runs a handed-in notebook: here it is judged apart instead.

The course's configuration puts `JudgeApart` in the place of nbgrader's `Execute`. What is said of
an answer stands below its check, an error where it is not right: nbgrader counts points by that.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Integer

import gemini_lab


class JudgeApart(NbGraderPreprocessor):  # type: ignore[misc]
    """Judges a hand-in in a process that runs none of its code."""

    limit_s = Integer(1800, help="how long the judge may take for one notebook").tag(config=True)

    def preprocess(
        self, nb: nbformat.NotebookNode, resources: dict[str, Any]
    ) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
        """Write below each check what is said of its answer."""
        name = resources["nbgrader"]["notebook"]
        course = Path(str(self.config.CourseDirectory.get("root", ".")))
        found = self._judged(course / "source" / name / f"{name}.ipynb", nb)
        said = {each["check"]: each for each in found.get("judged", [])}
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
        with tempfile.TemporaryDirectory(prefix="to-judge-") as folder:
            path = Path(folder) / "handed-in.ipynb"
            nbformat.write(nb, path)
            command = [sys.executable, "-P", "-m", "gemini_lab.exercises.grading.judge"]
            command += [part for each in _hidden(released) for part in ("--hide", str(each))]
            try:
                done = subprocess.run(
                    [*command, str(released), str(path)],
                    capture_output=True,
                    text=True,
                    timeout=self.limit_s,
                    check=True,
                )
                judged: dict[str, Any] = json.loads(done.stdout)
            except (subprocess.SubprocessError, ValueError) as error:
                self.log.exception("%s could not be judged", released.stem)
                return {"lost": f"could not be judged: {type(error).__name__}"}
        return judged


def _hidden(released: Path) -> list[Path]:
    """Where solutions lie: in the course, and in a checkout that made it."""
    course, checkout = released.resolve().parents[2], Path(gemini_lab.__file__).parents[1]
    return [course, checkout / "notebooks"]


def _output(said: str, *, is_right: bool) -> nbformat.NotebookNode:
    if is_right:
        return nbformat.v4.new_output("stream", name="stdout", text=f"{said}\n")
    return nbformat.v4.new_output("error", ename="WrongAnswerError", evalue=said, traceback=[said])
