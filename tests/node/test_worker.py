"""A worker runs a script as its author expects of Python and of other launchers."""

import subprocess
import sys
import textwrap

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.job import Job, find_module
from gemini_lab.node.worker import local_rank_option, print_error, run_script, said_status


@pytest.fixture
def project(tmp_path):
    """The root of a project with a package that imports its own parts."""
    package = tmp_path / "pkg" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("raise RuntimeError('imported too early')")
    (package / "__init__.py").touch()
    (package / "train.py").write_text("from . import parts\n")
    (package / "parts.py").touch()
    (package / "__main__.py").touch()
    return tmp_path


def test_a_module_is_found_from_the_projects_root_without_importing_it(project):
    for name in ("pkg.inner.train", "pkg.inner"):
        Job(script=name, module=True, cwd=str(project)).check()
    found = find_module("pkg.inner", cwd=str(project))
    assert found is not None
    assert found.origin == str(project / "pkg" / "inner" / "__main__.py")
    assert "pkg" not in sys.modules


@pytest.mark.parametrize("name", ["pkg.outer.train", "pkg.inner.tain", "pkg", "nothing"])
def test_a_module_that_cannot_be_run_is_refused_before_anything_starts(project, name):
    with pytest.raises(ConfigError, match=f"no module '{name}'"):
        Job(script=name, module=True, cwd=str(project)).check()


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ('parser.add_argument("--local_rank", type=int)', "--local_rank"),
        ("parser.add_argument('--local-rank', type=int)", "--local-rank"),
        ("rank = args.local_rank", None),
    ],
)
def test_a_script_that_asks_for_its_local_rank_is_given_it(tmp_path, source, option):
    (tmp_path / "train.py").write_text(source)
    assert local_rank_option(Job(script=str(tmp_path / "train.py"))) == option
    assert local_rank_option(Job(script="train", module=True, cwd=str(tmp_path))) == option


def test_the_local_rank_stands_before_the_scripts_own_arguments(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    job = Job(script=str(tmp_path / "train.py"), args=["--lr", "1"], passes_local_rank=True)
    run_script(job, local_rank=3)
    assert capsys.readouterr().out == "['--local_rank=3', '--lr', '1']\n"


LEAVING = """
    import os, sys, threading
    from gemini_lab.node.worker import exits_noticed

    def leave():
        print("left well", flush=True)

    with exits_noticed(leave):
        if "forked" in sys.argv:
            if os.fork() == 0:
                os._exit(0)
            os.wait()
        elif "thread" in sys.argv:
            thread = threading.Thread(target=os._exit, args=(0,))
            thread.start()
            thread.join()
        else:
            os._exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("how", "said", "code"),
    [("0", "left well\n", 0), ("3", "", 3), ("forked", "", 0), ("thread", "", 0)],
)
def test_only_the_scripts_own_exit_without_an_error_is_its_end(how, said, code):
    command = [sys.executable, "-c", textwrap.dedent(LEAVING), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (said, code), done.stderr


SETTLING = """
    import gc

    gc.disable()
    from gemini_lab.node.worker import settle_imports

    settle_imports()
    print(gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
"""


def test_a_script_finds_the_collector_on_and_what_was_imported_out_of_its_way():
    command = [sys.executable, "-c", textwrap.dedent(SETTLING)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr


def test_an_error_is_printed_from_the_scripts_own_frames_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "train.py"
    script.write_text("def step():\n    raise ValueError('batch 3 is empty')\n\nstep()\n")
    with pytest.raises(ValueError, match="empty") as caught:
        run_script(Job(script=str(script)), local_rank=0)
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # this test's own frame
    print_error(error)
    first, place, *_ = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert place == f'  File "{script}", line 4, in <module>'


@pytest.mark.parametrize(("code", "status", "said"), [(3, 3, ""), ("no data", 1, "no data\n")])
def test_a_script_ends_itself_as_under_python(capsys, code, status, said):
    assert said_status(SystemExit(code)) == status
    assert capsys.readouterr().err == said
