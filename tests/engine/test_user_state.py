"""What a script names as `also` comes back in place, whatever kind of thing it is."""

import random
from collections import deque

import numpy as np
import pytest
import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.lr_scheduler import MultiStepLR
from torchmetrics import CatMetric, MeanMetric, MetricCollection, MetricTracker, SumMetric
from torchmetrics.classification import BinaryPrecision, BinaryRecall
from torchmetrics.wrappers import MinMaxMetric, Running

from gemini_lab.engine.state.user_state import OwnValues, keepsakes
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode


def after_a_step():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).backward()
    optimizer.step()
    return optimizer


class Beside(nn.Module):
    """Keeps what its `state_dict` does not say."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.memory = torch.zeros(2)

    def forward(self, batch):
        self.seen += batch
        self.memory = self.memory + batch


def test_what_a_dict_holds_stays_where_it_is_the_same():
    """A script names it when `protect` returns; at its loop's top, all is put back once more."""
    state = {"replay": [1], "n": 0}
    kept = keepsakes({"it": state})["it"]
    kept.put(decode(encode({"replay": [1, 2], "n": 2})))
    replay = state["replay"]
    kept.put(decode(encode({"replay": [1, 2], "n": 2})))
    assert state["replay"] is replay == [1, 2]


def test_what_a_dict_holds_is_refilled_where_a_script_has_another_name_for_it():
    losses, best = [], {"loss": 9.0}
    state = {"losses": losses, "best": best, "same": {"losses": losses}}
    kept = keepsakes({"it": state})["it"]
    kept.put(decode(encode({"losses": [1.0], "best": {"loss": 1.0}, "same": {"losses": [1.0]}})))
    assert state["losses"] is losses is state["same"]["losses"]
    assert state["best"] is best
    assert (losses, best) == ([1.0], {"loss": 1.0})
    apart = {"losses": [1.0], "best": best, "same": {"losses": [2.0]}}
    kept.put(decode(encode(apart)))
    assert state == apart


def test_a_tensor_in_a_dict_is_never_written_over():
    """The script may have put the model's own weights there, as the best ones so far."""
    weight = torch.zeros(2)
    state = {"best": {"weight": weight}}
    keepsakes({"it": state})["it"].put(decode(encode({"best": {"weight": torch.ones(2)}})))
    assert not weight.any()
    assert state["best"]["weight"].all()


class Sharing(nn.Module):
    """A part with the options of all parts."""

    def __init__(self, options):
        super().__init__()
        self.options = options


def test_options_that_parts_of_a_model_share_stay_shared():
    options = {"drop": 0.5}
    model = nn.Sequential(Sharing(options), Sharing(options))
    values = OwnValues(model)
    options["drop"] = 0.25
    kept = decode(encode(values.changed()))
    options["drop"] = 0.125
    values.put(kept)
    assert options == {"drop": 0.25}
    assert model[0].options is model[1].options is options


@pytest.mark.parametrize("which", [0, 1, 2])
def test_options_that_parts_shared_at_first_may_have_come_apart(which):
    def make():
        options = {"drop": 0.5}
        model = nn.Sequential(*(Sharing(options) for _ in range(3)))
        return model, OwnValues(model)

    model, values = make()
    model[which].options = {"drop": 0.25}
    kept = decode(encode(values.changed()))
    model, values = make()
    values.put(kept)
    assert [part.options["drop"] for part in model] == [
        0.25 if n == which else 0.5 for n in range(3)
    ]


def test_the_groups_and_the_state_of_an_optimizer_in_also_stay_where_a_script_holds_them():
    def make():
        weight, rate = torch.ones(3, requires_grad=True), torch.tensor(0.5)
        return weight, rate, torch.optim.SGD([weight], lr=rate, momentum=0.9)

    weight, rate, optimizer = make()
    weight.grad = torch.ones(3)
    optimizer.step()
    rate.fill_(0.25)
    kept = decode(encode(keepsakes({"it": optimizer})["it"].read()))
    weight, rate, optimizer = make()
    groups, group, state = optimizer.param_groups, optimizer.param_groups[0], optimizer.state
    keepsakes({"it": optimizer})["it"].put(kept)
    assert groups is optimizer.param_groups
    assert group is groups[0]
    assert group["lr"] is rate
    assert rate == 0.25
    assert state is optimizer.state
    assert state[weight]["momentum_buffer"].tolist() == [1.0] * 3


def add_up(metric):
    metric.update(torch.tensor([0.2, 0.8, 0.7]), torch.tensor([0, 1, 0]))


def with_groups():
    """Two metrics with the same states, which the first one alone adds up from then on."""
    both = MetricCollection([BinaryPrecision(), BinaryRecall()])
    for _ in range(3):
        add_up(both)
    return both


