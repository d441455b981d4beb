"""What a process writes down of its state and places, where no lab is."""

import functools
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gemini_lab.engine.frameworks.torch_engine import TorchEngine, hook_optimizer
from gemini_lab.engine.witness import Witness, WitnessedSteps, _of_partitions, digest_of
from gemini_lab.errors import GeminiError
from gemini_lab.log.events import Iteration, IterationBegun
from gemini_lab.log.witnessed import (
    Kill,
    PlaceSeen,
    StateSeen,
    Struck,
    WitnessOrder,
    append,
    read,
    records_file,
    values_file,
)
from gemini_lab.shard.layout import WeightPiece

SCRIPT = """
import sys
import torch
from torch import nn
import gemini_lab

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
counts, own = {"seen": 0}, torch.Generator().manual_seed(3)
protected = gemini_lab.protect(
    model=model, optimizer=optimizer, client_state=counts, also={"own": own}
)

def train():
    loss = model(torch.randn(8, 4, generator=own)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    protected.log(loss=loss.item())
    optimizer.step()
    counts["seen"] += 8

if sys.argv[1] == "steps":
    for _ in protected.steps(2):
        train()
    for _ in protected.steps(4):
        train()
else:
    for epoch in protected.epochs(2):
        for _ in range(2):
            train()
print("ends with", sum(p.double().sum().item() for p in model.parameters()))
if sys.argv[2:]:
    raise RuntimeError("it failed")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs the script, once for the same words, and gives what it printed and wrote."""
    path = tmp_path_factory.mktemp("witness")
    (path / "train.py").write_text(SCRIPT)

    @functools.cache
    def run(*words, is_checked=True, status=0):
        folder = path / f"{'-'.join(words)}-{is_checked}"
        folder.mkdir()
        order = WitnessOrder(folder=str(folder), iterations=3).to_variable()
        done = subprocess.run(
            [sys.executable, "train.py", *words],
            cwd=path,
            env={**os.environ, **(order if is_checked else {})},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout, read(records_file(folder, 0)), values_file(folder, 0)

    return run


@pytest.mark.parametrize("loop", ["steps", "epochs"])
def test_a_script_without_a_lab_tells_each_state(trained, loop):
    _, records, values = trained(loop)
    states = [one for one in records if isinstance(one, StateSeen)]
    assert [(one.version, one.is_end) for one in states] == [
        *((n, False) for n in range(5 if loop == "steps" else 4)),
        (4, True),
    ]
    known = set(states[-1].digests)
    assert {
        *("weight 0.weight", "buffer 1.running_mean", "optimizer's state of 0.weight.exp_avg"),
        *("optimizer's group 0.lr", "generator torch", "client_state.seen", "also['own']"),
    } <= known
    for name in ("weight 0.weight", "buffer 1.running_mean", "client_state.seen"):
        assert len({one.digests[name] for one in states}) == 5, name
    ended = [one for one in records if isinstance(one, Iteration)]
    assert [one.iteration for one in ended] == [1, 2, 3, 4]
    assert all(one.values["loss"] > 0 for one in ended)
    begun = [one for one in records if isinstance(one, IterationBegun)]
    assert len({one.inputs.batch for one in begun}) == 4
    kept = torch.load(values, weights_only=True)
    assert digest_of(kept["weight 0.weight"]) == states[-1].digests["weight 0.weight"]


def test_it_trains_as_ever_and_without_a_check_writes_nothing(trained):
    printed, _, _ = trained("steps")
    alone, nothing, values = trained("steps", is_checked=False)
    assert alone == printed
    assert nothing == []
    assert not values.exists()


def test_its_places_are_told_once_each(trained):
    _, records, _ = trained("steps")
    places = Counter((one.place, one.version) for one in records if isinstance(one, PlaceSeen))
    assert set(places.values()) == {1}
    assert {*places} >= {
        *(("update", n) for n in range(4)),
        *(("forward", n) for n in range(4)),
        *(("loop over", 2), ("loop begins", 2), ("loop over", 4), ("script over", 4)),
    }


def test_a_script_that_fails_has_no_end(trained):
    _, records, _ = trained("steps", "raise", status=1)
    assert not any(isinstance(one, StateSeen) and one.is_end for one in records)


class Cut:
    """ZeRO 3's partition of two weights, of which this rank has two elements and one."""

    def __init__(self, padding):
        self.master = torch.tensor([1.0, 2.0, padding, 3.0, padding])
        self.base = torch.optim.AdamW([self.master])
        self.base.state[self.master] = {"exp_avg": 2 * self.master, "step": torch.tensor(4.0)}

    def masters(self):
        return [self.master]

    def pieces(self, tensors):
        common = {"weight_offset": 0, "tensor": tensors[0]}
        yield WeightPiece(weight="a", tensor_offset=0, numel=2, **common)
        yield WeightPiece(weight="b", tensor_offset=3, numel=1, **common)


def test_what_lies_between_the_weights_of_a_partition_is_no_state():
    one, other = (dict(_of_partitions(Cut(padding))) for padding in (0.0, 7.0))
    assert one.keys() == other.keys() >= {"master weight a", "optimizer's state of b.exp_avg"}
    assert [name for name in one if digest_of(one[name]) != digest_of(other[name])] == []
    assert one["optimizer's state of b.exp_avg"].tolist() == [6.0]
    assert one["optimizer's state of b.step"].tolist() == 4.0


class Engine:
    """As much as a place needs."""

    global_rank, global_steps = 1, 2
    module = nn.Linear(1, 1)


def test_whole_weights_that_an_evaluation_leaves_are_the_state_that_shards_are(tmp_path):
    """FSDP2 keeps those of its root after a pass without gradients, until the next one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(nn.Linear(6, 2), mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.ones(3, 6)).sum().backward()
        optimizer.step()
        order = WitnessOrder(folder=str(tmp_path), iterations=9, kills=())
        looks = Witness(order, TorchEngine(model, optimizer), epoch=lambda: 1)
        before = {name: digest_of(value) for name, value in looks._pieces()}
        with torch.no_grad():
            model(torch.ones(3, 6))
        assert {name: digest_of(value) for name, value in looks._pieces()} == before
    finally:
        dist.destroy_process_group()


class Quiet:
    """A hook that does nothing."""

    counts, remarks = True, ()

    def begin_forward(self):
        pass

    before_writing = begin_forward

    def before_update(self):
        return 0.0

    def after_update(self, waited_s):
        pass


def test_a_schedules_second_pass_and_the_moment_between_two_steps_are_places(tmp_path):
    """Each is told in the iteration in which it is; a pass without gradients is none."""
    models = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    engine = TorchEngine(models, optimizers)
    looks = Witness(WitnessOrder(folder=str(tmp_path), iterations=9), engine, epoch=lambda: 1)
    hook_optimizer(engine, WitnessedSteps(looks, Quiet()))
    looks.watch_passes()
    for passes in (1, 2):
        for _ in range(passes):
            models[1](models[0](torch.ones(2, 4))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            models[0](torch.ones(2, 4))
    told = [one for one in read(records_file(tmp_path, 0)) if isinstance(one, PlaceSeen)]
    assert [(one.place, one.version) for one in told] == [
        *(("forward", 0), ("second pass", 0), ("update", 0), ("between steps", 0)),
        *(("evaluation", 1), ("forward", 1), ("second pass", 1), ("update", 1)),
        *(("between steps", 1), ("evaluation", 2)),
    ]


def test_one_model_with_one_pass_and_one_optimizer_has_neither(trained):
    _, records, _ = trained("steps")
    told = {one.place for one in records if isinstance(one, PlaceSeen)}
    assert told.isdisjoint({"second pass", "between steps"})


def witness(folder, *kills):
    order = WitnessOrder(folder=str(folder), iterations=9, kills=kills)
    return Witness(order, Engine(), epoch=lambda: 4)


def kill(number, place="update", **more):
    return Kill(number=number, place=place, **{"version": 2, "rank": 1, **more})


def test_who_is_to_be_killed_stands_still_once_and_says_so(tmp_path, monkeypatch):
    stood = []
    monkeypatch.setattr("gemini_lab.engine.witness.time.sleep", stood.append)
    made = witness(tmp_path, kill(1), kill(2, "evaluation"))
    made.reach("forward")
    assert stood == []
    with pytest.raises(GeminiError, match="was to kill rank 1 here, and has not done so"):
        made.reach("update")
    assert len(stood) == 1
    told = read(records_file(tmp_path, 1))
    assert [(one.number, one.epoch) for one in told if isinstance(one, Struck)] == [(1, 4)]
    again = witness(tmp_path, kill(1), kill(2, "evaluation"))  # the next start
    again.reach("update")
    with pytest.raises(GeminiError):
        again.reach("evaluation")
    assert len(stood) == 2


def test_what_is_before_the_loop_that_made_the_version_is_not_looked_at(tmp_path):
    made = witness(tmp_path)
    made._pieces = lambda: iter([("weight", 1.0)])
    made.is_early = lambda: True
    made.end_iteration()
    made.reach("loop over")
    assert read(records_file(tmp_path, 1)) == []
    made.is_early = lambda: False
    made.end_iteration()
    made.reach("loop over")
    state, place = read(records_file(tmp_path, 1))
    assert (state.version, place.place) == (2, "loop over")


def test_kills_of_one_version_keep_their_order_also_among_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("gemini_lab.engine.witness.time.sleep", lambda _: None)
    kills = kill(1, rank=0), kill(2, "evaluation")
    witness(tmp_path, *kills).reach("evaluation")  # not yet: rank 0 was not killed
    first = Struck(number=1, rank=0, epoch=1)
    append(records_file(tmp_path, 0), first)
    with pytest.raises(GeminiError):
        witness(tmp_path, *kills).reach("evaluation")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.tensor([0.0, -0.0])),
        (1, 1.0),
        ("1", 1),
        (None, 0),
        ([1, 2], (1, 2)),
    ],
)
def test_what_is_not_the_same_to_the_bit_has_another_digest(one, other):
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(one)
