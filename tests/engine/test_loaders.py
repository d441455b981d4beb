"""A plain DataLoader's position: put back into another loader, it continues with its batches."""

import contextlib
import functools
import random
import sys
import threading
from collections import deque
from itertools import count, islice
from types import SimpleNamespace

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
from gemini_lab.engine.state.data_values import digest
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


class Further(IterableDataset):
    """Goes on in each epoch where the last one ended."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        for _ in range(10):
            self.position += 1
            yield torch.tensor([self.position, float(torch.rand(()))])


class Told(Samples):
    """Gives other samples in each epoch, of which it is told."""

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return super().__getitem__(index) + 100 * self.epoch


class Foreign(IterableDataset):
    """As Hugging Face's: its epoch is a tensor that its workers share."""

    __module__ = "datasets.iterable_dataset"

    def __init__(self):
        self._epoch = torch.tensor(0)

    def set_epoch(self, epoch):
        self._epoch += epoch - self._epoch

    def __iter__(self):
        yield from torch.randn(10, 2, generator=torch.Generator().manual_seed(int(self._epoch)))


class EvenFirst(torch.utils.data.Sampler):
    """A sampler of one's own that draws from numpy."""

    def __iter__(self):
        return iter(np.random.permutation(10).tolist())  # noqa: NPY002

    def __len__(self):
        return 10


class Turning(EvenFirst):
    """Begins each epoch elsewhere."""

    def __init__(self):
        self.turn = 0

    def __iter__(self):
        self.turn += 3
        return iter([(index + self.turn) % 10 for index in range(10)])


SIZES = [1, 2]


class Noting(Samples):
    """Changes a flag, a name, a numpy number, a list in place, an array, and what came later."""

    def __init__(self):
        super().__init__()
        self.is_odd, self.name, self.count = False, None, np.int64(0)
        self.order = self.alias = [*range(10)]
        self.weights = np.arange(10.0)
        self.table = {"sizes": SIZES}
        self.recent = self.last = deque([0], maxlen=3)

    def __getitem__(self, index):
        self.is_odd = not self.is_odd
        self.name = f"{self.name}{index}"[-6:]
        self.count += 1
        self.alias[:] = self.alias[1:] + self.alias[:1]
        self.weights[index] += 1
        self.last.append(index)
        self.seen = {**getattr(self, "seen", {}), index: (self.is_odd, index)}
        numbers = [self.is_odd, self.count, self.order[0], *self.weights, len(self.seen)]
        numbers += [sum(self.recent)]
        return torch.tensor([float(one) for one in numbers] + [float(sum(self.name.encode()))])


class Flipped(Samples):
    """Draws from generators of its own, one of them inside of a transform."""

    def __init__(self):
        super().__init__()
        self.draw = np.random.default_rng(5)
        self.transforms = [functools.partial(self.noise, draw=random.Random(6))]

    @staticmethod
    def noise(sample, draw):
        return sample + draw.random()

    def __getitem__(self, index):
        return self.transforms[0](super().__getitem__(index)) + self.draw.random()


class Shuffling(EvenFirst):
    """The same with a generator of its own."""

    def __init__(self):
        self.draw = random.Random(7)

    def __iter__(self):
        return iter(self.draw.sample(range(10), 10))


def masking():
    """A collate function with a generator of its own."""
    own = torch.Generator().manual_seed(8)

    def collate(rows):
        return torch.stack(rows) * torch.rand(3, generator=own)

    return collate