THINGS = {
    "torch": (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(3, generator=g)),
    "numpy": (lambda: np.random.default_rng(1), lambda g: g.random(3)),
    "numpy, Mersenne": (lambda: np.random.Generator(np.random.MT19937(1)), lambda g: g.random(3)),
    "numpy, older": (lambda: np.random.RandomState(1), lambda g: g.rand(3)),
    "Python": (lambda: random.Random(1), lambda g: g.gauss(0, 1)),
    "dict": (lambda: {"best": 3}, lambda kept: kept.setdefault("seen", kept.pop("best"))),
    "module": (lambda: nn.BatchNorm1d(2), lambda norm: norm(torch.rand(4, 2))),
    "beside": (Beside, lambda module: module(torch.ones(2))),
    "metric": (MeanMetric, lambda mean: mean.update(3.0)),
    "metric in a list": (CatMetric, lambda cat: cat.update(3.0)),
    "metric of the newest": (lambda: Running(SumMetric(), 2), lambda newest: newest.update(3.0)),
    "metric with extremes": (
        lambda: MinMaxMetric(MeanMetric()),
        lambda mean: (mean.update(3.0), mean.compute()),
    ),
    "metrics": (with_groups, add_up),
    "optimizer": (after_a_step, lambda optimizer: optimizer.step()),
}


@pytest.mark.parametrize(("make", "use"), THINGS.values(), ids=THINGS)
def test_a_thing_takes_its_state_on_again(make, use):
    thing = make()
    one = keepsakes({"thing": thing})["thing"]
    before = encode(one.read())
    use(thing)
    assert encode(one.read()) != before
    one.put(decode(before))
    assert encode(one.read()) == before


def test_metrics_that_share_what_they_add_up_say_the_same_in_a_new_process():
    running, fresh = with_groups(), MetricCollection([BinaryPrecision(), BinaryRecall()])
    state = keepsakes({"both": running})["both"].read()
    keepsakes({"both": fresh})["both"].put(decode(encode(state)))
    for both in (running, fresh):
        add_up(both)
    assert fresh.compute() == running.compute()


def test_what_a_metric_had_worked_out_goes_with_what_is_put_back():
    mean = MeanMetric()
    one = keepsakes({"mean": mean})["mean"]
    mean.update(1.0)
    before = encode(one.read())
    mean.update(3.0)
    assert mean.compute() == 2
    one.put(decode(before))
    assert mean.compute() == 1


def test_a_tracker_that_makes_metrics_on_the_way_is_refused():
    with pytest.raises(UnsupportedError, match="MetricTracker makes"):
        keepsakes({"tracker": MetricTracker(MeanMetric(), maximize=True)})


@pytest.fixture
def mesh():
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_shard_of_another_number_of_ranks_is_refused(mesh):
    averages = {"weight": DTensor.from_local(torch.ones(3, 2), mesh, [Shard(0)])}
    keepsake = keepsakes({"averages": averages})["averages"]
    kept = decode(encode(keepsake.read()))
    averages["weight"] = DTensor.from_local(torch.zeros(2, 2), mesh, [Shard(0)])
    with pytest.raises(ConfigError, match=r"shard of 'weight' is \[2, 2\] now, and \[3, 2\] in"):
        keepsake.put(kept)


def test_a_generator_draws_the_same_again():
    generator = np.random.default_rng(5)
    one = keepsakes({"rng": generator})["rng"]
    state = decode(encode(one.read()))
    drawn = generator.random(4).tolist()
    one.put(state)
    assert generator.random(4).tolist() == drawn


def test_only_what_is_made_of_updates_counts_until_the_next_forward_pass():
    kinds = keepsakes({"ema": nn.Linear(1, 1), "rng": random.Random(1), "counts": {}})
    assert [one.is_made for one in kinds.values()] == [True, False, False]


def test_an_optimizer_has_room_for_what_it_makes_at_its_first_step():
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.Adam([weight])
    room_bytes = keepsakes({"optimizer": optimizer})["optimizer"].room_bytes
    weight.grad = torch.ones(1000)
    optimizer.step()
    assert room_bytes <= 3 * weight.nbytes
    assert len(encode(optimizer.state_dict())) < room_bytes + 4096


def test_a_second_engine_is_refused_with_two_ways_out():
    engine = object.__new__(DeepSpeedEngine)
    with pytest.raises(
        UnsupportedError, match=r"also=\{'critic': .*second DeepSpeed engine.*parts"
    ):
        keepsakes({"critic": engine})


def test_what_has_no_state_is_refused_by_its_name():
    with pytest.raises(ConfigError, match=r"also=\{'loss': \.\.\.\} is a float; give a generator"):
        keepsakes({"loss": 1.5})


def as_sharded(one):
    """The same with a class of torch's in front of its own, as `fully_shard` leaves it."""
    kind = type(one)
    one.__class__ = type(kind.__name__, (kind,), {"__module__": "torch.distributed.fsdp"})
    return one


class Counting(nn.Module):
    """An average whose decay follows a count, beside a number of its own process."""

    def __init__(self, rank):
        super().__init__()
        self.mean, self.updates, self.rank = nn.Parameter(torch.zeros(3)), 0, rank
        self.has_begun, self.phase, self.recent = False, "warm", deque([rank], maxlen=2)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(3, momentum=0.5)
        self.queue_fd = rank

    def pass_on(self):
        self.updates, self.has_begun, self.phase = self.updates + 1, True, "hot"
        self.recent.append(self.updates)
        self.drop.p, self.norm.momentum = self.drop.p / 2, self.norm.momentum / 2
        self.milestones = {"first": self.updates}
        self.queue_fd += 8


def values_of(one):
    own = one.updates, one.has_begun, one.phase, [*one.recent], one.milestones
    return *own, one.recent.maxlen, one.drop.p, one.norm.momentum


@pytest.mark.parametrize("wrap", [lambda one: one, nn.Sequential, as_sharded])
def test_values_that_a_module_changes_come_back_and_others_stay(wrap):
    before, after = Counting(rank=1), Counting(rank=2)
    kept, anew = (OwnValues(wrap(one)) for one in (before, after))
    fresh = kept.changed()
    before.pass_on()
    state = decode(encode(kept.changed()))
    before.pass_on()
    kept.put(state)  # as where training goes back
    anew.put(state)
    assert values_of(before) == values_of(after)
    assert (after.updates, after.rank, after.queue_fd) == (1, 2, 2)
    assert encode(anew.changed()) == encode(kept.changed()) == encode(state)
    recent = before.recent
    kept.put(state)  # as in a rehearsal
    assert before.recent is recent
    kept.put(fresh)
    assert (before.updates, before.has_begun, [*before.recent]) == (0, False, [1])


class Turning(nn.Module):
    """Angles for positions, made for as many as were asked for, as rotary embeddings have them."""

    def __init__(self, keep, scale=1):
        super().__init__()
        self.length, self.keep, self.scale = 0, keep, scale

    def grow(self, length):
        if length > self.length:
            self.length = length
            self.keep(self, torch.arange(self.scale * length, dtype=torch.float32))
        return self.angles[:length].sum()


def in_an_attribute(part, angles):
    part.angles = angles


def in_a_buffer(part, angles):
    part.register_buffer("angles", angles, persistent=False)


@pytest.mark.parametrize(("keep", "scale"), [(in_an_attribute, 2**17), (in_a_buffer, 1)])
def test_a_length_is_left_alone_whose_tensors_no_version_has(keep, scale):
    before, after = Turning(keep, scale), Turning(keep, scale)
    kept, anew = OwnValues(nn.Sequential(before)), OwnValues(nn.Sequential(after))
    wanted = before.grow(5)
    assert kept.changed() == {}
    (left,) = kept.left_out
    assert left.startswith("'length' of a Turning, which also has tensors")
    anew.put(kept.changed())
    assert after.grow(5) == wanted
    kept.put({})  # as where training goes back
    assert before.grow(5) == wanted


class Recurrent(nn.Module):
    """Takes its hidden state from batch to batch, beside a view of its weights."""

    def __init__(self, size=3):
        super().__init__()
        self.cell = nn.LSTM(2, size)
        self.hidden = tuple(torch.zeros(1, 4, size) for _ in range(2))
        self.first, self.last, self.passes = self.cell.weight_hh_l0.data[:1], None, 0

    def forward(self, batch):
        out, self.hidden = self.cell(batch, tuple(one.detach() for one in self.hidden))
        self.last, self.passes = {"out": out.detach()}, self.passes + 1
        return out


def test_the_hidden_state_of_a_recurrent_model_comes_back():
    before, after = Recurrent(), Recurrent()
    after.load_state_dict(before.state_dict())
    kept, anew = OwnValues(before), OwnValues(after)
    before(torch.ones(5, 4, 2))
    state = decode(encode(kept.changed()))
    wanted, inside = before(torch.ones(5, 4, 2)), after.hidden[0]
    anew.put(state)
    assert torch.equal(after(torch.ones(5, 4, 2)), wanted)
    assert inside.any()  # in place: others may hold it
    kept.put(state)  # as where training goes back
    assert torch.equal(before(torch.ones(5, 4, 2)), wanted)
    assert kept.left_out == anew.left_out == set()


