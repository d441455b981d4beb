"""A folder that is held outlives everything but its maker."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gemini_lab.node.locked_tempdir import LockedTempdir, remove_left

HOLD = """
import sys, time
from pathlib import Path
from gemini_lab.node.locked_tempdir import LockedTempdir
print(LockedTempdir("kind-", Path(sys.argv[1])).make(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def place():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        yield Path(name)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_maker_leaves_goes_with_the_next_and_what_is_held_stays(place):
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        made = Path(maker.stdout.readline().strip())
        assert made.is_dir()
        (made / "socket").touch()
        (place / "other").mkdir()
        remove_left("kind-", place)
        assert names(place) == {made.parent.name, "other"}
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    assert (made / "socket").exists()

    mine = LockedTempdir("kind-", place)
    assert Path(mine.make()).parent.parent == place
    assert not made.parent.exists()
    mine.close()
    assert names(place) == {"other"}


def test_each_is_a_folder_of_its_own_that_nobody_else_may_look_into(place):
    mine = LockedTempdir("kind-", place)
    first, second = Path(mine.make()), Path(mine.make())
    assert first != second
    assert {first.stat().st_mode & 0o777, first.parent.stat().st_mode & 0o777} == {0o700}
    mine.close()


def test_none_is_made_where_there_is_no_room_for_it(place):
    assert LockedTempdir("kind-", place / "absent").make() == ""


def test_a_link_of_that_name_is_not_followed(place):
    (place / "kept").mkdir()
    (place / "kind-of").symlink_to(place / "kept")
    remove_left("kind-", place)
    assert names(place) == {"kept", "kind-of"}
