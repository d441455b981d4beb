"""Shared by the tests that need real ranks, of DeepSpeed or of plain PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("zero_server.py")


class Server:
    """Runs requests on fresh ranks each."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number = 0

    def run(self, folder, **request):
        """What each rank found; raises with a rank's error text if one failed."""
        self.number += 1
        request = {"ranks": 2, **request, "folder": str(folder), "number": self.number}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server ended"
        errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
        for path in folder.glob("error-*.txt"):
            path.unlink()
        if any(json.loads(answer)):
            raise RuntimeError("\n".join(errors) or f"exit codes {answer}")
        ranks = range(request["ranks"])
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in ranks]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope="session")
def server():
    started = Server()
    yield started
    started.close()