def test_a_tensor_that_a_part_has_by_two_names_stays_one_unless_it_came_apart():
    def make():
        part = Recurrent()
        part.one = part.same = part.other = torch.zeros(2)
        return part, OwnValues(part)

    before, kept = make()
    before.one.add_(1)
    before.other = torch.full((2,), 5.0)
    after, anew = make()
    anew.put(decode(encode(kept.changed())))
    assert [part.tolist() for part in (after.one, after.other)] == [[1.0, 1.0], [5.0, 5.0]]
    assert after.same is after.one


def test_a_view_of_weights_stays_one_and_an_unchanged_tensor_is_not_read():
    model = nn.Sequential(Recurrent())
    kept = OwnValues(model)
    assert kept.changed() == {}
    with torch.no_grad():
        model[0].cell.weight_hh_l0.fill_(7.0)
    assert kept.changed() == {}
    kept.put({})
    assert model[0].first.eq(7.0).all()
    model[0].hidden[1].add_(1)
    assert [*kept.changed()["0"]] == ["hidden"]


def test_a_hidden_state_without_room_is_named_once_it_changes_and_a_cache_is_not():
    model = Recurrent()
    kept = OwnValues(model)
    kept.room_bytes = 100
    model.cache = torch.ones(64)
    assert kept.changed() == {}
    assert kept.left_out == set()
    model.hidden[0].add_(1)
    assert kept.changed() == {}
    (text,) = kept.left_out
    assert text.startswith("'hidden' of a Recurrent, which also has tensors")


def test_parts_that_a_model_is_given_and_attributes_that_come_later_are_found():
    before, after = (nn.ModuleList([Counting(rank=0)]) for _ in range(2))
    kept, anew = OwnValues(before), OwnValues(after)
    for model in (before, after):
        model.append(Counting(rank=0))
    before[0].later = 3
    before[1].pass_on()
    anew.put(decode(encode(kept.changed())))
    assert after[0].later == 3
    assert values_of(after[1]) == values_of(before[1])


def test_values_for_which_there_is_no_room_are_named():
    parts = [Counting(rank=0) for _ in range(3)]
    values = OwnValues(nn.ModuleList(parts))
    for one in parts:
        one.phase = "x" * 15_999  # as much as a thousand numbers
        one.texts = ["x" * 15_000] * 5
    kept = values.changed()
    assert len(encode(kept)) < 2**17
    assert values.left_out
    assert all("too many values" in one for one in values.left_out)


@pytest.mark.parametrize("wrap", [lambda one: one, nn.Sequential])
def test_a_module_in_also_comes_back_with_its_values(wrap):
    before, after = Counting(rank=1), Counting(rank=2)
    kept, anew = (keepsakes({"it": wrap(one)})["it"] for one in (before, after))
    before.pass_on()
    anew.put(decode(encode(kept.read())))
    assert values_of(before) == values_of(after)
    assert after.rank == 2


def test_an_optimizer_in_also_finds_the_gradients_of_zeros_that_it_had():
    """It makes an update of these, and none where there is no gradient."""
    heads = [[torch.ones(3, requires_grad=True) for _ in range(3)] for _ in range(2)]
    optimizers = [torch.optim.AdamW(one, lr=0.1, weight_decay=0.5) for one in heads]
    kept, anew = (keepsakes({"it": one})["it"] for one in optimizers)
    (heads[0][0] * 2 + heads[0][1] * 3).sum().backward()
    optimizers[0].step()
    optimizers[0].zero_grad(set_to_none=False)
    state = decode(encode(kept.read()))
    for head, other in zip(*heads, strict=True):
        other.data.copy_(head.data)
    anew.put(state)
    for head, optimizer in zip(heads, optimizers, strict=True):
        head[0].grad = torch.ones(3)
        optimizer.step()
    assert all(map(torch.equal, *heads))
    assert heads[1][2].grad is None


def test_a_version_that_says_only_what_a_state_dict_does_is_refused():
    """As versions were before what is beside it was kept: the rest would be empty."""
    thing = Beside()
    with pytest.raises(ConfigError, match="only the state_dict of a Beside"):
        keepsakes({"thing": thing})["thing"].put(thing.state_dict())


def test_a_schedule_in_steps_comes_back_with_its_milestones():
    """MultiStepLR counts them in a Counter; beside another one of its kind it goes on alike."""
    schedules = [MultiStepLR(after_a_step(), [1, 2, 2], gamma=0.5) for _ in range(2)]
    schedules[0].optimizer.step()
    schedules[0].step()
    state = decode(encode(keepsakes({"it": schedules[0]})["it"].read()))
    keepsakes({"it": schedules[1]})["it"].put(state)
    schedules[1].optimizer.param_groups[0]["lr"] = schedules[0].get_last_lr()[0]
    rates = []
    for one in schedules:
        one.optimizer.step()
        one.step()
        rates.append(one.get_last_lr())
    assert rates == [[0.001 * 0.5**3]] * 2
