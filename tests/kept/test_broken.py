"""What waits for the rest of a message is broken off, too: of that Gloo tells nobody."""

import subprocess
import sys
from pathlib import Path

import pytest
from json_lines import json_lines

from gemini_lab.kept.groups import obstacle
from gemini_lab.launch.etcd import held_port
from gemini_lab.transfer.sockets import can_be_found

FILE = Path(__file__).parent / "broken_rank.py"
pytestmark = pytest.mark.skipif(not can_be_found(), reason="needs Linux's /proc")


@pytest.fixture
def told():
    """What the first rank says, in the order in which it does."""
    ranks = []

    def tell(kind):
        for rank in (0, 1):
            words = [sys.executable, FILE, kind, str(rank), str(port)]
            ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        output, _ = ranks[0].communicate()
        half, *said = json_lines(output.splitlines())
        assert half == {"is_half": True}
        return said

    with held_port("127.0.0.1") as port:
        yield tell
    for process in ranks:
        with process:
            process.kill()


def test_a_version_of_which_a_chunk_was_half_received(told):
    done, wait, left = told("version")
    assert done == {"broken_off": True}
    assert "a peer may be gone" in wait["error"]
    assert left == {"whole": []}


@pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "no obstacle")
def test_a_collective_that_was_half_done(told):
    assert told("collective") == [{"broken": True}]
