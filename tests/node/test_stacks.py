"""The stacks of a worker can be had at any time, and it goes on as before."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from gemini_lab.node.stacks import BY_SIGNAL, GIVEN, named, take_stacks

WORKER = """
    import ctypes, select, struct, sys, threading, time
    from pathlib import Path
    from gemini_lab.engine.heartbeat import Heartbeat
    from gemini_lab.node.stacks import offer_stacks

    folder, way = sys.argv[1:]

    def stuck_in_the_script():
        if way == "sleeps":
            sys.stdin.readline()
        if way == "keeps the lock":  # a call of a library that does not let other threads run
            asked = struct.pack("ihh", 0, select.POLLIN, 0)
            if ctypes.PyDLL(None).poll(asked, 1, -1) != 1:  # a signal in its thread would end it
                print("cut short")

    def works():
        while True:
            sum(i * i for i in range(1000))

    beside = offer_stacks("" if way == "offers none" else folder)
    Heartbeat(lambda _: None, rank=0, epoch=1, beside=beside).start()
    if way == "works":
        threading.Thread(target=works, name="busy", daemon=True).start()
    Path(folder, "ready").touch()
    print("ready", flush=True)
    if way == "works":
        deep = lambda n: deep(n - 1) if n else 0
        for _ in range(3000):
            deep(50)
        time.sleep(1.5)
    stuck_in_the_script()
    print("went on", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path):
    """Start a process that offers its stacks, and wait until it is where it stays."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    started = []

    def start(way):
        one = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(one)
        assert one.stdout.readline() == "ready\n"
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


def taken(tmp_path, pid):
    return asyncio.run(take_stacks(str(tmp_path), pid))


def goes_on(one):
    """Whether a worker is unharmed: it comes to its end in the ordinary way, now that it may."""
    one.stdin.write("\n")
    one.stdin.close()
    return one.stdout.read() == "went on\n" and one.wait(30) == 0


def test_a_sleeping_worker_tells_its_place_and_goes_on(tmp_path, worker):
    one = worker("sleeps")
    for _ in range(2):
        stacks = taken(tmp_path, one.pid)
        assert stacks.how == "by its own thread"
        assert stacks.lines[0] == "thread MainThread, its innermost call first:"
        assert "in stuck_in_the_script" in stacks.lines[1]
        assert "gemini-pulse" not in str(stacks)
    assert goes_on(one)


def test_threads_that_work_are_told_of_by_name(tmp_path, worker):
    one = worker("works")
    lines = taken(tmp_path, one.pid).lines
    assert "thread busy, its innermost call first:" in lines
    assert goes_on(one)


@pytest.mark.skipif(sys.platform != "linux", reason="no signals of real time")
def test_a_worker_whose_call_keeps_pythons_lock_is_seen_too(tmp_path, worker):
    one = worker("keeps the lock")
    stacks = taken(tmp_path, one.pid)
    assert stacks.how.startswith("by a signal")
    (at,) = [line for line in stacks.lines if "in stuck_in_the_script" in line]
    assert at.endswith("in stuck_in_the_script")
    assert goes_on(one)


def test_a_process_that_does_not_offer_them_is_sent_no_signal(tmp_path, worker):
    one = worker("offers none")
    stacks = taken(tmp_path, one.pid)
    assert stacks.lines == ()
    assert "no thread of its Python ran" in stacks.how
    assert goes_on(one)


def test_a_stopped_process_is_said_to_be_stopped(tmp_path, worker):
    one = worker("sleeps")
    os.kill(one.pid, signal.SIGSTOP)
    os.waitpid(one.pid, os.WUNTRACED)
    assert "is stopped" in taken(tmp_path, one.pid).how
    os.kill(one.pid, signal.SIGCONT)
    assert goes_on(one)


@pytest.mark.parametrize(
    ("folder", "pid"), [("", 1), ("/nowhere", None), ("/nowhere/at/all", 2**22)]
)
def test_there_is_always_an_answer(folder, pid):
    stacks = asyncio.run(take_stacks(folder, pid))
    assert stacks.lines == ()
    assert stacks.how


def test_a_file_of_any_size_is_cut(tmp_path, worker):
    one = worker("offers none")
    (tmp_path / BY_SIGNAL).write_text("x")

    async def answered():
        asking = asyncio.ensure_future(take_stacks(str(tmp_path), one.pid))
        await asyncio.sleep(0.2)
        (tmp_path / GIVEN).write_text("x\n" * 2**20)
        return await asking

    assert len(asyncio.run(answered()).lines) <= 2**19


def test_the_thread_that_wrote_is_left_out_and_others_have_their_names():
    text = """\
Thread 0x0000000000000010 (most recent call first):
  File "a.py", line 1 in f

Current thread 0x0000000000000020 (most recent call first):
  File "b.py", line 2 in g
"""
    assert named(text, {0x10: "one"}, but=0x20).splitlines() == [
        "thread one, its innermost call first:",
        '  File "a.py", line 1 in f',
    ]
    assert "thread without a name in Python" in named(text, {})
