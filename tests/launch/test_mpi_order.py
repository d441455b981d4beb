"""An order to rank 0 of an MPI program arrives whole, however long it is."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from gemini_lab.errors import LaunchError
from gemini_lab.launch.mpi import (
    find_mpiexec,
    mpi_command,
    mpi_environment,
    run_on_hosts,
)
from gemini_lab.launch.mpi_order import parts_of, run_with_order
from gemini_lab.node.locked_tempdir import MPI_FILES, MPI_SHARED
from gemini_lab.node.orphan_etcd import end_left_stores
from gemini_lab_bench.chaos.namespaces import why_not
from gemini_lab_bench.chaos.scene import NetworkHosts

ECHO = """
import json, os, sys
from gemini_lab.launch.mpi_order import take_order
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
    print("a greeting of the machine's own")
    print(json.dumps([{"order": take_order()}]), flush=True)
"""
ORDER = json.dumps({"names": [f"nœud-{number}" for number in range(3000)]}, ensure_ascii=False)


def test_no_part_of_an_order_is_longer_than_what_open_mpi_forwards_at_a_time():
    parts = [*parts_of(ORDER)]
    assert "".join(parts) == ORDER
    assert max(len(f"{part}\n".encode()) for part in parts) <= 4096
    assert parts[-1] == ""


def test_an_order_arrives_whole_and_the_answer_is_told_from_all_else():
    told = run_with_order([sys.executable, "-c", ECHO], ORDER, env=os.environ, limit_s=60)
    assert json.loads(told.answer) == [{"order": ORDER}]
    assert told.code == 0


def test_a_program_that_ends_before_it_takes_its_order_is_told_with_what_it_said():
    script = "import sys; sys.exit('no such network')"
    told = run_with_order([sys.executable, "-c", script], ORDER, env=os.environ, limit_s=60)
    assert (told.answer, told.code, told.text) == (None, 1, "no such network")


def test_a_program_that_nobody_gives_an_order_ends_although_its_input_stays_open():
    script = "from gemini_lab.launch.mpi_order import take_order; take_order(within_s=0.5)"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.wait(60) == 1
        assert program.stderr is not None
        assert "who was to give it must be gone" in program.stderr.read()


def test_a_program_that_takes_too_long_is_ended():
    script = "import time; time.sleep(600)"
    told = run_with_order([sys.executable, "-c", script], ORDER, env=os.environ, limit_s=0.5)
    assert told.is_late


def test_an_mpi_program_that_is_ended_leaves_no_file(tmp_path):
    script = "from mpi4py import MPI; open('up', 'w'); import time; time.sleep(600)"
    environment = {**mpi_environment(), "TMPDIR": str(tmp_path)}
    environment[MPI_SHARED] = str(tmp_path)
    command = [find_mpiexec(), "-n", "2", "--wdir", str(tmp_path), sys.executable, "-c", script]
    assert run_with_order(command, ORDER, env=environment, limit_s=15).is_late
    assert [path.name for path in tmp_path.iterdir()] == ["up"]


KILLED = '''
import os, signal, sys, threading, time
from pathlib import Path
from gemini_lab.launch.mpi import run_on_hosts

script = """
import time
from gemini_lab.launch.boot import mpi_world
with mpi_world():
    open("up", "w")
    time.sleep(60)
