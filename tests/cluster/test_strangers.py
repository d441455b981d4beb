"""Strangers: one may write to a lab's store, another is a user of its machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from waiting import until

from gemini_lab import Lab
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.job import Job
from gemini_lab.lab.control import CONTROL_FILE
from gemini_lab.log.events import Note
from gemini_lab.log.file import LOG_FILE, read_log
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.sealed_store import SEAL_CHARACTERS
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats
from gemini_lab.training.quickstart import gpt_job

ITERATIONS = 60


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder into which anybody may look, as many a home."""
    folder = Path(tempfile.mkdtemp(prefix="gemini_lab-strangers-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def two(place) -> Iterator[Lab]:
    """Two nodes, all of whose files others could see."""
    with Lab(2, 0, folder=place / "runs") as opened:
        yield opened


def notes(run) -> list[str]:
    return [e.event.text for e in read_log(run.log) if isinstance(e.event, Note)]


def test_what_a_stranger_writes_into_a_labs_store_is_said_and_never_run(two, tmp_path):
    """Training goes on meanwhile; once it is taken out, failures are answered as ever."""
    mark, script = tmp_path / "ran", tmp_path / "theirs.py"
    script.write_text(f"open({str(mark)!r}, 'w')\n")
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    quiet = two.train(job, persistent_url=None).wait(200).report()
    run = two.train(job, persistent_url=None)
    run.wait(until=3)
    store = two._cluster._store
    stranger = EtcdStore(store.address, store.prefix)
    theirs = Job(script=str(script))
    order = JobOrder(number=99, run=99, job=theirs, seats=Seats(nodes=2), settings={})
    genuine = stranger.items()
    state = RootState.from_text(genuine["state"][SEAL_CHARACTERS:])
    forged = {
        "job": msgspec.json.encode(order).decode(),
        "state": replace(state, setup=replace(state.setup, order=order)).to_text(),
        "cancel": str(run.number),
    }
    for key, value in forged.items():
        stranger.put(key, value)
        until(lambda key=key: any(f"{key}' in the store" in text for text in notes(run)))
        run.wait(until=run.iteration + 2)
        if key in genuine:
            stranger.put(key, genuine[key])
        else:
            stranger.delete(key)
    stranger.close()
    run.inject(WorkerCrash("rank-1"))
    report = run.wait(200).report()
    assert not mark.exists()
    assert len(report.recoveries) == 1
    assert report.losses_match(quiet)


LOOKS = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for top in sys.argv[1:]:
    try:
        os.listdir(top)
        print("listed", top)
    except OSError:
        pass
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                open(os.path.join(folder, name), "rb").close()
                print("read", folder, name)
            except OSError:
                pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        print("shown", open(f"/proc/{pid}/cmdline", "rb").read())
        print("shown", open(f"/proc/{pid}/environ", "rb").read())
    except OSError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try it")
def test_another_user_of_the_machine_reads_no_file_and_no_secret_of_a_live_lab(two, place):
    job = replace(gpt_job(size="tiny", iterations=2000), env={"API_KEY": "s3cret-s3cret-s3cret"})
    run = two.train(job, persistent_url=None)
    run.wait(until=2)
    known = [run.folder / name for name in (CONTROL_FILE, LOG_FILE)]
    own = two._cluster._store.address.own
    secrets = [two._cluster._operator.token, "s3cret-s3cret", own.key_pem.splitlines()[1]]
    below = psutil.Process().children(recursive=True)
    words = next(one for one in below if one.name() == "etcd").cmdline()
    data = Path(words[words.index("--data-dir") + 1])
    folders = [run.folder, place / "runs" / "agents", data.parent, data]
    assert all(path.exists() for path in [*known, *folders])
    command = [sys.executable, "-I", "-c", LOOKS, *map(str, folders)]
    looked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    run.stop()
    assert [line for line in looked.splitlines() if not line.startswith("shown")] == []
    assert "gemini_lab.node.agent" in looked, "it saw the lab's processes"
    assert [secret for secret in secrets if secret in looked] == []
