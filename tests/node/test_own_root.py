"""A root agent of the user's own takes along what it uses, wherever that lies."""

import importlib
import sys

from gemini_lab.node.own_root import packed, unpacked


def test_a_function_takes_along_the_users_own_modules(tmp_path, monkeypatch):
    """No node looks for them in the folder in which it works."""
    (tmp_path / "my_policy.py").write_text(
        "import my_words\n\ndef decide(*_):\n    return my_words.SAID\n"
    )
    (tmp_path / "my_words.py").write_text("SAID = 'wait'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = packed(importlib.import_module("my_policy").decide)
    monkeypatch.undo()
    for name in ("my_policy", "my_words"):
        del sys.modules[name]
    assert unpacked(text)({}, None, None) == "wait"
    assert "my_policy" not in sys.modules
