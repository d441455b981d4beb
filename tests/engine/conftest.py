"""Shared by the tests that need real ranks, of DeepSpeed or of plain PyTorch."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("zero_server.py")


class Server:
    """Runs requests on fresh ranks each; one that a test gave up is replaced by another."""

    def __init__(self, folder):
        self.process = None
        self.number = 0
        self.folder, self.shared = folder, {}

    def run(self, folder, **request):
        """What each rank found; raises with a rank's error text if one failed."""
        self.number += 1
        request = {"ranks": 2, **request, "folder": str(folder), "number": self.number}
        answer = self.ask(json.dumps(request))
        assert answer, "the server ended"
        errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
        for path in folder.glob("error-*.txt"):
            path.unlink()
        if any(json.loads(answer)):
            raise RuntimeError("\n".join(errors) or f"exit codes {answer}")
        ranks = range(request["ranks"])
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in ranks]

    def run_once(self, folder, **request):
        """As `run`; tests that ask for the same share one run, and each gets its files."""
        asked = json.dumps({"ranks": 2, **request}, sort_keys=True)
        if asked not in self.shared:
            ran = self.folder / str(self.number)
            ran.mkdir()
            self.shared[asked] = ran, self.run(ran, **request)
        ran, found = self.shared[asked]
        shutil.copytree(ran, folder, dirs_exist_ok=True)
        return copy.deepcopy(found)

    def ask(self, request):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            return self.process.stdout.readline()
        except BaseException:  # the test's time is up: its answer would be taken for the next one's
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None
            raise

    def close(self):
        if self.process is not None:
            self.process.communicate(timeout=30)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("shared"))
    yield started
    started.close()
