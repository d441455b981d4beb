"""Nodes on hosts of their own: network namespaces, each with its own address and host name."""

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from waiting import until

from gemini_lab import Lab
from gemini_lab.injector.failures import NodeLoss, RootLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.launch.etcd import find_etcd, free_port
from gemini_lab.node.agent_links import SILENT_S
from gemini_lab.node.root_shell import CUT_OFF_S
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.chaos.namespaces import NodeNetwork, why_not

COUNT = 4
SUBNET = "10.213.77"

AGENT = "gemini_lab.node.agent"
KEEPER = "gemini_lab.launch.etcd_keeper"
PATIENCE_S = 60.0

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


def processes_on(network: NodeNetwork, node: int, module: str) -> list[psutil.Process]:
    """Those of a node that run a module of ours."""
    ask = network.command(node, ["readlink", "/proc/self/ns/net"])
    namespace = subprocess.check_output(ask, text=True).strip()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):  # it may have ended
            is_there = str(Path(f"/proc/{process.pid}/ns/net").readlink()) == namespace
            if is_there and module in process.cmdline():
                found.append(process)
    return found


def counts(network: NodeNetwork, module: str) -> list[int]:
    return [len(processes_on(network, node, module)) for node in range(COUNT)]


@pytest.mark.usefixtures("leaves_nothing")
def test_hosts_of_their_own_survive_the_loss_of_two_of_them(network, undisturbed, tmp_path):
    """Two train, one stands by, and the operator takes the fourth when the standby was used.

    The first of them holds one of etcd's three members, and loses that with everything else.
    """
    job = gpt_job(size="tiny", iterations=16)
    scenario = Scenario().add(NodeLoss("rank-1"), iteration=4).add(RootLoss(), iteration=9)
    hosts = [network.address(node) for node in range(COUNT)]
    with Lab(2, 1, hosts=hosts, folder=tmp_path / "runs") as lab:
        assert counts(network, AGENT) == [1, 1, 1, 0]
        assert counts(network, KEEPER) == [1, 1, 1, 0]
        run = lab.train(job, scenario=scenario)
        (keeper,) = processes_on(network, 1, KEEPER)
        folder = json.loads(keeper.cmdline()[-1])["folder"]
        for process in (keeper, *keeper.children()):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)  # as it would be with its machine
        report = run.wait(200).report()
        assert counts(network, AGENT)[3] == 1
        until(lambda: counts(network, KEEPER) == [1, 0, 1, 1])
    assert len(report.recoveries) >= 2
    assert report.losses_match(undisturbed(iterations=16, nodes=2))


@pytest.fixture
def etcd(network, tmp_path):
    """One beside the hosts, which all of them reach."""
    own = network.address(253)  # this machine's, among them
    at = f"{own}:{free_port(own)}"
    peers = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    command = [find_etcd(), "--data-dir", str(tmp_path / "etcd"), "--listen-peer-urls", peers]
    command += ["--listen-client-urls", f"http://{at}", "--advertise-client-urls", f"http://{at}"]
    with (tmp_path / "etcd.log").open("w") as log, subprocess.Popen(command, stderr=log) as server:
        time.sleep(1.0)
        yield at
        server.kill()


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_a_root_agent_that_is_cut_off_from_all_agents_and_not_from_etcd_stops_no_training(
    network, etcd, tmp_path
):
    """It stands by. It took those who trained for lost, and the epoch that it began ended them."""
    hosts = [network.address(node) for node in range(COUNT)]
    with Lab(2, 2, hosts=hosts, etcd=etcd, folder=tmp_path / "runs") as lab:
        lab.wait_until_ready(300)
        store = lab._cluster._store
        while lab.root not in {"node-2", "node-3"}:  # who trains sits on the first two
            store.delete_if("root", store.items()["root"])
            time.sleep(3.0)
        run = lab.train(gpt_job(size="tiny", iterations=100_000), persistent_url=None)
        run.wait(200, until=5)
        root = lab.root
        where = {
            name.removeprefix("nodes/"): hosts.index(json.loads(said)["address"].split(":")[0])
            for name, said in store.items().items()
            if name.startswith("nodes/")
        }
        for name in where.keys() - {root}:
            network.part(where[root], where[name])
        until(lambda: lab.root != root, SILENT_S + CUT_OFF_S + PATIENCE_S)
        run.wait(100, until=run.iteration + 5)
        run.stop()
        assert run.is_over_within(60)
        assert run.report().recoveries == ()
