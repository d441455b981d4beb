"""A worker that is to go on, and whose training does not come to its loop's top."""

from types import SimpleNamespace

import pytest

from gemini_lab.engine.protection import remarks
from gemini_lab.engine.session import WorkerSession
from gemini_lab.kept.process import KeptProcess
from gemini_lab.recovery.messages import Stand


@pytest.mark.parametrize(("rank", "said"), [(0, 1), (1, 0)])
def test_why_no_process_can_be_kept_is_said_at_the_start_and_where_one_is_ended(rank, said):
    sent = []
    start = SimpleNamespace(rank=rank, epoch=3, seats=SimpleNamespace(node_of=lambda _: "node-2"))
    made = WorkerSession(
        start=start,
        channel=SimpleNamespace(send=sent.append),
        store=None,
        pulse=None,
        kept=KeptProcess("PyTorch is too old"),
    )
    assert len(sent) == said
    assert all("keeps no process here: PyTorch is too old" in one.entry.event.text for one in sent)
    made.kept.on_order(Stand(epoch=4))
    assert sent[-1].reason == "PyTorch is too old"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rank", "said"), [(0, ["text"]), (1, [])])
def test_what_a_scripts_author_should_know_is_said_in_the_log_and_not_in_its_output(rank, said):
    """Terminals show what the log has, and what rank 0 prints: it was there twice."""
    notes = []
    remarks(SimpleNamespace(start=SimpleNamespace(rank=rank), emit=notes.append))("text")
    assert [note.text for note in notes] == said
