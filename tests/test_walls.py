"""The walls of the house stand: what may import what, lazy imports included."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HOUSE = Path(__file__).parent.parent


def test_every_import_contract_is_kept():
    """The contracts, with their reasons, are in `.importlinter`."""
    assert find_spec("importlinter") is not None
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache"], cwd=HOUSE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_python_is_started_in_one_way_in_which_no_file_of_the_working_folder_is_a_module():
    """`job.python_command` says how; a file is run by its path, and then its folder is ours."""
    others = []
    for root in ("gemini_lab", "widgets/gemini_lab_widgets", "bench", "notebooks/course"):
        for path in (HOUSE / root).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text) if "sys.executable" in text else None
            for node in ast.walk(tree) if tree else ():
                words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
                told = [ast.unparse(word) for word in words]
                if "sys.executable" in told and "'-m'" in told and "'-P'" not in told:
                    others.append(f"{path.relative_to(HOUSE)}:{node.lineno}")
    assert [one for one in others if "gemini_lab_bench/peers" not in one] == []
