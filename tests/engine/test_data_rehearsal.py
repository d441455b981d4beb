"""Positions in the data are put back before training: what does not come back is told or mended."""

import os
import random
import time

import psutil
import pytest
import torch
import torchdata.nodes as tn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from gemini_lab.engine.iteration_log import BatchChecksum
from gemini_lab.engine.random_states import random_states
from gemini_lab.engine.state import data_rehearsal
from gemini_lab.engine.state.data_rehearsal import rehearse_data
from gemini_lab.engine.state.loaders import LoaderWatch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import encode

ROWS = torch.sin(torch.arange(80.0)[:, None] * torch.arange(1.0, 7.0)[None])


class Noisy(Dataset):
    """Samples with noise from the generator that all share."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return ROWS[index] + 0.1 * torch.randn(6)


class Pool(IterableDataset):
    """A stream out of a pool, from which numbers are taken by a generator's draws."""

    def __init__(self, source=random):
        self.source = source

    def __iter__(self):
        pool = []
        for number in range(400):
            pool.append(float(number))
            if len(pool) > 8:
                yield pool.pop(self.source.randrange(len(pool)))


class Orders:
    """An order for each epoch; its state leaves the epoch's number out, or cannot be loaded."""

    def __init__(self, *, fails=False):
        self.at, self.epoch, self.fails = 0, 0, fails

    def __iter__(self):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1
        while self.at < 20:
            self.at += 1
            yield ROWS[order[self.at - 1]]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        if self.fails:
            raise KeyError("order")
        self.at = state["at"]


class Lines(IterableDataset):
    """Lines of a file that was opened with the data set, which is read from place to place."""

    def __init__(self, path):
        self.file = path.open()

    def __iter__(self):
        self.file.seek(0)
        yield from (torch.tensor(float(line)) for line in self.file)


@pytest.fixture(autouse=True)
def _have_time(monkeypatch):
    """On a busy machine, too, reading comes to the second epoch."""
    monkeypatch.setattr(data_rehearsal, "LIMIT_S", 60.0)
    monkeypatch.setattr(data_rehearsal, "_ENOUGH_S", 30.0)


def streamed(*, buffer=None):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [float(number) for number in range(400)]})
    stream = rows.to_iterable_dataset(num_shards=4)
    return stream if buffer is None else stream.shuffle(seed=7, buffer_size=buffer)


def nodes(kind):
    sampler = kind(ROWS, num_replicas=2, rank=1, shuffle=True, seed=3)
    mapped = tn.Mapper(tn.SamplerWrapper(sampler), ROWS.__getitem__)
    return tn.Loader(tn.Batcher(mapped, 4))


def sums(batches):
    return [BatchChecksum(batch).read() for batch in batches]


def rehearsed(source):
    random.seed(5)  # by some draws a pool comes back by chance, and differs at the next place
    script = ScriptState(data=[source])
    return [*rehearse_data(script)], script


@pytest.mark.parametrize(
    "made",
    [
        lambda: DataLoader(Noisy(), batch_size=4, shuffle=True),
        lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2),
        lambda: DataLoader(Pool(random.Random(3)), batch_size=4),
        lambda: DataLoader(streamed(buffer=40), batch_size=4),
        lambda: StatefulDataLoader(Noisy(), batch_size=4, shuffle=True),
        lambda: StatefulDataLoader(ROWS, batch_size=4, shuffle=True, num_workers=2),
        lambda: StatefulDataLoader(streamed(), batch_size=4, num_workers=2),
        lambda: nodes(DistributedSampler),
        lambda: nodes(StatefulDistributedSampler),  # its state leaves the sampler's epoch out
    ],
)
def test_of_data_that_come_back_nothing_is_said(made):
    source = made()
    said, script = rehearsed(source)
    assert said == []
    assert isinstance(script.sources[0], LoaderWatch) == (
        type(source) is not type(script.sources[0])
    )