LOADERS = {
    "generators of a data set": lambda: DataLoader(Flipped(), batch_size=2, shuffle=True),
    "a sampler's own generator": lambda: DataLoader(Samples(), 2, sampler=Shuffling()),
    "a collate function's": lambda: DataLoader(Samples(), batch_size=2, collate_fn=masking()),
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
    "a stream that goes on": lambda: DataLoader(Further(), batch_size=2),
    "an epoch that is told": lambda: DataLoader(Told(), batch_size=2, shuffle=True),
    "an epoch that is told to workers": lambda: DataLoader(Told(), batch_size=2, num_workers=2),
    "an epoch of another package": lambda: DataLoader(Foreign(), batch_size=2),
    "what is no number": lambda: DataLoader(Noting(), batch_size=2, shuffle=True),
    "a sampler that counts": lambda: DataLoader(Samples(), 2, sampler=Turning()),
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
        if isinstance(loader.sampler, WeightedRandomSampler):
            loader.sampler.weights[0] += 9  # as where hard samples are drawn more often
        if isinstance(loader.dataset, Told):
            loader.dataset.set_epoch(loader.dataset.epoch + 1)
        if isinstance(loader.dataset, Foreign):
            loader.dataset.set_epoch(int(loader.dataset._epoch) + 1)


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


def test_a_stateful_loaders_data_go_on_with_the_numbers_of_their_own_generators():
    def make():
        torch.manual_seed(1)
        loader = StatefulDataLoader(Flipped(), batch_size=2, collate_fn=masking())
        return loader, ScriptState(data=[loader])

    loader, script = make()
    batches = iter(loader)
    list(islice(batches, 2))
    kept = encode({**script.drawn(), "made": {}})
    expected = torch.stack(list(batches))
    other, script = make()
    small = decode(kept)
    script.put_data(small["data"])
    script.put(small)
    restore_random_states(small["random"])
    assert torch.equal(torch.stack(list(other)), expected)


def test_a_loader_that_goes_back_puts_its_data_back_where_others_hold_them():
    """Also what was there first alone, and what came later."""
    loader, position = start(LOADERS["what is no number"], 1)
    data, order = loader.dataset, loader.dataset.order
    states = [decode(encode(position.state_dict()))]
    before = [encode({**vars(data)})]
    for _ in islice(loader, 3):
        states.append(decode(encode(position.state_dict())))
        before.append(encode({**vars(data)}))
    for state, held in [*zip(states, before, strict=True)][::-1]:
        position.load_state_dict(state)
        assert encode({**vars(data)}) == held
        assert data.order is data.alias is order
        assert data.table["sizes"] is SIZES


class Carrying(Samples):
    """Holds what no version has: things that are no plain values, or too many of them."""

    def __init__(self, *, has_state=False):
        super().__init__()
        self.names = {"a"}
        self.many = [*range(2000)]
        self.rest = iter(range(100))
        self.fd = 3
        if has_state:
            self.state_dict = self.load_state_dict = dict

    def __getitem__(self, index):
        self.names.add(index)
        self.many.append(self.many.pop(0))
        self.fd += 1
        return super().__getitem__(next(self.rest))


OF_CARRYING = [f"{name!r} of a Carrying" for name in ("many", "names", "rest")]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: DataLoader(Samples(), 2), []),
        (lambda: DataLoader(Noting(), 2), []),
        (lambda: DataLoader(Carrying(), 2), OF_CARRYING),
        (lambda: DataLoader(Carrying(), 2, num_workers=1), []),
        (lambda: StatefulDataLoader(Carrying(), 2), OF_CARRYING),
        (lambda: StatefulDataLoader(Carrying(has_state=True), 2), []),
        (lambda: StatefulDataLoader(Further(), 2), ["'position' of a Further"]),
        (lambda: StatefulDataLoader(Told(), 2), []),
    ],
    ids=[
        "none",
        "plain",
        "carried",
        "by workers",
        "a stateful loader's",
        "said",
        "a count",
        "an epoch",
    ],
)
def test_what_data_change_and_no_version_has_is_named_once(make, told):
    script = ScriptState(data=[loader := make()])
    assert script.data_changes() == []
    list(islice(endless(loader), 9))
    assert script.data_changes() == told
    assert script.data_changes() == []


def test_what_data_change_is_not_named_where_they_are_named_in_also():
    loader = DataLoader(Carrying(has_state=True), 2)
    script = ScriptState(data=[loader], also={"data": loader.dataset})
    list(islice(loader, 2))
    assert script.data_changes() == []


class Prefetched(Samples):
    """A thread of its own fetches ahead, and keeps what is on its way, until it is there."""

    def __init__(self):
        super().__init__()
        self.on_its_way = {}
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.fetch)
        self.thread.start()

    def fetch(self):
        for number in count():
            self.on_its_way[number] = {"file": f"part-{number}", "offset": number}
            self.on_its_way.pop(number - 16, None)
            setattr(self, f"part_{number}", number)
            vars(self).pop(f"part_{number - 16}", None)
            if self.is_over.wait(0.0001):
                break


def test_data_that_a_thread_of_their_own_changes_are_read_all_the_same():
    data = Prefetched()
    loader, before = watch(DataLoader(data)), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(100):
            loader.state_dict()
            loader.values.unkept(is_known=lambda _: False, keeps_plain=True, reads_here=True)
    finally:
        sys.setswitchinterval(before)
        data.is_over.set()
        data.thread.join()


def test_an_older_iterator_that_is_asked_once_more_is_noticed():
    """An evaluation over the loader that trains: the position is that of the newer one."""
    loader, position = start(LOADERS["in order"], 1)
    seen = []
    position.on_return = lambda: seen.append(position.state_dict()["taken"])
    batches = iter(loader)
    next(batches)
    next(batches)
    list(loader)
    assert seen == []
    next(batches)
    assert seen == [0]


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


def test_a_stateful_loader_goes_on_in_the_order_of_its_samplers_epoch():
    """Which a script sets again at the top of its epoch, when the iterator is there already."""

    def start(drawn=None):
        sampler = DistributedSampler(Samples(), num_replicas=2, rank=1)
        loader = StatefulDataLoader(Samples(), batch_size=2, sampler=sampler)
        script = ScriptState(data=[loader])
        if drawn is not None:
            script.put_data(drawn["data"], seeds=drawn["seeds"])
        sampler.set_epoch(3)
        return script, iter(loader)

    script, batches = start()
    next(batches)
    kept = decode(encode(script.drawn()))
    again, went_on = ([batch[:, 0].tolist() for batch in one] for one in (start(kept)[1], batches))
    assert again == went_on != []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stateful_loader_that_nobody_has_read_is_read_in_the_order_of_its_first_epoch(
    is_restarted,
):
    """The first version is made before a script that begins in a later epoch says so."""

    def start(drawn=None):
        sampler = DistributedSampler(Samples(), num_replicas=2, rank=1)
        loader = StatefulDataLoader(Samples(), batch_size=2, sampler=sampler)
        script = ScriptState(data=[loader])
        if drawn is not None:
            script.put_data(drawn["data"], seeds=drawn["seeds"])
        kept = decode(encode(script.drawn()))
        sampler.set_epoch(3)
        return kept, loader, sampler

    kept, loader, sampler = start()
    if is_restarted:
        kept, loader, sampler = start(kept)
    given = [int(index) for batch in loader for index in batch[:, 0]]
    assert given == [*sampler]
    sampler.set_epoch(0)
    assert given != [*sampler]


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


def test_a_loader_around_another_one_is_refused_with_where_that_is():
    """As Lightning's Fabric has one around its own."""
    around = SimpleNamespace(_dataloader=DataLoader(Samples()))
    with pytest.raises(ConfigError, match=r"give the DataLoader inside \(its `\._dataloader`\)"):
        ScriptState(data=[around])


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


def shuffled(**options):
    return DataLoader(Samples(), batch_size=2, shuffle=True, **options)


@pytest.mark.parametrize("taken", [0, 1, 3], ids=lambda taken: f"{taken} taken")
@pytest.mark.parametrize("kind", ["plain", "own generator", "two workers", "Accelerate's"])
def test_a_loader_draws_its_order_at_the_first_batch(kind, taken):
    """What the script draws between `iter` and then, such as another loader's order, comes first.

    With workers the order is drawn at `iter`.
    """
    accelerate = pytest.importorskip("accelerate.data_loader")
    makes = {
        "plain": shuffled,
        "own generator": lambda: shuffled(generator=torch.Generator().manual_seed(3)),
        "two workers": lambda: shuffled(num_workers=2),
        "Accelerate's": lambda: accelerate.prepare_data_loader(shuffled()),
    }

    loader, position = start(makes[kind], 1)
    batches = iter(loader)
    torch.rand(3)
    if kind == "own generator":
        torch.rand(3, generator=loader.generator)
    given = [next(batches) for _ in range(taken)]
    kept = encode({"position": position.state_dict(), "random": random_states()})
    expected = [*batches]
    assert len(given + expected) == 5

    other, position = start(makes[kind], 2)
    for _ in range(2):  # a second failure follows
        small = decode(kept)
        position.load_state_dict(small["position"])
        again = iter(other)
        restore_random_states(small["random"])
        kept = encode({"position": position.state_dict(), "random": random_states()})
        assert encode([*again]) == encode(expected)


class Damaged(Samples):
    """One sample cannot be read."""

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("damaged")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2], ids=lambda workers: f"{workers} workers")
def test_a_batch_that_could_not_be_made_counts(workers):
    """The script leaves it out, and its place in the order is passed."""

    def read(batches, count):
        found = []
        while len(found) < count:
            with contextlib.suppress(ValueError):
                found.append(next(batches))
        return found

    def make():
        return DataLoader(Damaged(), batch_size=2, num_workers=workers)

    loader, position = start(make, 1)
    batches = iter(loader)
    read(batches, 2)
    kept = encode({"position": position.state_dict(), "random": random_states()})
    expected = read(batches, 2)
    assert expected[0][0, 0] == 6

    other, position = start(make, 2)
    small = decode(kept)
    position.load_state_dict(small["position"])
    restore_random_states(small["random"])
    assert encode(read(iter(other), 2)) == encode(expected)


