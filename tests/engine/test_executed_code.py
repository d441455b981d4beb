"""Which modules are installed, and which may change from start to start."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from gemini_lab.engine.own_code import foreign_modules, installed_places

PLACES = ("/env/site-packages/",)


def module(name, origin):
    found = ModuleType(name)
    found.__spec__ = ModuleSpec(name, None, origin=origin)
    found.__spec__.has_location = origin is not None
    return found


def library(count):
    return {f"lib{n}": module(f"lib{n}", f"/env/site-packages/lib{n}.py") for n in range(count)}


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
