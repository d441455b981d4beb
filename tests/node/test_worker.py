"""A worker runs a script as its author expects of Python and of other launchers."""

import inspect
import json
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from full_disk import full_at
from made import made
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from gemini_lab.engine import session
from gemini_lab.errors import ConfigError
from gemini_lab.job import Job, find_module
from gemini_lab.node.worker import (
    SOCKETS_FOLDER_BYTES,
    distributed_environment,
    keep_sockets_in,
    leave_early,
    local_rank_option,
    print_error,
    run_script,
    said_status,
    say_error,
    seed_as_by_chance,
)
from gemini_lab.recovery.messages import JobOrder, ScriptError, WorkerStart
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.seats import Seats
from gemini_lab.transfer.group import join_rendezvous


@pytest.mark.parametrize("is_long", [False, True])
def test_sockets_are_kept_where_their_names_have_room(monkeypatch, is_long):
    config = multiprocessing.current_process()._config
    monkeypatch.setitem(config, "tempdir", "Python's own")
    folder = "x" * (SOCKETS_FOLDER_BYTES + is_long)
    keep_sockets_in(folder)
    assert config["tempdir"] == ("Python's own" if is_long else folder)


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


def test_a_script_finds_what_lies_beside_it_and_a_module_what_lies_in_the_working_folder(
    tmp_path, monkeypatch, capsys
):
    """As with Python itself; what else lies in the working folder takes no module's place."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "secrets.py").write_text("raise RuntimeError('of the working folder')")
    for place in ("train.py", "scripts/train.py"):
        (tmp_path / place).write_text("import sys; print(sys.path[0]); import secrets")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "secrets", raising=False)
    monkeypatch.setattr(sys, "path", before := [one for one in sys.path if one])
    run_script(Job(script="scripts/train.py"), local_rank=0)
    assert sys.path[1:] == before[-len(sys.path) + 1 :]
    monkeypatch.delitem(sys.modules, "secrets")
    with pytest.raises(RuntimeError, match="of the working folder"):
        run_script(Job(script="train", module=True), local_rank=0)
    assert capsys.readouterr().out == f"{tmp_path / 'scripts'}\n{tmp_path}\n"


SERVER = """
import json, os, sys
import gemini_lab.node.worker

for line in sys.stdin:
    asked = json.loads(line)
    if (pid := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for descriptor, path in ((1, asked["stdout"]), (2, asked["stderr"])):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
sys.argv = asked["argv"]
exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def warm():
    """A Python that has imported what a worker does, and forks for each program."""
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as server:
        yield server


@pytest.fixture
def run(warm, tmp_path):
    """Run a program as `python -c` does; gives its exit code and what it wrote."""

    def program(code, *words):
        paths = {name: str(tmp_path / name) for name in ("stdout", "stderr")}
        asked = {"code": textwrap.dedent(code), "argv": ["-c", *words], **paths}
        warm.stdin.write(json.dumps(asked) + "\n")
        warm.stdin.flush()
        status = int(warm.stdout.readline())
        written = {name: Path(path).read_text() for name, path in paths.items()}
        return SimpleNamespace(returncode=status, **written)

    return program


LEAVING = """
    import os, sys, threading
    from gemini_lab.node.worker import exits_noticed

    def leave(status):
        print("left with", status, flush=True)

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
    [("0", "left with 0\n", 0), ("3", "left with 3\n", 3), ("forked", "", 0), ("thread", "", 0)],
)
def test_only_the_scripts_own_exit_is_its_end(run, how, said, code):
    done = run(LEAVING, how)
    assert (done.stdout, done.returncode) == (said, code), done.stderr


FORKING = """
    import os, sys
    from gemini_lab.node.worker import forks_apart

    with forks_apart():
        if os.fork() == 0:
            if sys.argv[1] == "error":
                raise ValueError("in the child")
            if sys.argv[1] != "falls through":
                sys.exit(int(sys.argv[1]))
        else:
            print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    print("the script has ended", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("0", 0), ("3", 3), ("error", 1), ("falls through", 0)]
)
def test_a_process_that_the_script_forks_ends_for_itself_alone(run, how, status):
    """Such as one that saves a checkpoint beside training: that is not the script's end."""
    done = run(FORKING, how)
    assert done.stdout == f"{status}\nthe script has ended\n", done.stderr
    assert ("ValueError: in the child" in done.stderr) == (how == "error")


SETTLING = """
    import gc

    gc.disable()
    from gemini_lab.node.worker import settle_imports

    settle_imports()
    print(gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
"""


def test_a_script_finds_the_collector_on_and_what_was_imported_out_of_its_way(run):
    done = run(SETTLING)
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


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_torch_says_of_a_full_disk_is_told_in_words(tmp_path, capsys, size):
    with full_at(1000), pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(size), tmp_path / "model.pt")
    told = []
    say_error(caught.value, SimpleNamespace(send=told.append))
    assert "see that its disk has room" in capsys.readouterr().err
    assert "see that its disk has room" in told[0].text


@pytest.mark.parametrize(("code", "status", "said"), [(3, 3, ""), ("no data", 1, "no data\n")])
def test_a_script_ends_itself_as_under_python(capsys, code, status, said):
    assert said_status(SystemExit(code)) == status
    assert capsys.readouterr().err == said


def start_of(rank):
    """A worker of four on two nodes."""
    seats = Seats(nodes=2, workers_per_node=2, members=("node-5", "node-3"))
    members = ("node-5", "node-3")
    plan = RecoveryPlan(
        version=None, tier="start", sources=(), members=members, transfers=(), reason=""
    )
    return made(
        WorkerStart,
        rank=rank,
        order=JobOrder(number=1, run=7, job=Job(script="train.py"), seats=seats),
        seats=seats,
        plan=plan,
        rendezvous="10.0.0.1:4711",
    )


