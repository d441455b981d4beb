"""A root agent of the user's own has a process to itself: what it does there holds up nobody."""

import asyncio
import importlib
import itertools
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import psutil
import pytest

from gemini_lab.node.root_shell import _decided, successor
from gemini_lab.recovery.protocol import AgentJoined
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab_course.own_root.deciding import (
    Ask,
    Cluster,
    Failed,
    Fence,
    GuideError,
    Kept,
    Start,
    Told,
    Wait,
)
from gemini_lab_course.own_root.guided import GuidedRoot
from gemini_lab_course.own_root.process import OwnProcess, OwnRoot, loaded, packed

CLUSTER = Cluster(
    members=("node-0", None),
    keeps=((0,), (0, 1)),
    living=("node-0",),
    silent=(),
    newest=None,
    has_given_up=False,
)
EVENT = Told(node="node-0", copies=(Kept(shard=1, version=2, epoch=3),))


def there() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@contextmanager
def process_of(decide):
    before = {one.pid for one in there()}
    process = OwnProcess(packed(decide))
    try:
        yield process
    finally:
        process.end()
        assert {one.pid for one in there()} <= before


def test_it_is_told_and_answers_as_if_it_were_called_here():
    def decide(state, event, cluster):
        state["seen"] = [*state.get("seen", []), repr((event, cluster))]
        return [Fence(), Ask(), Start(3), Wait("for all")]

    with process_of(decide) as own:
        here, kept = {}, {}
        for _ in range(2):
            wanted = decide(here, EVENT, CLUSTER)
            assert list(own(kept, EVENT, CLUSTER)) == wanted
        assert kept == here
        assert len(kept["seen"]) == 2


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda *_: all(itertools.repeat(1)), "there is no answer after 2 s"),  # C code, for ever
        (lambda *_: os._exit(3), "its process ended twice, the last time with exit code 3"),
        (lambda *_: os.kill(os.getpid(), 11), "the last time with signal 11"),
        (lambda *_: 1 / 0, "it raised ZeroDivisionError: division by zero"),
        (lambda *_: "Fence", "or nothing, and it is a str"),
        (lambda state, *_: state.update(x={1}), "`state` may hold numbers, texts"),
    ],
)
def test_what_goes_wrong_in_it_is_a_sentence_and_ends_nothing_but_itself(decide, said):
    with process_of(decide) as own, pytest.raises(GuideError, match=said):
        own({}, EVENT, CLUSTER)


def test_what_it_has_started_ends_with_it():
    def decide(*_):
        if os.fork() == 0:
            signal.pause()
        return all(itertools.repeat(1))

    with process_of(decide) as own, pytest.raises(GuideError, match="no answer"):
        own({}, EVENT, CLUSTER)


def test_one_whose_process_was_killed_is_asked_once_more():
    with process_of(lambda *_: Fence()) as own:
        assert list(own({}, EVENT, CLUSTER)) == [Fence()]
        for process in there():
            process.kill()
        assert list(own({}, EVENT, CLUSTER)) == [Fence()]


def test_what_a_node_cannot_read_is_a_sentence():
    own = OwnProcess("AAAA")
    with pytest.raises(GuideError, match="cannot be read on this node"):
        own({}, EVENT, CLUSTER)
    own.end()


def test_an_agent_that_is_root_no_more_waits_for_no_answer():
    said = []
    with process_of(lambda *_: all(itertools.repeat(1))) as own:

        def ask():
            try:
                own({}, EVENT, CLUSTER)
            except GuideError as error:
                said.append(str(error))

        asking = threading.Thread(target=ask)
        asking.start()
        while not own._is_read:
            time.sleep(0.01)
        own.end()
        asking.join(30)
    assert said == ["this node is no longer the root agent"]


async def test_the_agents_loop_goes_on_while_it_decides(tmp_path):
    """What it waits for is done by that very loop; it would be too late otherwise."""
    asked, done = tmp_path / "asked", tmp_path / "done"

    def decide(*_):
        asked.touch()
        while not done.exists():
            time.sleep(0.01)
        return Wait("done")

    async def do():
        while not asked.exists():
            await asyncio.sleep(0.01)
        done.touch()

    root = OwnRoot(state=RootState(), at_s=0.0, decide=OwnProcess(packed(decide)))
    doing = asyncio.create_task(do())
    answer = await _decided(root, lambda event: root.guide({}, event, CLUSTER), EVENT)
    await doing
    root.close()
    assert list(answer) == [Wait("done")]


def test_the_next_job_has_the_root_agent_that_it_asks_for():
    first = RootAgent(state=RootState(), at_s=0.0)
    first.living["node-1"] = AgentJoined(at_s=0.0, node="node-1")
    assert successor(first, "", at_s=1.0) is first
    before = {one.pid for one in there()}
    guided = successor(first, packed(lambda *_: Fence()), at_s=1.0)
    assert isinstance(guided, GuidedRoot)
    assert guided.living == first.living
    assert list(guided.guide({}, Failed(cause="c"), CLUSTER)) == [Fence()]
    back = successor(guided, "", at_s=2.0)
    assert type(back) is RootAgent
    assert back.living == first.living
    assert {one.pid for one in there()} <= before


def test_a_function_takes_along_the_users_own_modules(tmp_path, monkeypatch):
    """No node looks for them in the folder in which it works."""
    (tmp_path / "my_policy.py").write_text(
        "import my_words\n\ndef decide(*_):\n    return my_words.SAID\n"
    )
    (tmp_path / "my_words.py").write_text("SAID = 'wait'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = packed(importlib.import_module("my_policy").decide)
    monkeypatch.undo()
    for name in ("my_policy", "my_words"):
        del sys.modules[name]
    assert loaded(text)({}, None, None) == "wait"
    assert "my_policy" not in sys.modules
