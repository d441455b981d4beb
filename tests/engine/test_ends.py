"""Ranks wait for one another where an epoch's batches are over; one that waits alone says so."""

import threading
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from gemini_lab.engine.script_loops import Ends
from gemini_lab.recovery.messages import EndReached

PATIENCE_S = 60.0


class Rank:
    """A rank of two, with a store that both share."""

    def __init__(self, rank: int, store: HashStore, *, version: int | None = None):
        self.start = SimpleNamespace(
            rank=rank,
            epoch=4,
            seats=SimpleNamespace(world_size=2),
            plan=SimpleNamespace(version=version),
        )
        self.store, self.said, self.is_broken = store, [], False
        self.has_said = threading.Event()
        self.ends = Ends(self, is_broken=lambda: self.is_broken)

    def say(self, message):
        self.said.append(message)
        self.has_said.set()

    def meet(self, iteration, *, epoch=0, rewinds=0):
        """Come to the end of an epoch on a thread of its own."""
        told = {"epoch": epoch, "rewinds": rewinds}
        thread = threading.Thread(target=self.ends.meet, args=(iteration,), kwargs=told)
        thread.daemon = True
        thread.start()
        return thread


@pytest.fixture
def ranks():
    store = HashStore()
    return Rank(0, store), Rank(1, store)


def test_ranks_whose_epoch_is_over_after_the_same_iteration_go_on_together(ranks):
    for iteration, epoch in ((11, 0), (22, 1)):
        for thread in [one.meet(iteration, epoch=epoch) for one in ranks]:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert [one.said for one in ranks] == [[], []]


@pytest.mark.parametrize("other", [{"iteration": 12}, {"iteration": 11, "rewinds": 1}])
def test_one_whose_epoch_is_over_elsewhere_waits_and_says_so_once_until_a_rank_is_lost(
    ranks, other
):
    first = ranks[0].meet(11)
    second = ranks[1].meet(**other)
    assert ranks[0].has_said.wait(PATIENCE_S)
    assert first.is_alive()
    assert second.is_alive()
    for one in ranks:
        one.is_broken = True
    for thread in (first, second):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert ranks[0].said == [EndReached(rank=0, epoch=4, iteration=11, what="epoch")]


def test_a_pass_in_which_nothing_was_trained_is_no_epoch():
    ends = Rank(0, HashStore()).ends
    ends.begin(0)
    assert [ends.end_pass(version) for version in (0, 11, 11, 22)] == [False, True, False, True]


def test_the_first_pass_of_a_restored_rank_may_be_over_at_once():
    """Its version is of the epoch's last iteration, after which the others still have a batch."""
    ends = Rank(0, HashStore(), version=11).ends
    ends.begin(11)
    assert ends.end_pass(11)
