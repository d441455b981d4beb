"""The walls of the house stand: what may import what, lazy imports included."""

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
