"""A thread beside training: calls in order, errors for who asks, an end that nobody waits for."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from functools import partial

import pytest

from gemini_lab.transfer.own_thread import OwnThread


@pytest.fixture
def thread():
    made = OwnThread("gemini-test")
    yield made
    made.end(wait=True)


def there():
    return [one for one in threading.enumerate() if one.name == "gemini-test"]


def test_calls_are_done_in_order_on_one_thread_and_their_errors_are_kept(thread):
    seen = []
    first = thread.submit(lambda: seen.append(threading.get_ident()))
    second = thread.submit(lambda: 1 / 0)
    third = thread.submit(lambda: seen.append(threading.get_ident()) or len(seen))
    with pytest.raises(ZeroDivisionError):
        second.result(timeout=10)
    assert third.result(timeout=10) == 2
    assert first.done()
    assert set(seen) == {there()[0].ident} != {threading.get_ident()}


class Version:
    """What a call has in hand."""


def test_an_error_that_is_kept_keeps_nothing_that_its_call_had_in_hand(thread):
    """Where nobody takes apart what holds itself, as a script may have it."""
    version = Version()
    held = weakref.ref(version)

    def look_up(version):
        return [][bool(version)]

    def fail(version):
        try:
            look_up(version)
        except IndexError as error:
            raise RuntimeError("it failed") from error

    gc.disable()
    try:
        failed = thread.submit(partial(fail, version))
        thread.submit(int).result(timeout=10)
        del version
        assert isinstance(failed.exception(), RuntimeError)
        assert [held()] == [None]
    finally:
        gc.enable()


def test_errors_that_are_each_others_context_are_kept(thread):
    def fail():
        error = ValueError("first")
        error.__cause__ = KeyError("second")
        error.__cause__.__cause__ = error
        raise error

    assert isinstance(thread.submit(fail).exception(timeout=10), ValueError)


def test_where_the_beginning_fails_all_calls_fail_so():
    thread = OwnThread("gemini-test", begin=lambda: {}["nothing"])
    futures = [thread.submit(int), thread.submit(int)]
    for future in futures:
        with pytest.raises(KeyError, match="nothing"):
            future.result(timeout=10)
    thread.end(wait=True)


def test_what_was_given_is_done_before_it_ends():
    thread, gate = OwnThread("gemini-test"), threading.Event()
    done = [thread.submit(gate.wait), thread.submit(lambda: "done")]
    thread.end(wait=False)
    gate.set()
    assert done[1].result(timeout=10) == "done"
    thread.end(wait=True)
    assert not there()


def test_one_that_is_dropped_ends_and_keeps_nothing():
    thread = OwnThread("gemini-test")
    thread.submit(int).result(timeout=10)
    (running,) = there()
    del thread
    gc.collect()
    running.join(timeout=10)
    assert not running.is_alive()


def test_one_that_was_never_used_ends_at_once():
    OwnThread("gemini-test").end(wait=True)
    assert not there()


ENDS = """
    import threading
    from gemini_lab.transfer.own_thread import OwnThread

    OwnThread("waits").submit(threading.Event().wait)
    print("ended", flush=True)
"""


def test_python_ends_without_one_that_waits_for_ever():
    command = [sys.executable, "-c", textwrap.dedent(ENDS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("ended\n", 0)
