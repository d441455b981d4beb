"""The link of two workers that is cut: real processes, real sockets."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from json_lines import json_lines

from gemini_lab.transfer.sockets import can_be_found

FILE = Path(__file__).parent / "link_rank.py"


@pytest.mark.skipif(not can_be_found(), reason="needs Linux's /proc")
def test_only_the_link_of_the_two_closes_and_nobody_dies():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, FILE, str(rank), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        told = [next(json_lines(process.stdout)) for process in ranks]
        assert [process.poll() for process in ranks] == [None] * 3
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [one["reaches"] for one in told] == [[1, 2], [0], [0]]
    assert told[0]["cut"] == 0
    assert told[1]["cut"] + told[2]["cut"] > 0
