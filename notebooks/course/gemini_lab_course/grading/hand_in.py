"""Make a hand-in of a notebook, which says which versions made it.

python -m gemini_lab_course.grading.hand_in NOTEBOOK.ipynb --student NAME [--into FOLDER]
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab_course.grading.judge import made_with

MADE_WITH: Final = "made_with"
"""The notebook's metadata that say it."""
PREDICTIONS: Final = "predictions.json"
"""What was predicted, and what came out, as the labs' boxes keep it."""
_NAME: Final = re.compile(r"[\w.-]+")
_LAB: Final = re.compile(r"\d\d_[a-z]+(_[a-z]+)*")


def hand_in(notebook: Path, *, student: str, into: Path) -> Path:
    """Write the notebook to `into/STUDENT/LAB/LAB.ipynb`, where nbgrader looks for it.

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
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{notebook} is no notebook ({error})") from None
    metadata[MADE_WITH] = made_with() | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    of_a_lab = _LAB.match(notebook.stem)
    lab = of_a_lab[0] if of_a_lab else notebook.stem
    target = into / student / lab / f"{lab}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if (predictions := notebook.parent / PREDICTIONS).is_file():
        shutil.copyfile(predictions, target.parent / PREDICTIONS)
    return target


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if there is nothing to hand in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--student", required=True, help="whose it is")
    parser.add_argument("--into", type=Path, default=Path("submitted"), help="a folder")
    options = parser.parse_args(arguments)
    try:
        print(hand_in(options.notebook, student=options.student, into=options.into))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
