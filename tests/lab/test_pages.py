"""The way to the widgets package: what is said where it, or something that it needs, is missing."""

from importlib.metadata import EntryPoint

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.lab.pages import EXTRAS, GROUP, offered


def entry(name, value):
    return EntryPoint(name=name, value=value, group=GROUP)


@pytest.mark.parametrize(("name", "extra"), EXTRAS.items())
def test_what_is_missing_is_named_with_the_command_that_installs_it(name, extra):
    with pytest.raises(ConfigError, match="needs no_such_library") as refused:
        offered(name, [entry(name, "no_such_library.page:show")])
    assert f"pip install 'gemini-lab[{extra}]'" in str(refused.value)
    with pytest.raises(ConfigError, match="no installed package offers"):
        offered(name, [])


def test_a_fault_of_our_own_is_not_taken_for_a_missing_library():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        offered("save_log", [entry("save_log", "gemini_lab.no_such_module:save")])


def test_the_first_of_that_name_is_loaded():
    among = [entry("controls", "os:getcwd"), entry("save_log", "os.path:join")]
    assert offered("save_log", among)("a", "b") == "a/b"
