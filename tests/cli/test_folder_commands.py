"""`list --all` names finished runs, and `logs` prints what workers wrote, also while they write."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.display import COLOUR

LOG = Path(__file__).parents[1] / "log" / "run.jsonl"


@pytest.fixture
def below(tmp_path, monkeypatch):
    """The folder of runs, below which one has finished."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "gemini-runs" / "finished"
    (run / "output").mkdir(parents=True)
    shutil.copy(LOG, run / "events.jsonl")
    return run.parent


@pytest.mark.usefixtures("below")
def test_list_all_names_a_finished_run_with_its_state_iterations_and_recoveries(capsys):
    assert main(["list"]) == 0
    assert "no run is under way" in capsys.readouterr().out
    assert main(["list", "--all"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "NAME",
        "STATE",
        "STARTED",
        "TOOK",
        "ITERATIONS",
        "RECOVERIES",
        "FOLDER",
    ]
    name, state, *_, took, done, recoveries, folder = row.split()
    assert (name, state, took) == ("finished", "finished", "00:00:12")
    assert (done, recoveries, folder) == ("6", "2", "gemini-runs/finished")


def test_list_all_says_what_it_knows_of_a_run_whose_owner_was_killed_and_of_what_is_no_log(
    below, capsys
):
    lines = LOG.read_text().splitlines(keepends=True)
    (below / "killed").mkdir()
    (below / "killed" / "events.jsonl").write_text("".join(lines[:-2]) + lines[-1][:9])
    (below / "pipe").mkdir()
    os.mkfifo(below / "pipe" / "events.jsonl")  # who opens it plainly waits for ever
    assert main(["list", "--all"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " no owner " in rows["killed"]
    assert "unreadable" in rows["pipe"]
    assert "is no regular file" in rows["pipe"]


def test_list_all_is_plain_in_a_pipe_and_never_obeys_a_runs_name(below, capsys):
    (below / "finished").rename(below / "bad\x1b[2Jname")
    assert main(["list", "--all"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert COLOUR.search(told) is None


@pytest.mark.usefixtures("below")
def test_list_all_of_an_etcd_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["list", "--all", "--etcd", "127.0.0.1:1"])
    assert "--all reads the logs in --folder" in capsys.readouterr().err


def wrote(below: Path, rank: int, *lines: str, to: str = "") -> None:
    with (below / "finished" / "output" / f"rank-{rank}.log{to}").open("a") as file:
        file.writelines(line + "\n" for line in lines)


def test_logs_prints_rank_by_rank_and_older_files_first(below, capsys):
    wrote(below, 0, "oldest", to=".2")
    wrote(below, 0, "older", to=".1")
    wrote(below, 0, "newest")
    wrote(below, 1, "of another", "\x1b]0;title\x07")
    assert main(["logs", "finished"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["0| oldest", "0| older", "0| newest", "1| of another", "1| \\x1b]0;title\\x07"]
    assert main(["logs", "finished", "--rank", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "of another"


def test_logs_of_a_rank_that_wrote_nothing_says_so(below, capsys):
    wrote(below, 0, "hello")
    assert main(["logs", "finished", "--rank", "7"]) == Exit.REFUSED
    assert "has no lines of rank 7" in capsys.readouterr().err


def test_logs_refuses_a_file_that_might_never_end(below, capsys):
    os.mkfifo(below / "finished" / "output" / "rank-0.log")
    assert main(["logs", "finished"]) == Exit.REFUSED
    assert "is no regular file" in capsys.readouterr().err


def test_logs_follow_prints_whole_lines_as_they_come_also_after_a_file_was_turned(below):
    """The run seems to go on, because its owner's port accepts connections."""
    path = below / "finished" / "output" / "rank-0.log"
    path.write_text("one\ntw")
    with socket.create_server(("127.0.0.1", 0)) as owner:
        address = "{}:{}".format(*owner.getsockname())
        (below / "finished" / "control.json").write_text(
            json.dumps({"address": address, "token": "t" * 16})
        )
        command = [sys.executable, "-m", "gemini_lab.cli.main", "logs", "finished", "-f"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=below.parent) as logs:
            assert next(logs.stdout) == "0| one\n"
            with path.open("a") as file:
                file.write("o\n")
            assert next(logs.stdout) == "0| two\n"
            path.replace(path.with_name("rank-0.log.1"))
            path.write_text("three\n")
            assert next(logs.stdout) == "0| three\n"
            owner.close()
            assert logs.wait(timeout=60) == 0
