"""A persistent tier that hangs, behind a user's own fsspec driver: training does not notice."""

import subprocess
import sys
import textwrap

import fsspec
import psutil
import pytest
from fsspec.implementations.local import LocalFileSystem
from waiting import until

from gemini_lab import Lab
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log
from gemini_lab.training.quickstart import gpt_job

from .conftest import processes_of_labs

DRIVER = '''
"""Files that nobody can write or list while a file called `hold` lies beside this module."""

import time
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

HOLD = Path(__file__).with_name("hold")


class HeldFileSystem(LocalFileSystem):
    protocol = "held"

    def open(self, path, mode="rb", **options):
        wait()
        return super().open(path, mode, **options)

    def ls(self, path, **options):
        wait()
        return super().ls(path, **options)


def wait():
    while HOLD.exists():
        time.sleep(0.05)
'''


class NeverHeld(LocalFileSystem):
    """The same driver for this process, which must not wait: it touches `hold` itself."""

    protocol = "held"


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """The file that will hold the store up; the driver is installed as any package's would be."""
    package = tmp_path / "drivers"
    metadata = package / "held_driver-1.0.dist-info"
    metadata.mkdir(parents=True)
    (package / "held_driver.py").write_text(DRIVER)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: held-driver\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[fsspec.specs]\nheld = held_driver:HeldFileSystem\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package))  # for the agents
    fsspec.register_implementation("held", NeverHeld, clobber=True)  # fsspec is loaded here
    return package / "hold"


@pytest.mark.long
def test_a_store_that_hangs_holds_up_neither_training_nor_a_recovery(hold, undisturbed, tmp_path):
    job = gpt_job(size="tiny", iterations=16, layer_s=0.03)
    with Lab(4, 1, folder=tmp_path / "lab") as lab:
        run = lab.train(
            job,
            scenario=Scenario().add(NodeLoss("rank-2"), iteration=8),
            persistent_url=f"held://{tmp_path}/tier",
            persist_every_iterations=4,
        )
        until(lambda: run.iteration >= 2)
        hold.touch()
        until(lambda: run.iteration == 16)
        kinds = [entry.kind for entry in read_log(run.log)]
        assert "persist_finished" not in kinds
        assert "recovery_finished" in kinds
        assert not run.is_over, "the last version is on its way"
        hold.unlink()
        run.wait(100)
    report = run.report()
    assert report.losses_match(undisturbed(iterations=16))
    assert report.traffic.persistent_versions[-1] == 16


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_a_lab_closes_while_its_store_hangs(hold, tmp_path):
    with Lab(2, 0, folder=tmp_path / "lab") as lab:
        run = lab.train(
            gpt_job(size="tiny", iterations=6, layer_s=0.03),
            persistent_url=f"held://{tmp_path}/tier",
            persist_every_iterations=2,
        )
        until(lambda: run.iteration >= 1)
        hold.touch()
        until(lambda: run.iteration == 6)
    assert hold.exists()


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_agents_end_while_their_store_hangs_when_their_owner_was_killed(hold, tmp_path):
    code = f"""
        import time
        from gemini_lab import Lab
        from gemini_lab.training.quickstart import gpt_job

        lab = Lab(2, 0, folder="lab")
        run = lab.train(
            gpt_job(size="tiny", iterations=6, layer_s=0.03), persist_every_iterations=2,
            persistent_url="held://{tmp_path}/tier",
        )
        while run.iteration < 1: time.sleep(0.05)
        print("trains", flush=True)
        while run.iteration < 6: time.sleep(0.05)
        print("hangs", flush=True)
        run.wait()
    """
    others = busy_with_the_tier()  # of labs that other tests share
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout.readline() == "trains\n"
        hold.touch()
        assert owner.stdout.readline() == "hangs\n"
        assert busy_with_the_tier() - others
        owner.kill()
    until(lambda: not busy_with_the_tier() - others)
    assert hold.exists()


def busy_with_the_tier() -> set[int]:
    """The bulk processes of these tests' nodes."""
    return {process.pid for process in processes_of_labs() if is_bulk(process)}


def is_bulk(process: psutil.Process) -> bool:
    try:
        return "gemini_lab.node.bulk_process" in process.cmdline()
    except psutil.Error:  # it has ended
        return False
