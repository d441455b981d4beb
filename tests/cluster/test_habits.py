"""The verdict on each habit of training loops is the one that docs/evidence/tried.md gives."""

import ast
import re
from pathlib import Path

import pytest

from gemini_lab import Job, Lab
from gemini_lab.errors import GeminiError
from gemini_lab.lab.check import check_script

HERE = Path(__file__).parent
HABITS = HERE / "habits.py"
PAGE = HERE.parents[1] / "docs/evidence/tried.md"
ROW = re.compile(r"\n\| `(?P<name>\w+)` \|[^|]+\| (?P<found>[^|]+) \| (?P<told>[^|\n]+) \|")
ROWS = [row.groupdict() for row in ROW.finditer(PAGE.read_text())]
OPEN = {"-", "untried"}
CASES = [(r["name"], how, r[how]) for r in ROWS for how in ("found", "told") if r[how] not in OPEN]


def test_the_page_has_a_row_for_every_habit():
    functions = [
        part for part in ast.parse(HABITS.read_text()).body if isinstance(part, ast.FunctionDef)
    ]
    habits = [f.name for f in functions if [a.arg.strip("_") for a in f.args.args] == ["told"]]
    assert [row["name"] for row in ROWS] == habits


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Two nodes and a standby."""
    with Lab(2, 1, folder=tmp_path_factory.mktemp("lab")) as opened:
        yield opened


def verdict(lab, *arguments):
    """In the page's words."""
    try:
        job = Job(script=str(HABITS), args=[*arguments])
        found = check_script(lab, job, iterations=12, kills=4, limit_s=150, tell=print)
    except GeminiError as error:
        return "refused" if "Error: " in str(error) else str(error)
    if found.verdict == "differs":
        return "noticed"
    return "reported" if found.verdict == "bit-identical" and found.remarks else found.verdict


@pytest.mark.long
@pytest.mark.parametrize(("name", "how", "expected"), CASES)
def test_a_habit_comes_back_or_is_noticed_or_refused(lab, name, how, expected):
    assert verdict(lab, name, *(["told"] if how == "told" else [])) == expected
