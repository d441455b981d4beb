"""What is to run, and what is refused before anything starts for it."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from gemini_lab import Job
from gemini_lab.errors import ConfigError
from gemini_lab.job import hash_seed_in, python_command


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"for step in range(3):\nprint(step", r"\(line 2\): .*; correct it there"),
        (b"if True:\nprint(1)\n", r"\(line 2\): expected an indented block"),
        (b"echo 'no Python'\n", r"cannot read the script .*train\.py \(line 1\)"),
        (b"text = '\xff'\n", r"codec can't decode byte 0xff"),
        (b"\0\0", r"null bytes; correct it there"),
    ],
    ids=["open", "indent", "shell", "encoding", "binary"],
)
@pytest.mark.parametrize("module", [False, True])
def test_a_script_that_python_cannot_read_is_refused_before_it_starts(
    source, said, module, tmp_path
):
    (tmp_path / "train.py").write_bytes(source)
    name = "train" if module else "train.py"
    with pytest.raises(ConfigError, match=said):
        Job(script=name, module=module, cwd=tmp_path).check()


@pytest.mark.parametrize(
    "source",
    [b"", b"\xef\xbb\xbfprint('a mark before it')", b"# coding: latin-1\ntext = '\xff'", b"'\\d'"],
    ids=["empty", "mark", "coding", "warning"],
)
@pytest.mark.filterwarnings("error")
def test_what_python_reads_is_no_business_of_ours(source, tmp_path):
    (tmp_path / "träin ü.py").write_bytes(source)
    Job(script="träin ü.py", cwd=tmp_path).check()


def test_an_archive_with_a_main_module_runs_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    Job(script="train.pyz", cwd=tmp_path).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_this_user_may_not_read_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.touch(mode=0o200)
    with pytest.raises(ConfigError, match=r"cannot be read: Permission denied; mend its"):
        Job(script="train.py", cwd=tmp_path).check()


def test_arguments_are_words_as_on_a_command_line():
    job = Job(script="train.py", args=["--iterations", 24, "--lr", 0.5, Path("data")])
    assert job.args == ("--iterations", "24", "--lr", "0.5", "data")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--lr 0.5", r"is one text; give a list of words, such as \['--lr', '0\.5'\]"),
        (["--lr", None], "one is a NoneType"),
        ([["--lr", "0.5"]], "one is a list"),
    ],
)
def test_what_is_no_command_line_is_refused(args, said):
    with pytest.raises(ConfigError, match=said):
        Job(script="train.py", args=args)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"script": 5}, "script= is an int; give a path"),
        ({"env": "LR=1"}, "env= is a str; give a dict"),
        ({"env": {"LR": None}}, "one is a NoneType"),
    ],
)
def test_what_is_no_job_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        Job(**{"script": "train.py", **given})


def test_a_path_is_a_script_and_a_number_a_variable():
    job = Job(script=Path("train.py"), env={"LR": 0.5})
    assert (job.script, job.env) == ("train.py", {"LR": "0.5"})


def test_a_file_in_the_working_folder_takes_no_modules_place(tmp_path):
    for name in ("secrets", "token", "queue", "platform", "random", "types"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    (tmp_path / "json").mkdir()
    (tmp_path / "json/__init__.py").write_text("raise SystemExit('a folder of the user')")
    done = subprocess.run(
        python_command("json.tool", "--compact"),
        cwd=tmp_path,
        input="[1, 2]",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[1,2]\n", "")


@pytest.mark.parametrize(
    "said",
    [
        {"script": "tr\udcc3in.py"},
        {"script": "train.py", "args": ["--name", "\udcff"]},
        {"script": "train.py", "cwd": "/w\udcfc"},
        {"script": "train.py", "env": {"NAME": "\udcff"}},
    ],
    ids=str,
)
def test_a_name_that_no_message_can_say_is_refused_with_the_way_out(said):
    with pytest.raises(ConfigError, match=r"udc.* is no text in UTF-8; (rename it|.*PYTHONUTF8=1)"):
        Job(**said)


@pytest.mark.parametrize("said", ["-1", "4294967296", "9" * 5000, "1.5", "seven", "٣", "1_0", " 7"])
def test_a_hash_seed_with_which_python_would_not_start_is_refused(said):
    with pytest.raises(ConfigError, match=r"PYTHONHASHSEED=.* from 0 to 4294967295") as refused:
        Job(script="train.py", env={"PYTHONHASHSEED": said})
    assert len(str(refused.value)) < 200


def test_a_hash_seed_is_what_a_person_chose_if_one_did():
    chosen = {"0": 0, "7": 7, "4294967295": 4294967295, "random": None, "": None}
    assert {said: hash_seed_in({"PYTHONHASHSEED": said}) for said in chosen} == chosen
    assert hash_seed_in({}) is None
