"""A plain DataLoader's position: put back into another loader, it goes on with its batches."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from gemini_lab.engine.random_states import random_states, restore_random_states
from gemini_lab.engine.state.loaders import watch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode


class Samples(Dataset):
    """Its index, and one of each kind of random number."""

    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([index, float(torch.rand(())), random.random()])


class Stream(IterableDataset):
    """Samples without a number."""

    def __iter__(self):
        return (torch.rand(2) for _ in range(10))


class EvenFirst(torch.utils.data.Sampler):
    """A sampler of one's own that draws from numpy."""

    def __iter__(self):
        return iter(np.random.permutation(10).tolist())  # noqa: NPY002

    def __len__(self):
        return 10


LOADERS = {
    "in order": lambda: DataLoader(Samples(), batch_size=2),
    "shuffled": lambda: DataLoader(Samples(), batch_size=2, shuffle=True),
    "shuffled by workers": lambda: DataLoader(
        Samples(), batch_size=2, shuffle=True, num_workers=2, prefetch_factor=1
    ),
    "a generator of its own": lambda: DataLoader(
        Samples(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(4)
    ),
    "a weighted sampler": lambda: DataLoader(
        Samples(),
        batch_size=2,
        sampler=WeightedRandomSampler(
            [1.0] * 10, 10, generator=torch.Generator().manual_seed(random.randrange(99))
        ),
    ),
    "a distributed sampler": lambda: DataLoader(
        Samples(), batch_size=1, sampler=DistributedSampler(Samples(), num_replicas=2, rank=1)
    ),
    "a batch sampler": lambda: DataLoader(
        Samples(), batch_sampler=BatchSampler(EvenFirst(), 2, drop_last=False)
    ),
    "a stream": lambda: DataLoader(Stream(), batch_size=2),
}


def start(make, seed):
    """A watched loader, as a process makes it that begins with that seed."""
    for plant in (random.seed, np.random.seed, torch.manual_seed):
        plant(seed)
    loader = make()
    return loader, watch(loader)


def endless(loader):
    while True:
        yield from loader
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(loader.sampler.epoch + 1)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("taken", [0, 3, 5, 8], ids=lambda taken: f"{taken} taken")
def test_a_loader_goes_on_where_another_was(make, taken):
    """Batches 0 to 4 are the first epoch's, and so on."""
    loader, position = start(make, 1)
    batches = endless(loader)
    list(islice(batches, taken))
    kept = encode({"position": position.state_dict(), "random": random_states()})
    expected = torch.stack(list(islice(batches, 9)))

    other, position = start(make, 2)
    small = decode(kept)
    position.load_state_dict(small["position"])
    restore_random_states(small["random"])
    assert torch.equal(torch.stack(list(islice(endless(other), 9))), expected)


def test_an_epoch_that_was_broken_off_is_not_gone_on_with():
    """As an evaluation over some batches: the next one begins anew."""
    loader, position = start(LOADERS["in order"], 1)
    for _ in islice(loader, 2):
        pass
    state = decode(encode(position.state_dict()))
    other, position = start(LOADERS["in order"], 1)
    position.load_state_dict(state)
    assert next(iter(other))[0, 0] == 0


def test_an_epoch_that_is_over_is_followed_by_a_new_one():
    loader, position = start(LOADERS["in order"], 1)
    batches = iter(loader)
    assert len(list(batches)) == len(batches) == 5
    position.load_state_dict(decode(encode(position.state_dict())))
    assert len(list(loader)) == 5


def test_a_data_set_that_became_shorter_is_refused_with_the_numbers():
    loader, position = start(lambda: DataLoader(Samples(10), batch_size=2), 1)
    batches = iter(loader)
    list(islice(batches, 4))
    _, other = start(lambda: DataLoader(Samples(6), batch_size=2), 1)
    with pytest.raises(ConfigError, match=r"after batch 4 of an epoch, which has 3 now"):
        other.load_state_dict(position.state_dict())


def test_a_watched_loader_is_still_one_of_its_class_and_has_one_watch():
    loader, position = start(LOADERS["shuffled"], 1)
    assert isinstance(loader, DataLoader)
    assert type(loader).__name__ == "DataLoader"
    assert watch(loader) is position
    assert len(loader) == 5


def test_each_batch_that_is_asked_for_is_seen_before_it_is_made():
    loader, position = start(LOADERS["in order"], 1)
    seen = []
    position.on_fetch = lambda: seen.append(torch.get_rng_state())
    list(loader)
    assert len(seen) == 6  # the last one is told that there are no more
    assert not torch.equal(seen[0], seen[1])


def test_a_stateful_loader_keeps_its_position_itself():
    script = ScriptState(data=[StatefulDataLoader(Samples(), batch_size=2)])
    assert "began" not in script.positions()[0]
    assert len(script.watches) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatefulDataLoader(Samples()),
        lambda: DataLoader(Samples(), num_workers=1, persistent_workers=True),
    ],
    ids=["stateful", "persistent workers"],
)
def test_an_iterator_that_was_made_too_early_is_refused_where_it_can_be_seen(make):
    loader = make()
    iter(loader)
    with pytest.raises(ConfigError, match=r"made before `protect`.*call iter\(loader\) after"):
        ScriptState(data=[loader])


