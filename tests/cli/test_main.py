"""Claims about the command line as a whole."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

LOG = Path(__file__).parents[1] / "log" / "schema_1_run.jsonl"


def test_a_reader_that_has_left_ends_a_command_quietly(tmp_path):
    """As `gemini-lab report RUN | head -1` does, only sooner."""
    shutil.copy(LOG, tmp_path / "events.jsonl")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gemini_lab.cli.main", "report", str(tmp_path), "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE
