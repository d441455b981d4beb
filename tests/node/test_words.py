"""What a root agent hears of its owner's words in the store."""

import pytest

from gemini_lab.node.config import DRAIN_KEY, NONE_COME_KEY
from gemini_lab.node.words import (
    CANCEL_KEY,
    GIVE_UP_KEY,
    RESIZE_KEY,
    REWIND_KEY,
    SAVE_KEY,
    Words,
    new_word,
)
from gemini_lab.recovery.protocol import (
    DrainWanted,
    JobCancelled,
    NoMachineComes,
    ProgressGivenUp,
    ResizeWanted,
    RewindWanted,
    SaveWanted,
)

SAID = {
    CANCEL_KEY: ("1", JobCancelled(at_s=5.0, number=1)),
    SAVE_KEY: ("1 7", SaveWanted()),
    GIVE_UP_KEY: ("1 7", ProgressGivenUp(at_s=5.0, number=7)),
    REWIND_KEY: ("1 7 3 0", RewindWanted(number=7, steps=3, skip=False)),
    RESIZE_KEY: ("1 7 6", ResizeWanted(at_s=5.0, number=7, nodes=6)),
    f"{DRAIN_KEY}node-2": ("1 7", DrainWanted(at_s=5.0, node="node-2", number=7)),
}


def heard(words, items, *, job=1):
    return list(words.hear(items, job=job, at_s=5.0))


@pytest.mark.parametrize("key", SAID)
def test_a_word_is_heard_once_and_only_when_its_job_is_the_one_under_way(key):
    words, (word, meant) = Words(), SAID[key]
    for job in (None, 2):
        assert heard(words, {key: word}, job=job) == []
    assert heard(words, {key: word}) == [meant]
    assert heard(words, {key: word}) == []


def test_the_same_once_more_is_news():
    words = Words()
    assert [len(heard(words, {SAVE_KEY: new_word({}, 1)})) for _ in range(3)] == [1, 1, 1]


def test_a_new_root_hears_the_words_again():
    items = {key: word for key, (word, _) in SAID.items()}
    meant = [happening for _, happening in SAID.values()]
    assert heard(Words(), items) == heard(Words(), items) == meant


def test_nodes_are_drained_in_the_order_in_which_that_was_said():
    items = {f"{DRAIN_KEY}node-{n}": f"1 {9 - n}" for n in range(3)}
    assert [one.node for one in heard(Words(), items)] == ["node-2", "node-1", "node-0"]


def test_that_no_machine_comes_is_heard_unless_it_was_said_before_this_root():
    words = Words()
    assert heard(words, {NONE_COME_KEY: "1"}) == []
    assert heard(words, {NONE_COME_KEY: "1"}) == []
    assert heard(words, {NONE_COME_KEY: "2"}) == [NoMachineComes(at_s=5.0)]


@pytest.mark.parametrize(
    "word",
    [
        "1 7 4611686018427387905 1",
        f"1 7 {2**53 + 1} 1",
        f"1 {10**30} 3 1",
        f"1 {2**62 + 1} 3 1",
        "1 7 -1 1",
        "1 7 1.5 1",
        "1 7 3",
        "1 7 3 1 1",
        "9" * 5000,
        "1 7 " + "9" * 5000 + " 1",
        "",
        "x",
        "1  7 3 1",
        "1 7 \u0663 1",
    ],
)
def test_what_no_owner_says_is_not_heard(word):
    """All ranks compute with these numbers, in 64 bits: one that is larger would end each."""
    assert heard(Words(), {REWIND_KEY: word}) == []
    told = new_word({SAVE_KEY: word, DRAIN_KEY + "node-1": word}, 1, 3, 1)
    assert [type(one) for one in heard(Words(), {REWIND_KEY: told})] == [RewindWanted]


@pytest.mark.parametrize("nodes", [0, 100_001, 2**53, 10**30])
def test_no_size_is_heard_that_no_run_has(nodes):
    assert heard(Words(), {RESIZE_KEY: f"1 7 {nodes}"}) == []
