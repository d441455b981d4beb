"""A store that is too busy to answer is waited for, and who waits is told."""

import pytest

from gemini_lab.node.control_store import StoreUnavailableError, patiently


def answering_at(number):
    """A store's call that is answered the time with this number."""
    calls = []

    def call():
        calls.append(1)
        if len(calls) < number:
            raise StoreUnavailableError("too busy")
        return "answered"

    return call


@pytest.mark.parametrize(("number", "times"), [(1, 0), (2, 1), (4, 1)])
def test_what_is_waited_for_is_told_once(number, times):
    told = []
    assert patiently(answering_at(number), tell=told.append) == "answered"
    assert told == ["waiting up to 15 s for the store to answer"] * times


def test_there_is_an_end_to_patience():
    with pytest.raises(StoreUnavailableError, match="too busy"):
        patiently(answering_at(1000), patience_s=0.0)
