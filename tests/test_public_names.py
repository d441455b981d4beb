"""The package's front door: one list of names, each of which is there."""

import subprocess
import sys

import pytest

import gemini_lab


@pytest.mark.parametrize("name", gemini_lab.__all__)
def test_each_public_name_loads_and_is_listed(name):
    assert getattr(gemini_lab, name).__name__ == name
    assert name in dir(gemini_lab)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        gemini_lab.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, gemini_lab; print({'torch', 'numpy', 'grpc', 'panel'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


def test_no_module_of_the_package_imports_the_widgets_package():
    """What draws and serves is found by entry points: a machine without it trains all the same."""
    code = (
        "import sys; sys.modules['gemini_lab_widgets'] = None\n"
        "import gemini_lab.lab.lab, gemini_lab.cli.main\n"
        "import gemini_lab.cli.run_command, gemini_lab.cli.report_command"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "deepspeed"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import gemini_lab
from gemini_lab_course import lab_01, lab_03, lab_06
assert gemini_lab.plan_placement(nodes=4, replicas=2).survives([1])
try:
    gemini_lab.protect
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_labs_load_and_protect_names_the_extra_that_trains():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "gemini_lab.protect needs torch: pip install 'gemini-lab[train]'\n"
