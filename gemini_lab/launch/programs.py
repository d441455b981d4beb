"""The programs that a lab starts: beside this Python in its environment, or on the PATH."""

import shutil
import sys
from pathlib import Path

from gemini_lab.errors import MissingError


def find_program(name: str, way_out: str) -> str:
    """The program `name` beside this Python, else the one on the PATH.

    Raises:
        MissingError: There is none; `way_out` says what to do then.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise MissingError(f"no {name} was found beside this Python or on the PATH; {way_out}")
    return found