def test_a_worker_finds_every_variable_that_torchrun_sets():
    """Libraries tell by any of them how they were launched; torch's own source has the list."""
    source = inspect.getsource(LocalElasticAgent._start_workers)
    names = {*re.findall(r'"([A-Z_]+)":', source)} - {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    assert {"GROUP_RANK", "TORCHELASTIC_RUN_ID"} <= names
    assert names <= distributed_environment(start_of(0)).keys()


def test_a_workers_ranks_are_those_of_its_position():
    told = distributed_environment(start_of(3))
    ranks = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
    sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    assert [told[name] for name in ranks] == ["3", "1", "1", "3"]
    assert [told[name] for name in sizes] == ["4", "2", "2", "4"]
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "4711")


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_script_that_ends_itself_with_an_error_is_said_to_unless_a_rank_is_lost(
    monkeypatch, is_broken
):
    """Otherwise it is its machine's: where it trains a little first, it is started for ever."""
    kept, told = SimpleNamespace(is_broken=is_broken), []
    monkeypatch.setattr(session, "current", SimpleNamespace(kept=kept))
    leave_early(start_of(0), SimpleNamespace(send=told.append), 7)
    assert told == ([] if is_broken else [ScriptError(error="SystemExit", text="7")])


ENDING = """
    import sys
    import msgspec

    from gemini_lab.node.worker import work
    from gemini_lab.recovery.messages import ScriptError, WorkerStart
    from gemini_lab.wire.local import LocalChannel

    agents, workers = LocalChannel.pair()
    start = msgspec.json.decode(sys.argv[1], type=WorkerStart)
    status = work(start, workers.fileno(), int(sys.argv[2]))
    while not isinstance(said := agents.receive()[0], ScriptError):
        pass
    print(status, said.error, said.text)
"""
LATE = """
    import sys
    from gemini_lab.engine import session

    def finish():
        raise RuntimeError("the last version is not whole")

    session.current.on_finish = finish
    if "exits" in sys.argv:
        sys.exit(0)
"""


@pytest.mark.parametrize("how", ["runs out", "exits"])
def test_why_the_last_version_did_not_become_whole_is_said_however_the_script_ends(tmp_path, how):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LATE))
    job = Job(script=str(script), cwd=str(tmp_path), args=[how])
    with socket.create_server(("127.0.0.1", 0)) as held:
        start = start_of(0)
        start = msgspec.structs.replace(
            start,
            order=msgspec.structs.replace(start.order, job=job),
            rendezvous=f"127.0.0.1:{held.getsockname()[1]}",
        )
        told = [msgspec.json.encode(start).decode(), str(held.fileno())]
        command = [sys.executable, "-c", textwrap.dedent(ENDING), *told]
        done = subprocess.run(
            command, pass_fds=[held.fileno()], capture_output=True, text=True, check=False
        )
    assert done.stdout == "1 RuntimeError the last version is not whole\n", done.stderr


GIVING_WAY = """
    import sys
    from gemini_lab.node.worker import SWITCH_S, give_way_soon

    assert sys.getswitchinterval() > SWITCH_S
    give_way_soon()
    print(sys.getswitchinterval() == SWITCH_S)
    sys.setswitchinterval(SWITCH_S / 10)
    give_way_soon()
    print(sys.getswitchinterval() < SWITCH_S)
"""


def test_threads_take_turns_sooner_unless_they_do_already(run):
    done = run(GIVING_WAY)
    assert done.stdout == "True\nTrue\n", done.stderr


HANGING = """
    import atexit, sys, threading, time, weakref
    from gemini_lab.node.worker import end_as_python_does, keep_parents_things

    class Owner: pass
    owner = Owner()
    weakref.finalize(owner, print, "the parent's", flush=True)
    keep_parents_things()
    weakref.finalize(owner, print, "the script's", flush=True)
    atexit.register(print, "called", flush=True)
    hangs = "thread" in sys.argv
    if hangs:
        threading.Thread(target=time.sleep, args=[600]).start()
    if "handler" in sys.argv:
        atexit.register(time.sleep, 600)
    limit_s = 200.0 if "nothing" in sys.argv else 2.0
    end_as_python_does(lambda: print("said", flush=True), limit_s=limit_s)
    print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("what", "printed"),
    [
        ("nothing", ["called", "the script's", "went on"]),
        ("thread", ["said"]),
        ("handler", ["said"]),
    ],
)
def test_exit_handlers_are_called_and_what_hangs_there_keeps_nobody(run, what, printed):
    ended = run(HANGING, what)
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == sorted(printed)
    assert ("ends without them" in ended.stderr) == (what != "nothing")


def test_a_port_that_is_open_already_serves_the_rendezvous():
    """Before PyTorch 2.8 its store by libuv, which it takes by itself, refuses one."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        served = join_rendezvous(address, os.dup(held.fileno()))
        served.set("said", "here")
        assert join_rendezvous(address, None).get("said") == b"here"


def test_what_a_process_seeds_by_chance_is_the_same_at_each_start_of_a_rank():
    def drawn(run, rank):
        seed_as_by_chance(run, rank)
        return random.random(), float(np.random.random())  # noqa: NPY002

    ways = [(1, 0), (1, 1), (2, 0)]
    assert len({drawn(*way) for way in ways}) == 3
    assert drawn(1, 1) == drawn(1, 1)
