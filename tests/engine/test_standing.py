"""A worker that stands still at its loop's top, and is told to go on."""

import threading
from types import SimpleNamespace

from gemini_lab.engine.standing import Standing

PATIENCE_S = 20.0


class Slow(threading.Event):
    """Whoever waits for it wakes up later, as on a busy machine."""

    def __init__(self):
        super().__init__()
        self.is_waited_for, self.may_wake = threading.Event(), threading.Event()

    def wait(self, _timeout=None):
        self.is_waited_for.set()
        return super().wait(PATIENCE_S) and self.may_wake.wait(PATIENCE_S)


def test_one_that_waits_at_the_top_is_not_taken_for_one_that_does_not_come_there():
    """It has done nothing for as long as the lost rank's node imported: all were ended for that."""
    standing, slow = Standing(SimpleNamespace(tell=None), is_late=False), Slow()
    standing._told, word = slow, ("start", "store")
    heard = []
    training = threading.Thread(target=lambda: heard.append(standing.wait()))
    training.start()
    assert slow.is_waited_for.wait(PATIENCE_S)
    standing._next = word
    slow.set()
    assert not standing.is_awaited
    slow.may_wake.set()
    training.join(PATIENCE_S)
    assert heard == [word]
    slow.set()  # another word, and training's thread is somewhere else
    assert standing.is_awaited
