"""`gemini-lab hand-in`: a notebook for a teacher, with the versions that made it."""

import argparse
import json
import platform
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError

MADE_WITH: Final = "made_with"
"""The notebook's metadata that name the versions."""
PREDICTIONS: Final = "predictions.json"
"""The file in which the labs' boxes keep predictions and results."""
STUB: Final = "# YOUR CODE HERE"
"""What an exercise has until somebody answers it."""
_NAME: Final = re.compile(r"[\w.-]+")
_LAB: Final = re.compile(r"\d\d_[a-z]+(_[a-z]+)*")


def hand_in(notebook: Path, *, student: str, into: Path) -> Path:
    """Write the notebook to `into/STUDENT/LAB/LAB.ipynb`, which nbgrader reads.

    A copy's name, such as `03_placement-Copy1.ipynb`, is taken for the lab's. The predictions that
    lie beside the notebook go along.

    Raises:
        ConfigError: It is no notebook, or the name cannot be a folder's.
    """
    if not _NAME.fullmatch(student) or student.startswith("."):
        raise ConfigError(
            f"a student's name is made of letters, digits, '.', '_' and '-', and not {student!r}"
        )
    try:
        content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
        metadata = content["metadata"]
        _mark_once(content["cells"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{notebook} is no notebook ({error})") from None
    packages = ("gemini-lab", "torch", "deepspeed", "numpy")
    made_with = {"python": platform.python_version()}
    for each in packages:
        with suppress(PackageNotFoundError):  # some labs need neither torch nor DeepSpeed
            made_with[each] = version(each)
    metadata[MADE_WITH] = made_with | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    of_a_lab = _LAB.match(notebook.stem)
    lab = of_a_lab[0] if of_a_lab else notebook.stem
    target = into / student / lab / f"{lab}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if (predictions := notebook.parent / PREDICTIONS).is_file():
        shutil.copyfile(predictions, target.parent / PREDICTIONS)
    return target


def _mark_once(cells: list[dict[str, Any]]) -> None:
    """Take nbgrader's marks from all but the first copy of a cell."""
    known = set()
    for cell in cells:
        # nbgrader 0.9.6 leaves an empty mark on a copied cell, and then refuses the notebook.
        if (mark := cell.get("metadata", {}).get("nbgrader")) is not None:
            if not mark.get("grade_id") or mark["grade_id"] in known:
                del cell["metadata"]["nbgrader"]
            else:
                known.add(mark["grade_id"])


def empty_exercises(notebook: Path) -> tuple[int, int]:
    """Return how many exercises of a hand-in have no answer, and how many there are."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    marks = [cell.get("metadata", {}).get("nbgrader", {}) for cell in cells]
    answers = [cell for cell, mark in zip(cells, marks, strict=True) if mark.get("solution")]
    return sum(STUB in "".join(cell["source"]) for cell in answers), len(answers)


def command(arguments: Sequence[str]) -> int:
    """Make the hand-in, and say what is still empty in it."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab hand-in", description="Make a notebook ready for your teacher."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--student", required=True, help="your name, as your teacher knows it")
    parser.add_argument(
        "--into", type=Path, default=Path("submitted"), help="folder (default: submitted)"
    )
    options = parser.parse_args(arguments)
    made = hand_in(options.notebook, student=options.student, into=options.into)
    empty, exercises = empty_exercises(made)
    if empty:
        tell(f"{empty} of {exercises} exercises are empty: `# YOUR CODE HERE` is still in them")
    else:
        tell(f"all {exercises} exercises have an answer")
    tell(f"now send this folder: {options.into / options.student}")
    return 0