class Prefetcher:
    """Fetches the next batch before it gives one, as those for GPUs do."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.next = next(self.batches, None)

    def get(self):
        given, self.next = self.next, next(self.batches, None)
        return given


@pytest.mark.parametrize("trained", [0, 1, 3, 4, 5, 7], ids=lambda trained: f"{trained} trained on")
@pytest.mark.parametrize("workers", [0, 1], ids=lambda workers: f"{workers} workers")
@pytest.mark.parametrize("held", [1, 2], ids=lambda held: f"{held} held at the loop's top")
def test_a_batch_that_a_script_holds_while_it_trains_comes_again(trained, workers, held):
    """Training draws before the next batch is made, and so do samples that are made here."""

    def make():
        return DataLoader(Samples(), batch_size=2, shuffle=True, num_workers=workers)

    def training(loader):
        script = ScriptState(data=[loader])
        script.read_ahead()
        prefetcher, batch = Prefetcher(loader), None
        if held == 2:
            batch = prefetcher.get()
        while True:
            yield script, batch
            if held == 1:
                batch = prefetcher.get()
            if batch is None:
                prefetcher = Prefetcher(loader)
                batch = prefetcher.get()
            script.watches[0].note_forward()
            now = batch, torch.rand(3), random.random()
            if held == 2:
                batch = prefetcher.get()
                if batch is None:
                    prefetcher = Prefetcher(loader)
                    batch = prefetcher.get()
            yield script, now

    def steps(loop, count):
        for _ in range(count):
            _, now = next(loop)
            yield now
            next(loop)

    loader, position = start(make, 1)
    loop = training(loader)
    script, _ = next(loop)
    list(steps(loop, trained))
    kept = encode({"position": script.positions()[0], "random": random_states()})
    expected = encode([*steps(loop, 9)])

    other, position = start(make, 2)
    small = decode(kept)
    position.is_ahead = True
    position.load_state_dict(small["position"])
    loop = training(other)
    next(loop)
    position.load_again(small["position"])  # as at the top of the loop that made the version
    restore_random_states(small["random"])
    assert encode([*steps(loop, 9)]) == expected


@pytest.mark.parametrize("holds", [0, 1, 2], ids=lambda holds: f"{holds} held")
def test_a_script_that_reads_ahead_is_known_by_its_first_forward_passes(holds):
    loader, position = start(LOADERS["in order"], 1)
    batches = iter(loader)
    list(islice(batches, holds))
    for _ in range(3):
        next(batches)
        position.note_forward()
        position.note_forward()  # of another model
    assert position.lead == holds


@pytest.mark.parametrize("holds", [0, 2], ids=lambda holds: f"{holds} held")
def test_a_script_that_does_not_hold_one_batch_is_refused_if_it_says_so(holds):
    loader, position = start(LOADERS["in order"], 1)
    position.is_ahead = True
    batches = iter(loader)

    def train():
        list(islice(batches, holds))
        for _ in range(3):
            next(batches)
            position.note_forward()

    with pytest.raises(ConfigError, match=f"asks for {holds + 1} batches before the first forward"):
        train()


def test_a_loader_that_is_read_without_training_is_refused_before_it_takes_memory():
    loader, position = start(lambda: DataLoader(Samples(40)), 1)
    position.is_ahead = True
    with pytest.raises(ConfigError, match="asked for 17 batches without a forward pass"):
        list(loader)


def test_data_that_are_no_loader_cannot_be_read_ahead():
    with pytest.raises(ConfigError, match="give the DataLoader that the script reads"):
        ScriptState(data=[SimpleNamespace(state_dict=dict, load_state_dict=print)]).read_ahead()


def test_a_loader_that_another_thread_reads_ends_no_iteration_there():
    loader, position = start(LOADERS["in order"], 1)
    seen = []
    position.on_fetch = lambda: seen.append(1)
    thread = threading.Thread(target=lambda: list(loader))
    thread.start()
    thread.join()
    assert position.is_read_apart
    assert seen == []


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


def test_numbers_that_have_not_changed_since_the_start_are_those_of_the_process():
    """Such as the descriptor of a file that each start opens."""

    def make(descriptor):
        data = Told()
        data.descriptor = descriptor
        return start(lambda: DataLoader(data, batch_size=2), 1)

    loader, position = make(7)
    loader.dataset.set_epoch(2)
    other, again = make(9)
    again.load_state_dict(decode(encode(position.state_dict())))
    assert (other.dataset.epoch, other.dataset.descriptor) == (2, 9)


class Weighted(Samples):
    """Samples with their weights."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights


@pytest.mark.parametrize("which", [0, 1])
def test_a_list_that_a_loader_and_its_sampler_share_at_first_may_have_come_apart(which):
    def make():
        weights = [1.0, 2.0]
        data, sampler = Weighted(weights), EvenFirst()
        sampler.weights = weights
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        return (data, sampler), watch(loader)

    parts, position = make()
    parts[which].weights = [3.0]
    kept = decode(encode(position.state_dict()))
    parts, position = make()
    position.load_state_dict(kept)
    assert parts[which].weights == [3.0]
    assert parts[1 - which].weights == [1.0, 2.0]


def test_a_set_that_is_made_anew_is_as_it_was():
    """Equal sets may give their elements in any order."""
    one, other = set[int](), set[int]()
    for number in (0, 8, 16):
        one.add(number)
        other.add(16 - number)
    assert [*one] != [*other]
    assert digest(one) == digest(other) != digest({0, 8})
