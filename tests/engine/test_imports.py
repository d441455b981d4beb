"""What counts as learned of a script's imports."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from gemini_lab.engine.imports import (
    WORTH_IT,
    changed_environment,
    foreign_modules,
    installed_places,
    learned_modules,
)

PLACES = ("/env/site-packages/",)


def module(name, origin):
    found = ModuleType(name)
    found.__spec__ = ModuleSpec(name, None, origin=origin)
    found.__spec__.has_location = origin is not None
    return found


def library(count):
    return {f"lib{n}": module(f"lib{n}", f"/env/site-packages/lib{n}.py") for n in range(count)}


def test_installed_modules_that_came_since_are_learned_in_their_order():
    own = {
        "train_utils": module("train_utils", "/home/me/train_utils.py"),
        "made_up": ModuleType("made_up"),
        "absent": None,
        "itertools": module("itertools", None),
    }
    modules = {"old": module("old", "/env/site-packages/old.py"), **own, **library(WORTH_IT)}
    found = learned_modules({"old"}, modules, PLACES)
    assert found == [f"lib{n}" for n in range(WORTH_IT)]


def test_a_module_under_another_name_than_its_own_is_not():
    modules = library(WORTH_IT) | {"alias": module("lib0", "/env/site-packages/lib0.py")}
    assert "alias" not in learned_modules((), modules, PLACES)


def test_what_is_imported_while_modules_are_looked_at_harms_nobody():
    """By another thread of the script's."""

    class Late(ModuleType):
        @property
        def __spec__(self):
            modules["late"] = ModuleType("late")

    modules = {"first": Late("first"), **library(WORTH_IT)}
    assert len(learned_modules((), modules, PLACES)) == WORTH_IT


def test_a_few_are_not_worth_another_process():
    assert learned_modules((), library(WORTH_IT - 1), PLACES) == []


def test_what_is_neither_installed_nor_pythons_own_is_foreign():
    modules = library(1) | {"mine": module("mine", "/home/me/mine.py"), "json": sys.modules["json"]}
    assert foreign_modules((), modules, PLACES) == ["mine"]
    assert foreign_modules(("mine",), modules, PLACES) == []


def test_packages_of_another_environment_on_the_path_are_installed(monkeypatch, tmp_path):
    """As a cluster's modules name them in PYTHONPATH; a script's own folder is not."""
    theirs = tmp_path / "torch-bundle" / "lib" / "python3" / "site-packages"
    monkeypatch.setattr(sys, "path", [*sys.path, str(theirs), str(tmp_path / "project")])
    places = installed_places()
    assert f"{theirs.resolve()}/" in places
    assert not any(str(tmp_path / "project").startswith(place) for place in places)


def test_the_tests_own_libraries_are_installed_and_this_file_is_not():
    places = installed_places()
    assert sys.modules["pytest"].__file__.startswith(places)
    assert not __file__.startswith(places)


def test_the_environment_goes_along_without_secrets_and_what_is_a_ranks_own():
    before = {"HOME": "/root", "LANG": "C"}
    now = before | {
        "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8",
        "HF_TOKEN": "hf_x",
        "RANK": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert changed_environment(before, now) == {"HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8"}
