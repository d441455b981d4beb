"""What subclasses of a Trainer count beside its own state comes back, as they would have it."""

from collections import defaultdict, deque

import pytest

pytest.importorskip("transformers")

from gemini_lab.adapters.trainer_state import COUNTS_BYTES, OwnCounts
from gemini_lab.shard.codec import decode, encode


class Summing:
    """Sums up as TRL's trainers do."""

    def __init__(self, machine="node-0"):
        self.machine = machine
        self.tokens = 0
        self.sums = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.newest = deque(maxlen=2)
        self.model = object()
        self.epoch = 0.0  # one of the library's own names

    def train(self):
        self.tokens += 9
        self.sums["train"]["entropy"].append(0.5)
        self.newest.append((self.tokens, None))
        self.epoch += 1
        return self


def moved(before, after, remarks=None):
    """From a machine's trainer that has trained to the one that another machine made."""
    kept = OwnCounts(before[0], print)
    before[1](before[0])
    told = decode(encode(kept.state_dict()))
    OwnCounts(after, (remarks or []).append).load_state_dict(told)
    return told


def test_sums_and_counts_come_back_into_the_containers_that_are_there():
    after = Summing("node-4")
    sums, newest = after.sums["train"], after.newest
    moved((Summing(), lambda one: one.train().train().train()), after)
    assert after.tokens == 27
    assert after.sums["train"] is sums
    assert after.sums == {"train": {"entropy": [0.5] * 3}, "eval": {}}
    assert sums["not yet seen"] == []
    assert after.newest is newest
    assert newest == deque([(18, None), (27, None)])


def test_what_did_not_change_and_what_is_the_librarys_is_left_as_this_start_made_it():
    after = Summing("node-4")
    told = moved((Summing(), Summing.train), after)
    assert told.keys() == {"tokens", "sums", "newest"}
    assert (after.machine, after.epoch) == ("node-4", 0.0)


def test_what_outgrows_its_room_is_left_out_and_said_once():
    trainer, remarks = Summing(), []
    counts = OwnCounts(trainer, remarks.append)
    trainer.train().sums["train"]["entropy"].extend([0.25] * COUNTS_BYTES)
    for _ in range(2):
        assert counts.state_dict().keys() == {"tokens", "newest"}
    (said,) = remarks
    assert "attribute sums has grown beyond 256.0 KiB" in said
