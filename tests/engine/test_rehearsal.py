"""What could not be loaded back is refused before there is a failure; trying it changes nothing."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from gemini_lab.engine.frameworks.torch_engine import TorchEngine, left_out
from gemini_lab.engine.random_states import random_states
from gemini_lab.engine.state import rehearsal
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import encode


class Holding(nn.Module):
    """A layer with a buffer."""

    def __init__(self, buffer):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("places", buffer)

    def forward(self, features):
        return self.layer(self.layer(features + self.places[0]).tanh())


class Wide(torch.optim.Optimizer):
    """Keeps fp32 means of weights of any type, which torch's own loading casts."""

    def __init__(self, weights):
        super().__init__(weights, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros(weight.shape))
                mean.mul_(0.9).add_(weight.grad.float(), alpha=0.1)
                weight.sub_(mean.to(weight.dtype), alpha=group["lr"])


class Spread(torch.optim.SGD):
    """Keeps one number as a tensor of a weight's shape."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("scale", torch.ones(1).expand_as(weight))
        return super().step(closure)


class Kept:
    """What a script names; it goes wrong in one way."""

    def __init__(self, put=None):
        self.values, self.start, self.put = torch.arange(3.0), 0, put

    def state_dict(self):
        return {"values": self.values, "start": 5, "read": time.perf_counter_ns()}

    def load_state_dict(self, state):
        self.start = state["start"]  # where it is to begin next, as samplers have it
        self.values = state["values"] if self.put is None else self.put(state["values"])


def made(model=None, optimizer=None, **script):
    model = Holding(torch.zeros(3, 4)) if model is None else model
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    return EngineState(TorchEngine(model, optimizer), script=ScriptState(**script))


def rehearse(state):
    room = bytearray(state.layout.payload_bytes)
    state.rehearse(room)
    return room


def train(state, steps=1):
    engine = state.framework.engine
    for _ in range(steps):
        engine.optimizer.zero_grad()
        engine.module(torch.ones(2, 4)).square().mean().backward()
        engine.optimizer.step()


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(1, 4).expand(3, 4),
        torch.zeros(6).as_strided((3, 4), (1, 1)),
    ],
    ids=["expanded", "overlapping"],
)
def test_a_buffer_whose_elements_share_memory_is_refused_by_its_name(buffer):
    with pytest.raises(UnsupportedError, match=r"buffer 'places' has elements that share.*\.clone"):
        rehearse(made(Holding(buffer)))


def test_a_buffer_that_lies_in_another_order_but_shares_nothing_comes_back():
    interleaved = torch.zeros(12).as_strided((3, 4), (4, 1)).t().contiguous().t()
    odd = torch.zeros(10).as_strided((2, 3), (3, 2))  # which strides alone do not tell
    for buffer in (interleaved, odd):
        rehearse(made(Holding(buffer.expand(1, *buffer.shape)[0] if buffer is odd else buffer)))


def test_a_weight_or_a_state_whose_elements_share_memory_is_refused_by_its_name():
    model = Holding(torch.zeros(3, 4))
    model.layer.bias = nn.Parameter(torch.zeros(1).expand(4))
    with pytest.raises(UnsupportedError, match=r"'parameter.data' that has elements that share"):
        made(model)
    other = Holding(torch.zeros(3, 4))
    with pytest.raises(UnsupportedError, match="Spread has a tensor 'scale' that has elements"):
        made(other, Spread(other.parameters(), lr=0.1))


def test_a_state_that_is_spread_over_one_number_later_is_refused_by_its_name():
    state = made()
    train(state)
    layer, optimizer = state.framework.module.layer, state.framework.optimizer
    optimizer.state[layer.weight]["exp_avg"] = torch.zeros(1).expand(4, 4)
    with pytest.raises(UnsupportedError, match=r"exp_avg of layer.weight has elements that share"):
        rehearse(state)


def test_an_optimizer_whose_loading_rounds_its_state_is_refused_once_it_has_some():
    """Its weights are narrower than its state, and torch casts that to their type."""
    critic = nn.Linear(4, 4).to(torch.bfloat16)
    second = Wide(critic.parameters())
    state = made(also={"critic": critic, "its optimizer": second})
    rehearse(state)
    critic(torch.randn(2, 4).bfloat16()).square().mean().backward()
    second.step()
    before = second.state[critic.weight]["mean"].clone()
    words = r"its optimizer.*\['mean'\].*float32 \[4, 4\] became bfloat16 \[4, 4\].*type of its"
    with pytest.raises(UnsupportedError, match=words):
        rehearse(state)
    assert torch.equal(second.state[critic.weight]["mean"], before)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lambda values: values + 1e-7, "'kept': .*'values'.* became other values"),
        (lambda values: values.double(), r"float32 \[3\] became float64"),
        (lambda values: values.missing, r"'kept': .*cannot be put back.*AttributeError"),
    ],
)
def test_what_a_script_names_and_does_not_take_back_as_it_was_is_refused(put, words):
    with pytest.raises(UnsupportedError, match=words):
        rehearse(made(also={"kept": Kept(put)}))


def test_the_same_is_found_after_a_recovery():
    """As in a start of a script whose object has learned to round since."""
    payload = rehearse(made(also={"kept": Kept()}))
    with pytest.raises(UnsupportedError, match=r"'values'.* became other values"):
        made(also={"kept": Kept(lambda values: values / 3 * 3 + 1e-7)}).load(payload)


def test_a_tensor_that_changes_what_is_copied_into_it_is_found_by_its_name():
    state = made()
    train(state)
    payload = rehearse(state)
    moments = state.framework.optimizer.state[state.framework.module.layer.weight]
    moments["exp_avg"] = moments["exp_avg_sq"]  # one memory for both
    with pytest.raises(UnsupportedError, match=r"exp_avg of 'layer.weight' is not what was put"):
        state.load(payload)


def test_a_rehearsal_leaves_everything_to_whoever_holds_it():
    critic = nn.Linear(4, 4)
    second = torch.optim.AdamW(critic.parameters())
    critic(torch.ones(1, 4)).sum().backward()
    second.step()
    kept = Kept()
    state = made(also={"critic": critic, "its optimizer": second, "kept": kept})
    train(state, steps=2)
    module, optimizer = state.framework.module, state.framework.optimizer
    held = [
        *module.parameters(),
        *(value for one in optimizer.state.values() for value in one.values()),
        *(value for one in second.state.values() for value in one.values()),
        *(group for one in (optimizer, second) for group in one.param_groups),
        *(one.state[weight] for one in (optimizer, second) for weight in one.state),
        kept.values,
    ]
    before = encode([[t.detach() if isinstance(t, torch.Tensor) else 0 for t in held]])
    states = encode(random_states())
    gradients = [weight.grad for weight in module.parameters()]
    loss = module(torch.ones(2, 4)).square().mean()  # computed ahead of the loop's top
    rehearse(state)
    after = [
        *module.parameters(),
        *(value for one in optimizer.state.values() for value in one.values()),
        *(value for one in second.state.values() for value in one.values()),
        *(group for one in (optimizer, second) for group in one.param_groups),
        *(one.state[weight] for one in (optimizer, second) for weight in one.state),
        kept.values,
    ]
    assert [*map(id, after)] == [*map(id, held)]
    assert encode([[t.detach() if isinstance(t, torch.Tensor) else 0 for t in after]]) == before
    assert encode(random_states()) == states
    assert [id(weight.grad) for weight in module.parameters()] == [*map(id, gradients)]
    assert kept.start == 0  # a sampler would begin its next epoch there
    loss.backward()


def test_what_is_drawn_goes_on_as_if_there_had_been_no_rehearsal():
    draws = [np.random.default_rng(3), torch.Generator().manual_seed(3), random.Random(3)]
    again = [np.random.default_rng(3), torch.Generator().manual_seed(3), random.Random(3)]
    rehearse(made(also={f"draws {n}": one for n, one in enumerate(draws)}))
    for ours, theirs in ((draws, again),):
        assert ours[0].random() == theirs[0].random()
        assert torch.equal(torch.rand(3, generator=ours[1]), torch.rand(3, generator=theirs[1]))
        assert ours[2].random() == theirs[2].random()


def test_parameters_beside_the_model_are_said_to_come_back_without_their_buffers():
    model, criterion = nn.Linear(4, 4), Holding(torch.zeros(3, 4))
    engine = TorchEngine(model, torch.optim.SGD([*model.parameters(), *criterion.parameters()]))
    (said,) = left_out(engine)
    assert "trains 2 parameters that are no part of model=" in said
    assert not [*left_out(engine, [criterion])]


# -- between ranks ---------------------------------------------------------------------------------


def losses(server, folder, ranks=3, **case):
    folder.mkdir()
    found = server.run(folder, case=case, plain=True, ranks=ranks)
    return [one["losses"] for one in found], [one["compiled"] for one in found]


@pytest.mark.parametrize(
    "case",
    [
        {"parallel": "DDP", "optimizer": "AdamW", "compiles": True},
        {"parallel": "DDP", "optimizer": "momentum", "critic": True, "accumulation": 2},
        {"parallel": "FSDP2", "optimizer": "AdamW"},
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_a_run_has_the_numbers_and_graphs_of_one_that_is_not_protected(server, tmp_path, case):
    protected = losses(server, tmp_path / "one", **case)
    assert protected == losses(server, tmp_path / "other", unprotected=True, **case)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_engine_that_rehearses_at_every_version_has_the_same_numbers(server, tmp_path, stage):
    case = {"stage": stage, "optimizer": "Adam", "accumulation": 2}
    found = []
    for rehearses in (False, True):
        ranks = server.run(tmp_path, case=case, seed=1, rehearses=rehearses)
        found.append([one["updates"] for one in ranks])
    assert found[0] == found[1]


def test_where_one_rank_cannot_load_all_of_them_are_told(server, tmp_path):
    case = {"parallel": "DDP", "optimizer": "SGD", "halved": True}
    with pytest.raises(RuntimeError) as caught:
        server.run(tmp_path, case=case, plain=True, ranks=3)
    text = str(caught.value)
    assert "UnsupportedError: also={'halved': ...} cannot be put back from a version (KeyE" in text
    assert text.count("rank 1 refuses, so all ranks end: also={'halved': ...} cannot be put") >= 2


@pytest.mark.parametrize("before", ["backward", "step", "twice"])
def test_gradients_before_protect_do_not_change_what_comes_back(server, tmp_path, before):
    """DDP has laid its buckets out by then, in the order of those gradients."""
    case = {"parallel": "DDP", "optimizer": "AdamW", "before": before}
    whole = server.run(tmp_path, case=case, plain=True, ranks=3, wanted=[0, 3])
    for version in (0, 3):
        resumed = server.run(tmp_path, case=case, plain=True, ranks=3, seed=50, load=version)
        for one, other in zip(whole, resumed, strict=True):
            later = {n: loss for n, loss in one["losses"].items() if int(n) > version}
            assert other["losses"] == later
    plain, _ = losses(server, tmp_path / "plain", unprotected=True, **case)
    assert [one["losses"] for one in whole] == plain


@pytest.mark.parametrize("before", [None, "step"])
def test_a_state_whose_form_follows_the_weights_values_comes_back(server, tmp_path, before):
    case = {"parallel": "DDP", "optimizer": "FromStart", "zeros": True, "before": before}
    whole = server.run(tmp_path, case=case, plain=True, ranks=2, wanted=[3])
    resumed = server.run(tmp_path, case=case, plain=True, ranks=2, load=3)
    for one, other in zip(whole, resumed, strict=True):
        assert other["losses"] == {n: loss for n, loss in one["losses"].items() if int(n) > 3}


# -- ZeRO 3 and weights that a step leaves out -----------------------------------------------------


@pytest.mark.parametrize("offload", [{}, {"offload_optimizer": {"device": "cpu"}}])
@pytest.mark.parametrize(("stage", "keeps"), [(2, None), (3, True)])
def test_layers_that_some_steps_leave_out_come_back(server, tmp_path, stage, keeps, offload):
    keeps = bool(offload) if keeps is None else keeps  # stages 1 and 2 keep what they offload
    block = {"config": {"gemini": {"keep_gradients": keeps}}, "zero": offload}
    case = {"stage": stage, "optimizer": "Adam", "skips": True, **block}
    whole = server.run(tmp_path, case=case, seed=1, capture_at=3)
    resumed = server.run(tmp_path, case=case, seed=99, load=True)
    for before, after in zip(whole, resumed, strict=True):
        assert after["updates"] == before["updates"][3:]
        assert before["notices"] == []


@pytest.mark.parametrize(
    ("stage", "offload"), [(3, {}), (2, {"offload_optimizer": {"device": "cpu"}})]
)
def test_gradients_that_are_taken_again_are_told_before_anything_fails(
    server, tmp_path, stage, offload
):
    case = {"stage": stage, "optimizer": "Adam", "skips": True, "zero": offload}
    whole = server.run(tmp_path, case=case, seed=1, capture_at=3)
    (said,) = whole[0]["notices"]
    assert "left out weights (middle.weight...) that had a gradient" in said
    assert '"keep_gradients": true' in said
    resumed = server.run(tmp_path, case=case, seed=99, load=True)
    assert resumed[0]["updates"] != whole[0]["updates"][3:]  # or the sentence has to go


def test_gradients_of_several_micro_batches_that_are_offloaded_are_refused(server, tmp_path):
    block = {"config": {"gemini": {"keep_gradients": True}}}
    zero = {"offload_optimizer": {"device": "cpu"}}
    case = {"stage": 3, "optimizer": "Adam", "accumulation": 2, "zero": zero, **block}
    with pytest.raises(RuntimeError, match="keep_gradients does not go with an offload and 2 mic"):
        server.run(tmp_path, case=case, seed=1)


def test_what_is_another_one_is_found_at_its_place_whatever_is_compared_at_a_time(monkeypatch):
    monkeypatch.setattr(rehearsal, "COMPARED_BYTES", 8)
    then = torch.arange(40, dtype=torch.uint8)
    pieces = [(0, then[:20].clone().view(torch.float32)), (20, then[20:].clone().view(torch.int16))]
    layout = SimpleNamespace(pieces=())
    rehearsal.require_put_back(then, layout, pieces)
    at = []
    monkeypatch.setattr(rehearsal, "_at", lambda _, offset: at.append(offset) or "it")
    for place in (0, 7, 8, 19, 20, 39):
        other = then.clone()
        other[place] += 1
        with pytest.raises(UnsupportedError, match="it is not what was put back there"):
            rehearsal.require_put_back(other, layout, pieces)
    assert at == [0, 7, 8, 19, 20, 39]


class InTurns(nn.Module):
    """Two heads, of which each pass has one."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))


def train_head(state, number, **how):
    model, optimizer = state.framework.module, state.framework.optimizer
    model.heads[number](torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(**how)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_weight_without_a_part_in_a_pass_is_updated_as_if_nothing_had_failed(to_none):
    """A gradient that was zeroed is zeros, of which an optimizer makes an update: it decays."""
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = InTurns()
        how = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        states.append(made(model, how))
    for number in (0, 1, 0):
        train_head(states[0], number, set_to_none=to_none)
    room = rehearse(states[0])
    states[1].load(room)
    for state in states:
        train_head(state, 0, set_to_none=to_none)
    then, now = (encode([*one.framework.module.parameters()]) for one in states)
    assert then == now
    assert states[1].framework.module.heads[2].weight.grad is None


def test_a_rehearsal_leaves_gradients_as_they_are():
    state = made()
    train(state)
    gradient = state.framework.module.layer.weight.grad
    before = gradient.clone()
    rehearse(state)
    assert state.framework.module.layer.weight.grad is gradient
    assert torch.equal(gradient, before)
