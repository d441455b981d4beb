"""A Trainer's history in a buffer of one size: the newest entries, and each written once."""

import math

from gemini_lab.adapters.trainer_state import LogHistory


def entries(count, start=0):
    return [{"loss": 1 / (number + 3), "step": number} for number in range(start, start + count)]


def test_a_history_comes_back_bit_by_bit_and_goes_on():
    history = [*entries(20), {"loss": math.inf, "note": "of a script: \u00e9\n"}]
    first, other = LogHistory(), LogHistory()
    read = other.read(first.follow(history))
    assert read == history
    read += entries(2, start=20)
    assert LogHistory().read(other.follow(read)) == read


def test_the_room_stays_the_same_and_the_newest_entries_are_in_it():
    followed, history = LogHistory(room_bytes=400), []
    for number in range(50):
        history += entries(1, start=number)
        kept = followed.follow(history)
        assert kept.numel() == 400
    read = LogHistory(room_bytes=400).read(kept)
    assert 4 < len(read) < 12
    assert read == history[-len(read) :]
