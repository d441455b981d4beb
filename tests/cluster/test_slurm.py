"""Machines that a real slurmctld brings: one `slurmd` a machine, all of them on this one."""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from waiting import until

from gemini_lab import Lab, Scenario, Slurm
from gemini_lab.errors import LaunchError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.launch.etcd import free_port, start_etcd
from gemini_lab.training.quickstart import gpt_job

from .conftest import etcdctl_variables

COUNT = 3
TOKEN = "0123456789abcdef"
PATIENCE_S = 60.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName=m{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A Slurm cluster of three machines."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: `apt-get install slurm-wlm munge`")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    folder.chmod(0o700)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    nodes = [
        NODE.format(number=number, host=host, port=free_port("127.0.0.1"))
        for number in range(COUNT)
    ]
    config = CONFIG.format(
        host=host, port=free_port("127.0.0.1"), folder=folder, nodes="\n".join(nodes)
    )
    (folder / "slurm.conf").write_text(config)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    with contextlib.ExitStack() as undo:
        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        start(undo, "munged", "-F", "--force", f"--socket={folder}/munge.sock", *munge)
        until((folder / "munge.sock").exists)
        start(undo, "slurmctld", "-D")
        for number in range(COUNT):
            start(undo, "slurmd", "-D", "-N", f"m{number}")
        until(lambda: asked("sinfo", "--noheader", "--format=%D %t") == f"{COUNT} idle")
        yield folder


def start(undo, *command):
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    undo.callback(program.wait, PATIENCE_S)
    undo.callback(program.terminate)


def asked(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def jobs_there():
    return asked("squeue", "--noheader", "--array", "--format=%A")


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_slurm_brings_machines_and_one_for_a_lost_one_and_gets_all_back(
    slurm, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setenv("GEMINI_LAB_TOKEN", TOKEN)
    outputs = Slurm((f"--output={slurm}/%A_%a.out",))
    with start_etcd() as etcd:
        for name, value in etcdctl_variables(etcd.address, tmp_path / "etcd").items():
            monkeypatch.setenv(name, value)
        store = etcd.address.endpoints[0]
        with pytest.raises(LaunchError, match="invalid partition"):
            Lab(1, 0, join="none", etcd=store, provider="slurm --partition=none")
        with Lab(2, 0, join="exp", etcd=store, provider=outputs, folder=tmp_path / "runs") as lab:
            scenario = Scenario().add(NodeLoss("rank-1"), iteration=4)
            job = gpt_job(size="tiny", iterations=16)
            report = lab.train(job, scenario=scenario).wait(200).report()
        until(lambda: not jobs_there())
    assert len(report.recoveries) == 1
    assert report.losses_match(undisturbed(iterations=16, nodes=2))
    said = "".join(path.read_text() for path in Path(slurm).glob("*.out"))
    assert said.count("the lab 'exp' has ended") == 2
    assert TOKEN not in said
