"""Runs that need nobody: the launcher is gone, the owner moves, machines join by themselves."""

import contextlib
import os
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from gemini_lab import attach, train_detached
from gemini_lab.injector.failures import RootLoss
from gemini_lab.lab.lab_config import LabOptions
from gemini_lab.lab.run_locator import ACCESS_FILE, access_in
from gemini_lab.launch.etcd import start_etcd
from gemini_lab.log.file import LOG_FILE, read_log
from gemini_lab.report import load_report
from gemini_lab.training.quickstart import gpt_job

from .conftest import etcdctl_variables, shell

JOB = ("-m", "gemini_lab.training.gpt_job", "--size", "tiny", "--iterations")
WAIT_S = 200


def who_shows(*secrets: str) -> list[str]:
    """What processes let other users of the machine, or a child, read of a secret."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            shown = [*process.cmdline(), *process.environ().values()]
            if any(secret in text for text in shown for secret in secrets):
                found.append(f"{process.pid} {process.name()}")
    return found


@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_outlives_its_launcher_and_the_node_that_kept_its_log(tmp_path, undisturbed):
    folder = tmp_path / "one"
    size = ("--nodes", "2", "--standbys", "1")
    started = shell(
        "run", "--detach", *size, "--folder", str(tmp_path), "--name", "one", *JOB, "12"
    )
    assert started.returncode == 0, started.stderr
    assert f"gemini-lab attach {folder}" in started.stdout
    with attach(folder) as run:
        run.wait(until=4)
        opens = access_in(folder)
        secrets = (opens.token, *opens.etcd.own.key_pem.splitlines()[1:-1])
        assert all(secrets)
        assert who_shows(*secrets) == []
        first, members = run.root, run.members
        assert "node_loss" in run.inject(RootLoss())
        run.wait(WAIT_S)
    report = load_report(folder)
    assert report.losses_match(undisturbed(iterations=12, nodes=2))
    assert len(report.recoveries) >= (first in members)  # a standby may be the root, too
    assert run.root != first
    told = Counter(map(repr, read_log(folder / LOG_FILE)))  # an entry may hold what has no hash
    assert [entry for entry, times in told.items() if times > 1] == []
    assert not (folder / ACCESS_FILE).exists()


@pytest.mark.usefixtures("leaves_nothing")
def test_runs_of_one_name_in_two_folders_have_nothing_to_do_with_each_other(tmp_path):
    """The one that ends first takes neither the other's machines nor its etcd."""
    job = gpt_job(size="tiny", iterations=2000)
    first, second = (
        train_detached(job, name="one", **LabOptions(nodes=2, standbys=0, folder=tmp_path / place))
        for place in ("first", "second")
    )
    with second:
        with first:
            second.wait(WAIT_S, until=2)
            first.stop()
            assert first.is_over_within(WAIT_S)
        second.wait(WAIT_S, until=second.catch_up().iteration + 30)
        second.stop()
        assert second.is_over_within(WAIT_S)
    assert load_report(second.folder).recoveries == ()


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_machines_join_by_themselves_and_end_when_the_run_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINI_LAB_TOKEN", "0123456789abcdef")
    with start_etcd() as etcd:
        store = etcd.address.endpoints[0]
        for name, value in etcdctl_variables(etcd.address, tmp_path / "etcd").items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "gemini_lab.cli.main", "node"]
        nodes = [
            subprocess.Popen(
                [*command, "--etcd", store, "--lab", "exp"],
                env=os.environ,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        lab = LabOptions(nodes=2, standbys=0, folder=tmp_path, join="exp", etcd=store)
        job = gpt_job(size="tiny", iterations=2000)
        with train_detached(job, name="one", **lab) as run:
            assert "2 of 2" in shell("list", "--etcd", store).stdout
            run.wait(until=2)
            assert attach("exp", etcd=store).catch_up().iteration >= 2
            stopped = shell("stop", "exp", "--etcd", store)
        assert stopped.returncode == 0, stopped.stderr
        said = [node.communicate(timeout=60)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0]
        assert all("the lab 'exp' has ended" in text for text in said)
        assert "no run is under way" in shell("list", "--etcd", store).stdout
