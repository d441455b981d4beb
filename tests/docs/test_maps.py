"""A room with many files says what each is for."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gemini_lab"
ROOMS = (
    "cli",
    "engine",
    "kept",
    "lab",
    "launch",
    "node",
    "recovery",
    "report",
    "simulator",
    "transfer",
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_a_room_stands_on_its_map(room):
    text = (PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    files = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
    assert files | folders <= {*re.findall(r"\w+", text)}
