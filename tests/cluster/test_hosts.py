"""Nodes on hosts of their own: network namespaces, each with its own address and host name."""

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from gemini_lab import Lab
from gemini_lab.experiments.namespaces import NodeNetwork, why_not
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.injector.failures import NodeLoss, RootLoss
from gemini_lab.injector.scenario import Scenario

COUNT = 4
SUBNET = "10.213.77"

SSH = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
address="$1"; shift
case "$address" in
{enters}
esac
"""


@pytest.fixture
def network(tmp_path, monkeypatch):
    """Hosts that `mpiexec` reaches by something that behaves like ssh."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if reason := why_not():
        pytest.skip(reason)
    with NodeNetwork(COUNT, subnet=SUBNET) as network:
        ssh = tmp_path / "ssh"
        ssh.write_text(SSH.format(enters="\n".join(enter(network, n) for n in range(COUNT))))
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
        for name, value in {
            "PRTE_MCA_plm_ssh_agent": str(ssh),
            "PRTE_MCA_prte_if_include": f"{SUBNET}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{SUBNET}.0/24",
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_pml": "ob1",
        }.items():
            monkeypatch.setenv(name, value)
        yield network


def enter(network: NodeNetwork, node: int) -> str:
    """The branch of the script that runs its arguments on a node."""
    words = shlex.join(network.command(node, ["bash", "-c"]))
    return f'  {network.address(node)}) exec {words} "$*" ;;'


def agents_on(network: NodeNetwork, node: int) -> int:
    ask = network.command(node, ["readlink", "/proc/self/ns/net"])
    namespace = subprocess.check_output(ask, text=True).strip()
    return sum(
        is_agent(process) and str((process / "ns/net").readlink()) == namespace
        for process in Path("/proc").glob("[0-9]*")
    )


def is_agent(process: Path) -> bool:
    try:
        return b"gemini_lab.node.agent" in (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return False


@pytest.mark.usefixtures("leaves_nothing")
def test_hosts_of_their_own_survive_the_loss_of_two_of_them(network, undisturbed, tmp_path):
    """Two train, one stands by, and the operator takes the fourth when the standby was used."""
    job = gpt_job(size="tiny", iterations=16)
    scenario = Scenario().add(NodeLoss("rank-1"), iteration=4).add(RootLoss(), iteration=9)
    hosts = [network.address(node) for node in range(COUNT)]
    with Lab(2, 1, hosts=hosts, folder=tmp_path / "runs") as lab:
        assert [agents_on(network, node) for node in range(COUNT)] == [1, 1, 1, 0]
        report = lab.train(job, scenario=scenario).wait(200).report()
        assert agents_on(network, 3) == 1
    assert len(report.recoveries) >= 2
    assert report.losses_match(undisturbed(iterations=16, nodes=2))
