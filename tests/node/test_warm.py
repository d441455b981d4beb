"""The process that imports for workers serves its agent, whatever imports do on a machine."""

import subprocess
import sys

import pytest

from gemini_lab.node.warm import import_heavy
from gemini_lab.recovery.messages import ParentReady
from gemini_lab.wire.local import LocalChannel

PATIENCE_S = 120.0
STOPS = "raise RuntimeError('0 active drivers')"
LACKS_A_PART = "import none_is_of_this_name"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package of one line."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, line):
        (tmp_path / f"{name}.py").write_text(line)
        return tmp_path

    return write


def test_after_an_import_that_stops_halfway_nothing_else_is_imported(package):
    package("warm_lacks", LACKS_A_PART)
    package("warm_stops", STOPS)
    package("warm_later", "")
    assert import_heavy(["warm_lacks", "warm_later"])
    del sys.modules["warm_later"]
    assert not import_heavy(["warm_stops", "warm_later"])
    assert "warm_later" not in sys.modules


def test_where_a_package_cannot_be_imported_the_agent_is_served_all_the_same(package, monkeypatch):
    """It ended for that, and so did the next: a run stood in its start for ever, and silent."""
    monkeypatch.setenv("PYTHONPATH", str(package("torch", STOPS)), prepend=":")
    ours, theirs = LocalChannel.pair()
    warm = subprocess.Popen(
        [sys.executable, "-m", "gemini_lab.node.warm", str(theirs.fileno()), "1"],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    with warm:
        try:
            assert ours.waits(PATIENCE_S)
            messages, is_open = ours.poll()
            assert ([message for message, _ in messages], is_open) == ([ParentReady()], True)
            ours.close()
            _, said = warm.communicate(timeout=PATIENCE_S)
        finally:
            warm.kill()
    assert "0 active drivers" in said
    assert warm.returncode == 0
