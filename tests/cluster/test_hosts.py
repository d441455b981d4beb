"""Nodes on hosts of their own: network namespaces, each with its own address and host name."""

import os
import shutil
import stat
import subprocess

import pytest

from gemini_lab import Lab
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.injector.failures import NodeLoss, RootLoss
from gemini_lab.injector.scenario import Scenario

COUNT = 4
SUBNET = "10.213.77"
BRIDGE = "gemlab0"

SSH = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "gemlab-${host##*.}" unshare -u bash -c "hostname host-${host##*.}; $*"
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Addresses of hosts that `mpiexec` reaches by something that behaves like ssh."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    try:
        ip("addr", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number in range(1, COUNT + 1):
            name = f"gemlab-{number}"
            ip("netns", "add", name)
            ip(
                "link",
                "add",
                f"gemv{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            ip("link", "set", f"gemv{number}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        ssh = tmp_path / "ssh"
        ssh.write_text(SSH)
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
        for name, value in {
            "PRTE_MCA_plm_ssh_agent": str(ssh),
            "PRTE_MCA_prte_if_include": f"{SUBNET}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{SUBNET}.0/24",
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_pml": "ob1",
        }.items():
            monkeypatch.setenv(name, value)
        yield [f"{SUBNET}.{number}" for number in range(1, COUNT + 1)]
    finally:
        for number in range(1, COUNT + 1):
            subprocess.run(["ip", "netns", "del", f"gemlab-{number}"], check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)


@pytest.mark.usefixtures("leaves_nothing")
def test_hosts_of_their_own_survive_the_loss_of_two_of_them(hosts, undisturbed, tmp_path):
    """Two train, one stands by, and the operator takes the fourth when the standby was used."""
    job = gpt_job(size="tiny", iterations=16)
    scenario = Scenario().add(NodeLoss("rank-1"), iteration=4).add(RootLoss(), iteration=9)
    with Lab(2, 1, hosts=hosts, folder=tmp_path / "runs") as lab:
        report = lab.train(job, scenario=scenario).wait(200).report()
    assert len(report.recoveries) == 2
    assert report.losses_match(undisturbed(iterations=16, nodes=2))
