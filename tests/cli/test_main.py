"""Claims about the command line as a whole."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from gemini_lab.cli.main import COMMANDS, main

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


def test_top_fills_a_pipe_while_the_run_goes_on(tmp_path):
    """As `gemini-lab top RUN | head -1` wants it: not only when the run is over."""
    whole = LOG.read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(whole[:5]))
    command = [sys.executable, "-m", "gemini_lab.cli.main", "top", str(tmp_path), "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        screens = [
            line for line in (next(top.stdout) for _ in range(40)) if line.startswith("run ")
        ]
        top.stdout.close()
        top.wait()
    assert len(screens) > 1


def test_the_command_says_its_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"gemini-lab \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_every_command_is_listed(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)


def test_an_unknown_command_is_refused_with_the_list(capsys):
    assert main(["trian"]) == 2
    assert "there is no command 'trian'" in capsys.readouterr().err
