"""Make a hand-in of a notebook, which says which versions made it.

python -m gemini_lab.exercises.grading.hand_in NOTEBOOK.ipynb --student NAME [--into FOLDER]
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.exercises.grading.judge import made_with

MADE_WITH: Final = "made_with"
"""The notebook's metadata that say it."""
_NAME: Final = re.compile(r"[\w.-]+")


def hand_in(notebook: Path, *, student: str, into: Path) -> Path:
    """Write the notebook to `into/STUDENT/LAB/LAB.ipynb`, where nbgrader looks for it.

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
    target = into / student / notebook.stem / notebook.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return target


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if there is nothing to hand in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--student", required=True, help="whose it is")
    parser.add_argument("--into", type=Path, default=Path("submitted"), help="a folder")
    options = parser.parse_args(arguments)
    try:
        print(hand_in(options.notebook, student=options.student, into=options.into))  # noqa: T201
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