@pytest.mark.parametrize(
    ("made", "workers"),
    [
        (lambda: streamed(buffer=40), 0),  # its state leaves the buffer out
        (lambda: streamed(buffer=40), 2),  # and cannot even be loaded
        (streamed, 0),  # once loaded, it begins each later epoch where it was loaded
        (Noisy, 2),  # of two workers that draw nobody says the states
    ],
)
def test_a_loader_whose_own_word_is_not_enough_is_read_again(made, workers):
    loader = StatefulDataLoader(made(), batch_size=4, num_workers=workers)
    said, script = rehearsed(loader)
    (text,) = said
    assert "the state_dict of the StatefulDataLoader" in text
    assert "read again up to the position" in text
    assert isinstance(script.sources[0], LoaderWatch)
    if made is Noisy:
        return  # such numbers are drawn, and the version has what they are drawn from
    reads, again = iter(loader), StatefulDataLoader(made(), batch_size=4, num_workers=workers)
    for _ in range(20):
        next(reads)
    small = script.drawn()
    later = ScriptState(data=[again])  # of a start that rehearses nothing: the position tells
    later.put_data(small["data"], seeds=small["seeds"])
    assert isinstance(later.sources[0], LoaderWatch)
    assert sums(again) == sums(reads)
    assert sums(again) == sums(loader)


@pytest.mark.parametrize(
    ("made", "where", "way_out"),
    [
        (lambda: DataLoader(Pool(), batch_size=4), "after batch 3", "draw from one of its own"),
        (
            lambda: StatefulDataLoader(Pool(), batch_size=4),
            "after batch 3",
            "draw from one of its own",
        ),
        (Orders, "after batch 3 of its second epoch", "have it say all of that"),
    ],
)
def test_data_that_do_not_come_back_are_named_with_the_way_out(made, where, way_out):
    (text,), _ = rehearsed(made())
    assert f"was put back {where}, in a process of its own before training" in text
    assert "gave other batches than had followed there" in text
    assert way_out in text


def test_data_with_which_no_later_start_would_come_up_are_refused():
    with pytest.raises(
        UnsupportedError, match=r"the Orders was put back .* failed \(KeyError: 'ord"
    ):
        rehearsed(Orders(fails=True))


def children():
    """Processes of this one, also those that ended and were not waited for."""
    return {one.pid for one in psutil.Process().children()}


def test_training_notices_nothing(tmp_path):
    """Neither its generators, nor its files, nor what the data count; and no process is left."""
    path = tmp_path / "lines"
    path.write_text("\n".join(str(number) for number in range(4000)))
    lines = Lines(path)
    first = lines.file.readline()
    loader, orders = DataLoader(lines, batch_size=4, num_workers=0), Orders()
    before = children()
    states, place = encode(random_states()), os.lseek(lines.file.fileno(), 0, os.SEEK_CUR)
    said = [*rehearse_data(ScriptState(data=[loader, orders]))]
    assert len(said) == 1
    assert first == "0\n"
    assert encode(random_states()) == states
    assert os.lseek(lines.file.fileno(), 0, os.SEEK_CUR) == place
    assert (orders.at, orders.epoch) == (0, 0)
    assert children() == before


def test_data_that_hang_hold_training_up_for_a_while_alone(monkeypatch):
    monkeypatch.setattr(data_rehearsal, "LIMIT_S", 0.5)

    class Hanging(IterableDataset):
        def __iter__(self):
            time.sleep(3600)
            yield 0

    before = children()
    said, _ = rehearsed(DataLoader(Hanging()))
    assert said == []
    assert children() == before


def test_data_that_cannot_be_read_in_another_process_are_left_out():
    reads, writes = os.pipe()
    os.write(writes, b"abc")

    class Piped(IterableDataset):
        def __iter__(self):
            while byte := os.read(reads, 1):
                yield torch.tensor(byte[0])

    said, _ = rehearsed(DataLoader(Piped()))
    assert said == []
    assert os.read(reads, 3) == b"abc"
    os.close(reads)
    os.close(writes)
