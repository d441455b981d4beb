"""Loaders that a script reads and has not handed over are named; those it hands over are not."""

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from gemini_lab.engine.made_objects import follow_constructors
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.engine.unsaved_state import ScriptWatch, StrayLoaders
from gemini_lab.shard.codec import encode

follow_constructors()


def endless(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("kept", [True, False], ids=["handed over", "not handed over"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_read_from_one_iteration_to_the_next_is_said(workers, kept):
    """Beside it another is read to its end in each, as in an evaluation, and one is begun alone."""
    loader = DataLoader([1, 2, 3, 4, 5, 6], batch_size=2, num_workers=workers)
    script = ScriptState(data=[loader] if kept else [])
    said = []
    watch = ScriptWatch(script, said.append)
    watch.is_asked = True
    batches, begun = endless(loader), iter(DataLoader([1, 2]))
    next(begun)
    for _ in range(4):
        next(batches)
        assert list(DataLoader([1, 2, 3]))
        watch.see_version(encode(script.drawn()), at_top=False)
    told = [text for text in said if "`protect` does not know (a DataLoader of a list)" in text]
    assert len(told) == (not kept)


def test_an_iterator_that_could_not_be_made_is_none():
    """Its traceback, which somebody keeps, keeps it as far as it came."""

    class Broken(list):
        def __iter__(self):
            raise NotImplementedError

    strays = StrayLoaders([])
    with pytest.raises(NotImplementedError) as kept:
        iter(DataLoader([1, 2], batch_sampler=Broken()))
    strays.look()
    assert kept.traceback
    assert not strays.read_on()


def test_a_source_of_ones_own_may_read_a_loader():
    class Stream:
        state_dict = load_state_dict = None

    loader = DataLoader([1, 2, 3, 4])
    strays = StrayLoaders([Stream()])
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        strays.look()
    assert strays.read_on() == []


class Unsized(Sampler):
    """It has no length, and says so by an error."""

    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        raise TypeError("a stream has no length")


def test_an_iterator_without_a_length_is_amid_its_epoch_while_it_is_read():
    batches, strays = iter(DataLoader([1, 2, 3, 4], sampler=Unsized())), StrayLoaders([])
    next(batches)
    strays.look()
    next(batches)
    assert strays.read_on() == ["a DataLoader of a list"]


class Scaling(torch.nn.Module):
    """Multiplies by a number that the script changes."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = torch.nn.Linear(3, 3), 1.0

    def forward(self, batch):
        return self.inner(batch) * self.scale


def test_what_a_process_compiles_by_its_history_is_told_once():
    torch.compiler.reset()
    said = []
    model = Scaling()
    compiled = torch.compile(model, backend="eager")
    watch = ScriptWatch(ScriptState(), said.append)

    def train(rows):
        compiled(torch.ones(rows, 3)).sum().backward()
        watch.see_version(encode({**ScriptState().drawn()}), at_top=True)

    watch.is_asked = True
    for rows in (2, 2, 2):
        train(rows)
    assert said == []
    model.scale = 0.5
    for rows in (3, 4, 4, 4, 4, 4, 4):
        train(rows)
    (text,) = said
    assert text.startswith("torch.compile has compiled the model again, because ")
    assert "'batch'" in text or "L['batch']" in text
    model.scale = 0.25
    for _ in range(20):
        train(5)
    assert said == [text]
