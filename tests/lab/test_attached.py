"""Following a run that somebody else owns: its log over a connection, whoever owns it."""

import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from queue import Queue

import pytest
from lab_stand_in import begin, entry, printed, step, tell

from gemini_lab import Job
from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.errors import RunFailedError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.lab.control import (
    ControlServer,
    OwnerAddress,
    OwnerAwayError,
    RunGoneError,
    read_lines,
    way_in,
)
from gemini_lab.lab.loop import LoopThread
from gemini_lab.log.events import Note, RecoveryStarted, RunFinished
from gemini_lab.log.file import EventLog
from gemini_lab.recovery.requests import StopRun
from gemini_lab_bench.chaos.namespaces import NodeNetwork, why_not

WAIT_S = 20
TOKEN = "t" * 16


@pytest.fixture
def run(tmp_path, lab):
    (tmp_path / "train.py").write_text("")
    return lab.train(Job(script="train.py", cwd=str(tmp_path)), name="one")


def attached(run):
    return AttachedRun("one", lambda: way_in(run.folder), run.folder)


def test_who_attaches_late_knows_all_and_hears_the_end(run):
    begin(run)
    with attached(run) as follower:
        follower.catch_up(WAIT_S)
        assert (follower.iteration, follower.phase) == (3, "training")
        assert follower.members == run.members
        tell(run, *(step(rank, 4) for rank in range(4)), RunFinished(iteration=4))
        assert follower.wait(WAIT_S).iteration == 4


def test_list_tells_of_a_run_that_is_not_detached_what_it_tells_of_others(run, capsys):
    begin(run)
    began = RecoveryStarted(
        recovery=1, epoch=2, cause="node_lost", lost=("node-1",), failed_at_s=5.0, iteration=3
    )
    tell(run, began)
    assert main(["list", "--folder", str(run.folder.parent)]) == Exit.FINISHED
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split(maxsplit=3)[:3] == ["one", "recovering", "1"]
    assert "4 of 5" in row


def test_what_a_worker_prints_is_heard(run, cluster):
    heard, has_come = [], threading.Event()
    with attached(run) as follower:
        follower.listen(lambda rank, lines: (heard.append((rank, lines)), has_come.set()))
        follower.catch_up(WAIT_S)
        printed(cluster.audience, 0, "hello")
        assert has_come.wait(WAIT_S)
    assert heard == [(0, ["hello"])]


def test_leaving_leaves_the_run_alone_and_stopping_ends_it(run, cluster):
    begin(run)
    with attached(run) as follower:
        follower.catch_up(WAIT_S)
    assert not run.is_over
    assert cluster.asked == []
    assert "one ends" in follower.stop()
    assert cluster.asked == [(run.number, StopRun())]


OWNS = """
import asyncio, sys
from gemini_lab.recovery.messages import LogSaid
from gemini_lab.wire.tcp import serve

async def tell(channel):
    channel.send(LogSaid(lines=""))
    while await channel.receive() is not None:
        pass

async def own():
    server, port = await serve(sys.argv[1], sys.argv[2], tell)
    print(port, flush=True)
    await asyncio.sleep(600)

asyncio.run(own())
"""


def test_who_follows_an_owner_whose_machine_falls_silent_looks_for_the_next():
    if reason := why_not():
        pytest.skip(reason)
    with NodeNetwork(1, subnet="10.79.2") as network:
        host = network.address(0)
        command = network.command(0, [sys.executable, "-c", OWNS, host, TOKEN])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            port = owner.stdout.readline().strip()
            ways = iter([OwnerAddress(address=f"{host}:{port}", token=TOKEN)])

            def find():
                if (way := next(ways, None)) is None:
                    raise RunGoneError("the run is over")
                return way

            try:
                with AttachedRun("one", find) as follower:
                    follower.catch_up(WAIT_S)
                    network.cut(0, sent=True, received=True)
                    assert follower.is_over_within(2 * WAIT_S)
            finally:
                owner.kill()


def test_what_is_asked_before_there_is_an_owner_is_asked_again(run, cluster):
    begin(run)
    ways = iter([OwnerAwayError("no owner yet"), way_in(run.folder)])

    def find():
        way = next(ways)
        if isinstance(way, Exception):
            raise way
        return way

    assert "one ends" in AttachedRun("one", find, run.folder).stop()
    assert cluster.asked == [(run.number, StopRun())]


def test_an_end_that_the_owner_could_not_tell_stands_in_the_log(run):
    begin(run)
    follower = attached(run)
    tell(run, RunFinished(iteration=3))
    with pytest.raises(RunGoneError):
        way_in(run.folder)
    with follower:
        assert follower.wait(WAIT_S).iteration == 3


def test_a_run_that_is_gone_without_a_word_has_failed():
    def find():
        raise RunGoneError("no lab 'one' is in the store")

    with AttachedRun("one", find) as follower, pytest.raises(RunFailedError, match="no lab 'one'"):
        follower.wait(WAIT_S)


def test_a_run_elsewhere_is_broken_by_its_name_and_folder(run, cluster, capsys, monkeypatch):
    monkeypatch.chdir(run.folder)  # its folder is not below this one
    begin(run)
    asked = ["inject", "one", "node_loss", "node-2", "--folder", str(run.folder.parent)]
    assert main(asked) == Exit.FINISHED
    assert capsys.readouterr().out == "node_loss on node-2\n"
    assert [order.node for order in cluster.orders] == ["node-2"]
    assert main([word for word in asked if word != "node-2"]) == Exit.REFUSED
    assert "node_loss needs to be told where; write a node's name" in capsys.readouterr().err
    asked = ["inject", "--folder", str(run.folder.parent), "one", "wrong_sums", "--once", "node-1"]
    assert main(asked) == Exit.FINISHED  # a place may stand behind an option
    assert cluster.orders[-1].node == "node-1"


class Told:
    """An owner's run: a log and listeners."""

    def __init__(self, log):
        self.log = log

    def listen(self, _listener):
        return lambda: None


@contextmanager
def owner_of(log):
    """The way to somebody who has this log, and who is gone when the block ends."""
    with (
        LoopThread() as loop,
        ControlServer(loop, lambda _: "", lambda: Told(log), token=TOKEN) as server,
    ):
        yield OwnerAddress(address=server.address, token=TOKEN)


def test_a_follower_finds_the_next_owner_and_misses_nothing(tmp_path):
    path, ways, texts = tmp_path / "events.jsonl", [], Queue()
    follower = AttachedRun("one", lambda: ways[-1])
    follower.watch(lambda entry: texts.put(entry.event.text))
    with ExitStack() as following:
        log = EventLog(path)
        log.append(entry(Note(text="1")))
        with owner_of(path) as way:
            ways.append(way)
            following.enter_context(follower)
            assert texts.get(timeout=WAIT_S) == "1"
        log.append(entry(Note(text="2")))
        log = EventLog.taken_over(path)
        log.append(entry(Note(text="3")))
        with owner_of(path) as way:
            ways.append(way)
            assert [texts.get(timeout=WAIT_S) for _ in range(2)] == ["2", "3"]
            assert texts.empty()


def test_only_whole_lines_are_told_however_long(tmp_path):
    path = tmp_path / "log"
    long = b"x" * (3 << 20) + b"\n"
    path.write_bytes(b"one\n" + long + b"cut")
    assert read_lines(path, 0) == b"one\n"
    assert read_lines(path, 4) == long
    assert read_lines(path, 4 + len(long)) == b""
