"""Claims about the command line as a whole."""

import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import COMMANDS, GROUPS, main
from gemini_lab.display import COLOUR

LOG = Path(__file__).parents[1] / "log" / "run.jsonl"


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


def test_top_shows_a_run_that_is_over_once(tmp_path, capsys):
    shutil.copy(LOG, tmp_path / "events.jsonl")
    assert main(["top", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("phase") == 1


def test_status_says_how_much_of_a_log_cannot_be_read(tmp_path, capsys):
    log = tmp_path / "events.jsonl"
    whole = LOG.read_text().splitlines(keepends=True)
    log.write_text("".join([*whole[:9], '{"at_s": 17, "no\n', *whole[9:]]))
    assert main(["status", str(tmp_path)]) == 0
    assert "damaged: 1 of its lines cannot be read" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "events.jsonl, line 10: " in said
    assert "take that line out of a copy" in said
    log.write_text("".join(whole))
    assert main(["status", str(tmp_path)]) == 0
    assert "damaged" not in capsys.readouterr().out


def test_the_command_says_its_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"gemini-lab \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_every_command_is_listed(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)
    assert [line[:-1] for line in said.splitlines() if re.fullmatch(r"\w+:", line)] == [*GROUPS]


@pytest.mark.parametrize(
    "command",
    [
        *(f"{name} NOTES" for name in ("report", "inject")),
        *(f"{name} NOTES" for name in ("attach", "status", "top", "stop", "drain", "metrics")),
        "report LOG --compare NOTES",
        "report LOG --predict NOTES",
        "metrics NOTES --once",
        "export NOTES --to model.pt",
        "figures --measured NOTES",
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "NOTES").write_text("of what I wanted to do\n")
    shutil.copy(LOG, tmp_path / "LOG")
    more = {"inject": ["node_loss"], "drain": ["node-1"]}
    assert main([*command.split(), *more.get(command.split()[0], [])]) == 2
    said = capsys.readouterr().err
    assert (
        "NOTES is no log of a run: it begins with 'of what I" in said or "NOTES is no JSON" in said
    )
    assert {path.name for path in tmp_path.iterdir()} == {"NOTES", "LOG"}


@pytest.mark.parametrize(
    "command",
    [
        *(f"{name} mine" for name in ("attach", "status", "top", "metrics", "stop")),
        *(
            "rewind mine 2",
            "drain mine node-1",
            "resize mine 3",
            "inject mine node_loss",
            "give-up mine",
            "logs mine",
            "report mine",
        ),
        *("serve mine --port 0", "export mine --to model.pt"),
    ],
)
def test_whatever_names_a_run_looks_for_it_below_the_folder_that_is_named(
    command, tmp_path, monkeypatch, capsys
):
    """A log that is none is found where one was told to look, and nowhere else."""
    monkeypatch.chdir(tmp_path)
    name, *words = command.split()
    for below in ("elsewhere", "gemini-runs"):
        (tmp_path / below / "mine").mkdir(parents=True)
        (tmp_path / below / "mine" / "events.jsonl").write_text(f"{below} has this\n")
    assert main([name, *words, "--folder", "elsewhere"]) == Exit.REFUSED
    assert "begins with 'elsewhere has this" in capsys.readouterr().err


def test_a_log_without_a_folder_is_no_run_to_follow(tmp_path, capsys):
    saved = shutil.copy(LOG, tmp_path / "saved.jsonl")
    assert main(["status", str(saved)]) == 2
    assert "is a log without a run's folder" in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_list(capsys):
    assert main(["trian"]) == 2
    assert "there is no command 'trian'" in capsys.readouterr().err
    main(["quickstrat"])
    said = (
        "gemini-lab: there is no command 'quickstrat'; the nearest: quickstart; gemini-lab --help"
    )
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("where", "refused"),
    [
        ("missing/trace.json", (Exit.REFUSED, "No such file or directory; correct its name")),
        ("folder", (Exit.REFUSED, "Is a directory; name a file in it")),
        ("LOG/trace.json", (Exit.REFUSED, "Not a directory; a part of that path is a file")),
        ("/dev/full", (Exit.AGAIN, "No space left on device; free space there")),
    ],
)
def test_what_the_system_refuses_is_said_in_a_sentence(
    where, refused, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(LOG, tmp_path / "LOG")
    (tmp_path / "folder").mkdir()
    code, said = refused
    assert main(["report", "LOG", "--chrome-trace", where]) == code
    told = capsys.readouterr().err
    assert told.startswith("gemini-lab report: the system refuses: ")
    assert said in told
    assert told.count("\n") == 1


def test_a_full_disk_below_standard_output_is_said_in_a_sentence(tmp_path):
    shutil.copy(LOG, tmp_path / "events.jsonl")
    command = [sys.executable, "-m", "gemini_lab.cli.main", "report", str(tmp_path), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "No space left on device; free space there" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == Exit.AGAIN


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path, capsys):
    shutil.copy(LOG, tmp_path / "events.jsonl")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["metrics", str(tmp_path), "--port", str(port)]) in {Exit.AGAIN, Exit.REFUSED}
    told = capsys.readouterr().err
    assert f"{port}" in told or "in use" in told
    assert "Traceback" not in told


INTERRUPTED = """
import os, signal, sys, types
from gemini_lab.cli import main

def command(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        print("tidied up")

sys.modules["slow"] = types.SimpleNamespace(command=command)
main.COMMANDS["slow"] = ("slow:command", "")
sys.exit(main.main(["slow"]))
"""


def test_a_second_ctrl_c_does_not_cut_short_what_the_first_has_begun():
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "tidied up\n"
    assert "still ending what was started" in done.stderr
    assert "gemini-lab slow: interrupted" in done.stderr
    assert done.returncode == 130


def in_a_terminal(*words: str, columns: int) -> str:
    """What a command writes to a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "gemini_lab.cli.main", *words]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"}
    ) as running:
        os.close(slave)
        said = b""
        with suppress(OSError):  # Linux says so when the last writer has gone
            while block := os.read(master, 1 << 16):
                said += block
        assert running.wait(timeout=60) == 0
    os.close(master)
    return said.decode()


def test_a_report_has_colours_and_the_terminals_width_and_neither_in_a_pipe(tmp_path):
    shutil.copy(LOG, tmp_path / "events.jsonl")
    told = in_a_terminal("report", str(tmp_path), columns=120)
    assert "\x1b[1m" in told
    lines = [COLOUR.sub("", line).rstrip() for line in told.splitlines()]
    assert max(map(len, lines[:-1])) == 120  # the last one names the log
    command = [sys.executable, "-m", "gemini_lab.cli.main", "report", str(tmp_path)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in piped
    assert max(len(line) for line in piped.splitlines()[:-1]) <= 80


@pytest.mark.parametrize("name", ["status", "top"])
def test_a_command_that_reads_a_log_says_so_on_a_terminal_and_not_among_what_it_found(
    name, tmp_path
):
    shutil.copy(LOG, tmp_path / "events.jsonl")
    said = f"reading the log of {tmp_path.name} ..."
    assert f"{said}\r\x1b[K" in in_a_terminal(name, str(tmp_path), columns=100)
    command = [sys.executable, "-m", "gemini_lab.cli.main", name, str(tmp_path)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said not in piped.stdout
    assert "\x1b" not in piped.stdout + piped.stderr


def test_a_list_has_colours_on_a_terminal(tmp_path):
    (tmp_path / "one").mkdir()
    shutil.copy(LOG, tmp_path / "one" / "events.jsonl")
    told = in_a_terminal("list", "--all", "--folder", str(tmp_path), columns=100)
    assert "\x1b[32mfinished" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_thing_has_the_same_option_and_help_fits_a_terminal(name, monkeypatch, capsys):
    """Where a run keeps its log is `--folder`, and the etcd that knows it `--etcd`."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if not line.startswith("  -")]
    assert max(map(len, lines)) <= 80  # an option's names are as long as they are
    assert "--store" not in said
    if re.search(r"\brun's folder, its name below --folder\b", " ".join(said.split())):
        assert "--folder FOLDER" in said
        assert "where runs keep their logs (default: gemini-runs)" in said


INTERRUPTED_AT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["/usr/bin/gemini-lab", "attach", "nowhere"]
from gemini_lab.cli.main import main
main()
"""


@pytest.mark.parametrize("name", ["lazy_loader", "gemini_lab.errors", "gemini_lab.lab.attached"])
def test_ctrl_c_while_a_command_imports_ends_it_without_a_traceback(name):
    command = [sys.executable, "-c", INTERRUPTED_AT.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "\ngemini-lab: interrupted\n")
