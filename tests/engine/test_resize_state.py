"""What a rank takes over of small things of another number of ranks, kind by kind."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gemini_lab.engine.frameworks.resize_state import Heir
from gemini_lab.engine.random_states import random_states, seeded_random_states
from gemini_lab.engine.state.loaders import watch
from gemini_lab.engine.state.small_state import reshard_positions
from gemini_lab.engine.state.user_state import keepsakes
from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import encode
from gemini_lab.training.corpus import Corpus, TokenBatches

NEW = (
    "what the ranks from {} on draw at random (dropout, augmentation) is seeded by their numbers: "
    "they are new"
)


def heir(rank, ranks, then):
    return Heir(rank=rank, ranks=ranks, layouts=[None] * then)


def heirs(ranks, then):
    return [heir(rank, ranks, then) for rank in range(ranks)]


def test_what_all_had_alike_all_have_and_what_differs_is_refused_or_left_behind():
    for one in (*heirs(2, 3), *heirs(3, 2)):
        values = [torch.ones(2)] * one.ranks_then
        assert one.shared(values, "it") is values[0]
        assert one.own(values, "it") is values[0]
        assert one.remarks == []
        with pytest.raises(ConfigError, match="it differs between its ranks; start it with"):
            one.shared(range(one.ranks_then), "it")
    assert [one.own("abc", "it") for one in heirs(2, 3)] == ["a", "b"]
    last = heir(1, 2, 3)
    last.own("abc", "it")
    assert last.remarks == ["it differs between ranks: that of the ranks from 2 on is left behind"]
    for one in heirs(3, 2):
        with pytest.raises(ConfigError, match="new ranks have none; start it with 2 ranks"):
            one.own("ab", "it")


def test_new_ranks_borrow_buffers_and_draw_their_own_random_numbers():
    assert [one.lent("ab", "they") for one in heirs(5, 2)] == ["a", "b", "a", "b", "a"]
    states = [seeded_random_states(seed) for seed in (1, 2)]
    found = [one.random(states) for one in heirs(4, 2)]
    assert encode(found[:2]) == encode(states)
    assert len({encode(state) for state in found}) == 4
    assert encode(heir(3, 4, 2).random(states)) == encode(found[3])  # each start the same
    one = heir(0, 4, 2)
    one.random(states)
    assert one.remarks == [NEW.format(2)]


def test_ranks_that_drew_alike_go_on_to_draw_alike():
    states = [seeded_random_states(1)] * 2
    one = heir(3, 4, 2)
    assert encode(one.random(states)) == encode(states[0])
    assert one.remarks == []
    alone = heir(3, 4, 1)
    assert encode(alone.random(states[:1])) == encode(states[0])
    assert "random states of the only one that there was" in alone.remarks[0]


@pytest.mark.parametrize(
    "generator",
    [
        torch.Generator(),
        np.random.default_rng(1),
        np.random.Generator(np.random.Philox(1)),
        np.random.RandomState(1),
        random.Random(1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_generator_can_be_seeded_anew(generator):
    (keepsake,) = keepsakes({"rng": generator}).values()
    seen = []
    for seed in (2**62, 2**62, 7):
        keepsake.put(keepsake.renew(seed))
        seen.append(encode(keepsake.read()))
    assert seen[0] == seen[1] != seen[2]


# -- positions in the data ---------------------------------------------------------------------


class Numbers(Dataset):
    """Its own indices."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def loaders(ranks, batch, size=48, **how):
    found = []
    for rank in range(ranks):
        data = Numbers(size)
        sampler = DistributedSampler(data, ranks, rank, seed=4)
        sampler.set_epoch(2)
        found.append(DataLoader(data, batch, sampler=sampler, **how))
    return found


def taken_over(then, now, batches, *, may_restart=False):
    """The loaders of other ranks go on where `then` are after some batches; the remarks."""
    watches = [watch(loader) for loader in then]
    iterators = [iter(loader) for loader in then if batches]
    for iterator in iterators:
        for _ in range(batches):
            next(iterator)
    positions = [[one.state_dict()] for one in watches]
    remarks = []
    for rank, loader in enumerate(now):
        one = heir(rank, len(now), len(then))
        (state,) = reshard_positions([watch(loader)], positions, one, may_restart=may_restart)
        if state is not None:
            watch(loader).load_state_dict(state)
        remarks = one.remarks
    return iterators, remarks


def together(iterators):
    """The next batch of all ranks, as a set of samples."""
    return {int(sample) for iterator in iterators for sample in next(iterator)}


@pytest.mark.parametrize(("then", "now"), [((4, 3), (3, 4)), ((2, 6), (6, 2)), ((4, 3), (1, 12))])
def test_dealt_samples_go_on_with_the_batch_that_was_next(then, now):
    before, after = loaders(*then), loaders(*now)
    iterators, remarks = taken_over(before, after, 2)
    assert remarks == ([NEW.format(2)] if then[0] == 2 else [])
    others = [iter(loader) for loader in after]
    for _ in range(2):
        assert together(others) == together(iterators)
    assert all(next(one, None) is None for one in (*others, *iterators))


def test_samples_that_do_not_come_out_even_are_read_twice_and_this_is_said():
    _, remarks = taken_over(loaders(4, 3), after := loaders(3, 3), 1)
    assert remarks == [
        "3 samples of the epoch are read twice: 12 were read, and 3 ranks read 9 at a time"
    ]
    order = [int(n) for loader in loaders(1, 1) for n in loader]
    assert together(map(iter, after)) == set(order[9:18])


def test_between_two_epochs_there_is_no_position():
    _, remarks = taken_over(before := loaders(2, 6), after := loaders(3, 4), 0)
    assert remarks == []
    assert together(map(iter, after)) == together(map(iter, before))


def test_an_order_that_each_rank_draws_for_itself_is_refused_or_begun_anew():
    then = [DataLoader(Numbers(48), 6, shuffle=True) for _ in range(2)]
    now = [DataLoader(Numbers(48), 4, shuffle=True) for _ in range(3)]
    with pytest.raises(ConfigError, match=r"the DataLoader of data= .*DistributedSampler.*restart"):
        taken_over(then, now, 1)
    _, remarks = taken_over(then, now, 1, may_restart=True)
    assert remarks == [
        "the DataLoader of data= reads from its beginning: its position cannot be told"
    ]


def batches(ranks, batch):
    corpus = Corpus(name="test", text=bytes(n * n % 251 for n in range(3000)))
    return [TokenBatches(corpus, batch, 8, 5, rank=n, world_size=ranks) for n in range(ranks)]


def test_a_source_that_says_so_itself_goes_on_with_the_same_global_batch():
    then, now = batches(4, 3), batches(3, 4)
    for source in then:
        for _ in range(40):  # into the second epoch
            next(source)
    positions = [[source.state_dict()] for source in then]
    for rank, source in enumerate(now):
        one = heir(rank, 3, 4)
        (state,) = reshard_positions([source], positions, one, may_restart=False)
        source.load_state_dict(state)
    assert rows(now) == rows(then)
    with pytest.raises(ConfigError, match=r"4 ranks have read 480 blocks, which 7 ranks do not"):
        batches(7, 1)[0].reshard_state_dict([p[0] for p in positions], rank=0, world_size=7)


def rows(sources):
    return sorted(tuple(row.tolist()) for source in sources for row in next(source)[0])


@pytest.fixture(autouse=True)
def _the_random_states_of_before():
    before = random_states()
    yield
    random.setstate(before["python"])
    np.random.set_state(before["numpy"])  # noqa: NPY002
    torch.set_rng_state(before["torch"])