@pytest.mark.parametrize(
    "data", [iter([1]), Samples(), [1, 2]], ids=["iterator", "data set", "list"]
)
def test_data_without_a_position_are_refused(data):
    with pytest.raises(ConfigError, match=r"give the DataLoader itself"):
        ScriptState(data=[data])


@pytest.mark.parametrize("taken", [0, 1, 3, 5, 8], ids=lambda taken: f"{taken} taken")
@pytest.mark.parametrize("workers", [0, 1], ids=lambda workers: f"{workers} workers")
def test_a_loader_that_reads_ahead_gives_what_was_drawn_for_the_batch_ahead(taken, workers):
    """Accelerate's: training draws between two batches, and so before the one ahead is made."""
    accelerate = pytest.importorskip("accelerate.data_loader")

    def make():
        loader = DataLoader(Samples(20), batch_size=2, shuffle=True, num_workers=workers)
        return accelerate.prepare_data_loader(
            loader, num_processes=2, process_index=1, use_seedable_sampler=True
        )

    def train(batches, count):
        return [(next(batches), torch.rand(3), random.random()) for _ in range(count)]

    loader, position = start(make, 1)
    batches = endless(loader)
    train(batches, taken)
    script = ScriptState(data=[loader])
    assert script.watches == [position]
    kept = encode({"position": script.positions()[0], "random": random_states()})
    expected = train(batches, 9)

    other, position = start(make, 2)
    small = decode(kept)
    position.load_state_dict(small["position"])
    restore_random_states(small["random"])
    assert encode(train(endless(other), 9)) == encode(expected)


def test_a_stateful_loader_inside_one_that_reads_ahead_is_refused_with_the_way_out():
    accelerate = pytest.importorskip("accelerate.data_loader")
    loader = accelerate.prepare_data_loader(
        DataLoader(Samples(), batch_size=2), use_stateful_dataloader=True
    )
    with pytest.raises(UnsupportedError, match="leave use_stateful_dataloader out"):
        ScriptState(data=[loader])


def test_a_loader_can_be_told_to_begin_after_some_batches_of_its_epoch():
    loader, position = start(LOADERS["in order"], 1)
    position.skip(3)
    kept = decode(encode(position.state_dict()))
    assert [batch[0, 0] for batch in loader] == [6, 8]
    _, other = start(LOADERS["in order"], 2)
    other.load_state_dict(kept)
    assert next(other.begin())[0, 0] == 6
    with pytest.raises(ConfigError, match="after batch 6 of an epoch, which has 5 now"):
        position.skip(6)
