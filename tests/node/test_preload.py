"""What is preloaded: what may be forked afterwards, and what may not."""

import gc
import os
import sys

import numpy as np  # noqa: F401 - there, as in a warm parent
import pytest
import torch  # noqa: F401

from gemini_lab.node.preload import preload
from gemini_lab.recovery.messages import Preload


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a module of the user's own, and forgets it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        written.append(name)
        return name

    yield write
    gc.unfreeze()
    for name in written:
        if (module := sys.modules.pop(name, None)) and hasattr(module, "STOP"):
            module.STOP.set()
            module.THREAD.join()  # the next test counts threads


def ahead(*modules, **environment):
    return preload(Preload(epoch=1, modules=[*modules], environment=environment))


def test_modules_are_imported_in_the_scripts_environment_which_does_not_stay(mine, monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    name = mine("reads", "import os; SEEN = os.environ['KEPT'], os.environ.get('MADE')")
    ahead(name, KEPT="changed", MADE="1")
    assert sys.modules[name].SEEN == ("changed", "1")
    assert os.environ["KEPT"] == "before"
    assert "MADE" not in os.environ


@pytest.mark.usefixtures("mine")
def test_what_python_brings_may_be_forked_and_what_cannot_be_imported_is_left_out():
    said = ahead("sched", "no_such_module_anywhere", "sched.no")
    assert said.problem == ""
    assert "sched" in sys.modules


@pytest.mark.usefixtures("mine")
def test_our_own_modules_may_be_named_also_those_of_a_checkout():
    sys.modules.pop("gemini_lab.cli.exits", None)
    assert ahead("gemini_lab.cli.exits").problem == ""


A_THREAD = (
    "import threading; STOP = threading.Event(); "
    "THREAD = threading.Thread(target=STOP.wait, daemon=True); THREAD.start()"
)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "they import own, which is not installed"),
        ("import random; random.random()", "importing them changes Python's random state"),
        ("import numpy; numpy.random.rand()", "importing them changes NumPy's random state"),
        ("import torch; torch.rand(1)", "importing them changes torch's random state"),
        (A_THREAD, "importing them changes the number of threads"),
        ("import os; os.chdir('/')", "importing them changes the working directory"),
        ("raise SystemExit(3)", ""),
    ],
    ids=["own", "random", "numpy", "torch", "thread", "folder", "exits"],
)
def test_what_must_not_be_forked_is_said(mine, monkeypatch, tmp_path, source, problem):
    monkeypatch.chdir(tmp_path)
    assert ahead(mine("own", source)).problem == problem
