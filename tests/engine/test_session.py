"""A worker that is to go on, and whose training does not come to its loop's top."""

from types import SimpleNamespace

import pytest

from gemini_lab.engine import session
from gemini_lab.engine.protection import remarks
from gemini_lab.engine.session import WorkerSession


@pytest.fixture
def made(monkeypatch):
    """A session, what it says, and what it ends; nobody takes any time."""
    said, ended = [], []
    monkeypatch.setattr(session.os, "kill", lambda *_: (ended.append(True), told.take()))
    monkeypatch.setattr(session.time, "sleep", lambda _: told.sleep())
    standing = SimpleNamespace(is_awaited=True, say_severed=None)
    pulse = SimpleNamespace(idle_s=0.0, place=lambda: "train.py:88 in evaluate")
    told = SimpleNamespace(said=said, ended=ended, standing=standing, pulse=pulse)
    told.take = lambda: setattr(standing, "is_awaited", False)
    start = SimpleNamespace(rank=2, epoch=3, seats=SimpleNamespace(node_of=lambda _: "node-2"))
    channel = SimpleNamespace(send=lambda message: said.append(message.entry.event.text))
    told.session = WorkerSession(
        start=start, channel=channel, store=None, pulse=pulse, standing=standing
    )
    return told


@pytest.mark.parametrize(("rank", "said"), [(0, 1), (1, 0)])
def test_why_no_process_can_be_kept_is_said_at_the_start_and_where_one_is_ended(rank, said):
    sent = []
    start = SimpleNamespace(rank=rank, epoch=3, seats=SimpleNamespace(node_of=lambda _: "node-2"))
    made = WorkerSession(
        start=start,
        channel=SimpleNamespace(send=sent.append),
        store=None,
        pulse=None,
        why_not_kept="PyTorch is too old",
    )
    assert len(sent) == said
    assert all("keeps no process here: PyTorch is too old" in one.entry.event.text for one in sent)
    made._stand(4)
    assert sent[-1].reason == "PyTorch is too old"


def test_one_that_does_nothing_for_long_is_ended_and_said(made):
    made.sleep = lambda: setattr(made.pulse, "idle_s", made.pulse.idle_s + 1.0)
    made.session._see_it_go_on()
    assert made.pulse.idle_s >= session.IDLE_S
    assert made.ended == [True]
    (said,) = made.said
    assert "rank 2 does not go on" in said
    assert "train.py:88 in evaluate" in said


def test_one_that_comes_there_in_the_end_is_not(made):
    sleeps = iter(range(40))
    made.sleep = lambda: next(sleeps) < 39 or made.take()  # it computes meanwhile
    made.session._see_it_go_on()
    assert (made.ended, made.said) == ([], [])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rank", "said"), [(0, ["text"]), (1, [])])
def test_what_a_scripts_author_should_know_is_said_in_the_log_and_not_in_its_output(rank, said):
    """Terminals show what the log has, and what rank 0 prints: it was there twice."""
    notes = []
    remarks(SimpleNamespace(start=SimpleNamespace(rank=rank), emit=notes.append))("text")
    assert [note.text for note in notes] == said
