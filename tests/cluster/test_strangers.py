"""Somebody may write to a lab's store and does not know its token: nothing of theirs is run."""

import time
from dataclasses import replace

import msgspec
import pytest

from gemini_lab import Lab
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.job import Job
from gemini_lab.log.events import Note
from gemini_lab.log.file import read_log
from gemini_lab.node.etcd_store import EtcdStore
from gemini_lab.node.sealed_store import SEAL_CHARACTERS
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.protocol import RootState
from gemini_lab.seats import Seats

ITERATIONS = 60


def notes(run) -> list[str]:
    return [e.event.text for e in read_log(run.log) if isinstance(e.event, Note)]


def until(holds) -> None:
    give_up_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.1)


@pytest.mark.usefixtures("leaves_nothing")
def test_what_a_stranger_writes_into_a_labs_store_is_said_and_never_run(tmp_path):
    """Training goes on meanwhile; once it is taken out, failures are answered as ever."""
    mark, script = tmp_path / "ran", tmp_path / "theirs.py"
    script.write_text(f"open({str(mark)!r}, 'w')\n")
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    with Lab(2, 0, folder=tmp_path / "runs") as lab:
        quiet = lab.train(job, persistent_url=None).wait(200).report()
        run = lab.train(job, persistent_url=None)
        run.wait(until=3)
        store = lab._cluster._store
        stranger = EtcdStore(store.address, store.prefix)
        order = JobOrder(
            number=99, run=99, job=Job(script=str(script)), seats=Seats(nodes=2), settings={}
        )
        genuine = stranger.items()
        state = RootState.from_text(genuine["state"][SEAL_CHARACTERS:])
        forged = {
            "job": msgspec.json.encode(order).decode(),
            "state": replace(state, order=order).to_text(),
            "cancel": "2",
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