"""
Path("sleeper.py").write_text(script)
hosts = sys.argv[1:]
threading.Thread(target=run_on_hosts, args=("sleeper", 2, hosts, "{}"), daemon=True).start()
while not Path("up").exists():
    time.sleep(0.05)
print("up", flush=True)
time.sleep(60)
'''


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]], ids=["here", "hosts"])
def test_what_an_mpi_program_leaves_that_is_killed_goes_with_the_next(tmp_path, hosts):
    """With all else that it is of; where hosts are named, too."""
    place = tempfile.mkdtemp(prefix="t-", dir="/tmp")
    environment = {**os.environ, "TMPDIR": place, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    del environment[MPI_SHARED]
    here = {"cwd": tmp_path, "env": environment, "text": True}
    try:
        command = [sys.executable, "-c", KILLED, *hosts]
        with subprocess.Popen(command, stdout=subprocess.PIPE, **here) as launcher:
            assert launcher.stdout.readline() == "up\n"
            below = psutil.Process(launcher.pid).children(recursive=True)
            for process in [launcher, *below]:  # which would tidy up first
                process.kill()
        assert len([*Path(place).glob(f"{MPI_FILES}*/*/sm_segment.*")]) == 2
        assert [*Path(place).glob(f"{MPI_FILES}*/*/ompi.*")]
        again = "from gemini_lab.launch.mpi import run_on_hosts; run_on_hosts('no_such', 1, [], '')"
        subprocess.run([sys.executable, "-c", again], check=False, capture_output=True, **here)
        assert not [*Path(place).iterdir()]
    finally:
        shutil.rmtree(place)


def test_an_mpi_program_ends_with_its_launcher_when_that_is_killed(tmp_path):
    """By itself it sleeps on, and whatever it starts waits long for others to come."""
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment, text=True
    ) as launcher:
        assert launcher.stdout.readline() == "up\n"
        below = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    assert len(below) >= 3, "mpiexec and two of the program"
    _, left = psutil.wait_procs(below, timeout=30)
    for process in left:
        process.kill()
    assert left == []


BOOTS = """
import tempfile, threading, time
from pathlib import Path
from gemini_lab.launch.mpi import launch_agents
from gemini_lab.node.start_config import AgentConfig, LabRecord
from gemini_lab.node.etcd_address import EtcdAddress

nowhere = EtcdAddress(endpoints=("127.0.0.1:1",))
lab = LabRecord(identity="", machines=2, lease_s=2.0, warm=False, threads=1)
told = {"token": "t", "etcd": nowhere, "prefix": "x", "lab": lab}
configs = [AgentConfig(name=f"node-{n}", **told) for n in range(2)]
here = Path(tempfile.gettempdir())
known = {"hosts": [], "taken": {}, "log_folder": here}
threading.Thread(target=launch_agents, args=(configs,), kwargs=known, daemon=True).start()
while not all((here / f"node-{n}.log").exists() for n in range(2)):
    time.sleep(0.05)
print("up", flush=True)
time.sleep(60)
"""


def test_a_launcher_that_is_killed_amid_a_start_leaves_no_folder(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    del environment[MPI_SHARED]
    command = [sys.executable, "-c", BOOTS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as launcher:
        assert launcher.stdout.readline() == "up\n"
        below = psutil.Process(launcher.pid).children(recursive=True)
        assert len([*tmp_path.glob(f"{MPI_FILES}*")]) == 3, "the launcher's, and each rank's"
        launcher.kill()
    _, left = psutil.wait_procs(below, timeout=30)
    assert left == []
    assert not [*tmp_path.glob(f"{MPI_FILES}*")]


def test_what_a_killed_launcher_leaves_goes_with_the_agents_of_its_lab(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{MPI_FILES}left").mkdir()
    end_left_stores()
    assert not [*tmp_path.iterdir()]


def test_what_mpi_says_of_a_program_that_is_not_there_is_in_the_error():
    with pytest.raises(LaunchError, match="No module named no_such_program"):
        run_on_hosts("no_such_program", 1, [], "{}")


@pytest.mark.parametrize(
    ("said", "is_unknown"),
    [
        ("ssh: Could not resolve hostname n-7: Name or service not known", True),
        ("ssh: Could not resolve hostname n-7: Temporary failure in name resolution", False),
        ("ssh: connect to host n-7 port 22: Connection refused", False),
    ],
)
def test_a_host_that_nobody_knows_is_told_from_one_that_is_away(tmp_path, said, is_unknown):
    """As ssh says it, by way of `mpiexec`."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    ssh.chmod(0o755)
    code = "from gemini_lab.launch.mpi import run_on_hosts; run_on_hosts('no', 1, ['n-7'], '')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PRTE_MCA_plm_ssh_agent": str(ssh)},
    )
    assert said in done.stderr
    assert ("MissingError" in done.stderr) == is_unknown


def test_a_long_order_reaches_another_machine(tmp_path):
    """Open MPI loses what is forwarded at one time beyond 4096 bytes, where rank 0 is elsewhere."""
    if reason := why_not():
        pytest.skip(reason)
    with NetworkHosts(tmp_path, 2) as hosts:
        command = mpi_command("-", 2, hosts.names)[:-3]
        env = {**mpi_environment(), **hosts.environment}
        told = run_with_order([*command, sys.executable, "-c", ECHO], ORDER, env=env, limit_s=60)
    assert told.answer is not None, told.text
    assert json.loads(told.answer) == [{"order": ORDER}]
