"""What an iteration begins with: the same gives the same checksum, and any change another one."""

import random
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nested import nested_tensor

from gemini_lab.engine import iteration_log
from gemini_lab.engine.frameworks.tensors import tensor_sum
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.iteration_log import BatchChecksum, random_checksums, watch_inputs

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool)


def checksum(*args, **kwargs) -> str:
    return BatchChecksum((args, kwargs)).read()


def tokens() -> torch.Tensor:
    return torch.arange(24).reshape(4, 6)


def test_equal_batches_at_other_places_in_memory_have_one_checksum():
    assert checksum(tokens(), mask=None) == checksum(tokens().clone(), mask=None)
    assert checksum(tokens().t().contiguous()) == checksum(tokens().t())


@pytest.mark.parametrize(
    "other",
    [
        tokens() + (tokens() == 23),
        tokens().flip(0),
        tokens().reshape(6, 4),
        tokens().to(torch.int32),
        tokens()[:-1],
    ],
    ids=["an element", "the order", "the form", "the type", "the length"],
)
def test_any_change_of_a_tensor_gives_another_checksum(other):
    assert checksum(tokens()) != checksum(other)


def ragged(layout):
    return lambda last: nested_tensor([torch.arange(3.0), torch.tensor([last])], layout=layout)


def sharded(last):
    return DTensor.from_local(torch.tensor([1.0, last]), init_device_mesh("cpu", (1,)), [Shard(0)])


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        ragged(torch.jagged),
        ragged(torch.strided),
        sharded,
        lambda last: torch.tensor([1 + 2j, last]).conj(),
    ],
    ids=["jagged", "nested", "DTensor", "conjugate"],
)
@pytest.mark.usefixtures("group")
def test_what_has_its_numbers_in_other_tensors_counts_by_these(make):
    assert checksum(make(5.0)) == checksum(make(5.0)) != checksum(make(6.0))


def test_containers_numbers_texts_and_arrays_count_wherever_they_lie():
    @dataclass
    class Batch:
        ids: torch.Tensor
        weight: float

    given = {"a": [tokens(), 1, None], "b": (np.arange(3.0), "text", b"bytes")}
    known = {checksum(given), checksum(Batch(tokens(), 0.5)), checksum(Batch(tokens(), 0.25))}
    known |= {checksum({**given, "b": (np.arange(3.0), "other", b"bytes")})}
    known |= {checksum({**given, "b": (np.arange(3.0) + 1, "text", b"bytes")})}
    assert len(known) == 5


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        np.zeros(2, [("name", object)]),
    ],
    ids=["a conjugate", "its imaginary part", "an array of objects"],
)
def test_whatever_a_model_is_called_with_it_is_called(given):
    assert checksum(given) == checksum(given)


def test_a_conjugate_counts_as_it_reads():
    value = torch.tensor([1 + 2j])
    assert checksum(value.conj()) == checksum(value.conj().resolve_conj()) != checksum(value)


def test_a_tensor_that_is_made_of_others_counts_by_these():
    """The length of a ragged row has a name, which is another one each time."""

    def rows(last):
        parts = [torch.ones(2), torch.tensor([1.0, 2.0, last])]
        return torch.nested.nested_tensor(parts, layout=torch.jagged)

    assert checksum(rows(3.0)) == checksum(rows(3.0)) != checksum(rows(4.0))


def test_a_batch_that_was_looked_at_can_still_be_resized():
    """As one does that has room for the largest so far."""
    batch = torch.ones(3)
    checksum(batch)
    batch.resize_(5)
    assert batch.shape == (5,)


def test_an_object_without_a_value_counts_by_its_class_so_that_its_address_does_not():
    assert checksum(object()) == checksum(object())


@pytest.mark.parametrize(
    ("generator", "draw"),
    [("python", random.random), ("numpy", np.random.rand), ("torch", lambda: torch.rand(1))],
)
def test_a_random_number_drawn_anywhere_gives_that_generator_another_checksum(generator, draw):
    torch.manual_seed(1)
    before = random_checksums()
    assert random_checksums() == before
    draw()
    after = random_checksums()
    assert {name for name in before if before[name] != after[name]} == {generator}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 33])
def test_the_sum_for_gpus_sees_every_element_and_their_order(dtype, size):
    data = (torch.arange(size) % 2).to(dtype)
    whole = int(tensor_sum(data))
    assert whole == int(tensor_sum(data.clone()))
    for index in range(size):
        other = data.clone()
        other[index] = 1 - data[index].to(torch.float32)
        assert int(tensor_sum(other)) != whole
    if size > 1:
        assert int(tensor_sum(data.roll(1))) != whole or torch.equal(data, data.roll(1))


def test_the_sum_for_gpus_is_that_of_a_view_at_any_offset():
    data = torch.arange(100, dtype=torch.int32)
    assert int(tensor_sum(data[1:])) == int(tensor_sum(data[1:].clone()))


@pytest.mark.usefixtures("group")
def test_a_hook_is_not_compiled_with_a_model_that_a_script_compiles(monkeypatch):
    """On a GPU the compiler refused its whole numbers, and a script that was right failed."""
    monkeypatch.setattr(iteration_log, "_is_elsewhere", lambda _: True)  # as on a GPU
    monkeypatch.setattr(iteration_log, "_to_host", lambda sums: sums)
    monkeypatch.setattr(iteration_log, "_arrival", lambda: None)
    made = []

    def backend(graph, _inputs):
        made.append(graph)
        return graph

    model = nn.Linear(6, 1)
    engine = TorchEngine(model, torch.optim.SGD(model.parameters(), lr=0.1))
    begun = []
    iterations = SimpleNamespace(begin_with=lambda number, make: begun.append((number, make())))
    watch_inputs(engine, iterations)
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        compiled(torch.ones(4, 6)).sum().backward()
        engine.optimizer.step()
    assert [number for number, _ in begun] == [1, 2, 3]
    assert len(made) == 1, [graph.code for graph in made]
