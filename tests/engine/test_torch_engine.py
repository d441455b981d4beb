"""What plain PyTorch can be that is not kept exactly is refused in sentences; steps are counted."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import prune
from torch.optim.lr_scheduler import ExponentialLR

import gemini_lab
from gemini_lab.engine.arguments import as_engine
from gemini_lab.engine.frameworks.torch_engine import TorchEngine, hook_optimizer, left_out
from gemini_lab.engine.state import small_state
from gemini_lab.engine.state.engine_state import EngineState, framework_of
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import ConfigError, GeminiError, UnsupportedError
from gemini_lab.shard.codec import encode


@pytest.fixture
def group():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def framework(model, optimizer):
    return framework_of(TorchEngine(model, optimizer))


class Beside(torch.optim.SGD):
    """Keeps an average where nobody looks for it."""

    def __init__(self, weights, hide=lambda averages: averages):
        super().__init__(weights, lr=0.1)
        self.averages = hide([torch.zeros(3)])


HIDDEN = [
    lambda averages: [averages, averages],
    lambda averages: {"slow": {"all": (averages,)}},
    lambda averages: SimpleNamespace(all=[averages]),
    lambda averages: {"slow": SimpleNamespace(inner=SimpleNamespace(all={"a": averages}))},
]
"""Ways in which an optimizer may have tensors in an attribute."""


class Outer(torch.optim.SGD):
    """Leaves the work to another one, as sharpness-aware optimizers do."""

    def __init__(self, model, hide=lambda inner: inner):
        super().__init__(model.parameters(), lr=0.1)
        self.inner = hide(sgd(model))


class SlowWeights:
    """A lookahead that is called after each step."""

    def __init__(self, weights):
        self.slow = [one.detach().clone() for one in weights]

    def mix(self, *_):
        pass


def hooked(model):
    """An optimizer with slow weights in a hook."""
    optimizer = sgd(model)
    optimizer.register_step_post_hook(SlowWeights(model.parameters()).mix)
    return optimizer


class Recording(torch.optim.SGD):
    """Keeps a list of tensors for each weight."""

    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["history"] = [weight.clone()]


class Narrow(torch.Tensor):
    """Made of a tensor of 8 bits, as torchao's optimizer states are."""

    @staticmethod
    def __new__(cls, codes):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape)

    def __init__(self, codes):
        self.codes = codes

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        return cls(args[0].codes)


class Narrowing(torch.optim.SGD):
    """Keeps states of 8 bits."""

    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["exp_avg"] = Narrow(torch.zeros(weight.shape, dtype=torch.uint8))


class ZeroRedundancyOptimizer(torch.optim.SGD):
    """Stands for torch's, whose import warns and takes seconds."""


def in_fsdp1(model):
    """As FSDP1 wraps a model, which it does on accelerators alone."""
    wrapped = object.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped._fsdp_wrapped_module = model
    return nn.Sequential(wrapped)


def with_powersgd(model):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(PowerSGDState(None, 1), powerSGD_hook)
    return ddp


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("wrap", "make", "words"),
    [
        (in_fsdp1, sgd, r"\(FSDP1\); shard it with FSDP2: .*fully_shard\(model\)"),
        (replicate, sgd, r"replicate\(\) was called with it; wrap it in DistributedDataParallel"),
        (nn.Sequential, Outer, "another optimizer inside .'inner'.*; use one that keeps all of it"),
        *(
            (
                nn.Sequential,
                lambda m, hide=hide: Outer(m, hide),
                "another optimizer inside .'inner'",
            )
            for hide in HIDDEN
        ),
        (
            nn.Sequential,
            lambda m: Outer(m, lambda _: Outer(m)),
            "another optimizer inside .'inner'",
        ),
        (DataParallel, sgd, "DataParallel; use DistributedDataParallel"),
        (
            DistributedDataParallel,
            lambda m: ZeroRedundancyOptimizer(m.parameters(), lr=0.1),
            "ZeroRedundancyOptimizer shares out state by itself; use a torch optimizer",
        ),
        (
            lambda m: DistributedDataParallel(m, static_graph=True),
            sgd,
            "static_graph=True.*; leave static_graph out",
        ),
        (with_powersgd, sgd, r"hook powerSGD_hook keeps state of its own \(PowerSGDState\); use"),
        (lambda m: m.to("meta"), sgd, "is a meta tensor.*; use dense parameters"),
        (
            lambda m: nn.Sequential(DistributedDataParallel(m)),
            sgd,
            "is around parts of it; wrap the model as a whole",
        ),
        (
            nn.Sequential,
            lambda m: torch.optim.LBFGS(m.parameters()),
            "LBFGS cannot be foreseen: a step on a stand-in .* failed .*closure.*; use an opt",
        ),
        (
            nn.Sequential,
            lambda m: Beside(m.parameters()),
            "in its attribute 'averages', outside its",
        ),
        *(
            (
                nn.Sequential,
                lambda m, hide=hide: Beside(m.parameters(), hide),
                "in its attribute 'averages', outside its",
            )
            for hide in HIDDEN
        ),
        (nn.Sequential, hooked, "in its attribute '_optimizer_step_post_hooks', outside its"),
        (
            nn.Sequential,
            lambda m: Recording(m.parameters(), lr=0.1),
            "keeps 'history' of a parameter as a list, which is no tensor or number; use an opt",
        ),
        (
            nn.Sequential,
            lambda m: Narrowing(m.parameters()),
            "keeps 'exp_avg' as a Narrow, which has no memory of its own.*; use an opt",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_could_not_be_put_back_is_refused_with_the_way_out(wrap, make, words):
    model = wrap(nn.Linear(3, 2))
    with pytest.raises(UnsupportedError, match=words):
        framework(model, make(model))


@pytest.mark.usefixtures("group")
def test_models_in_ddp_over_different_ranks_are_refused():
    groups = [dist.new_group([0]) for _ in range(2)]
    models = [DistributedDataParallel(nn.Linear(2, 2), process_group=group) for group in groups]
    optimizers = [sgd(model) for model in models]
    with pytest.raises(UnsupportedError, match=r"in DDP over different ranks.*; wrap all of them"):
        TorchEngine(models, optimizers)


class Wrapped:
    """As Accelerate wraps an optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "protect was given an optimizer= alone"),
        ({"optimizer": None}, "protect was given a model= alone"),
        ({"model": None, "optimizer": None}, "protect was given nothing; give what"),
        ({"model": [1]}, "model= is an int; give the nn.Module"),
        ({"model": []}, "model= is a list of 0"),
        ({"optimizer": "Adam"}, "optimizer= is a str; give one torch.optim.Optimizer"),
        ({"optimizer": Wrapped(sgd(nn.Linear(1, 1)))}, "is a Wrapped; give its `.optimizer`"),
        ({"optimizer": sgd(nn.Linear(1, 1))}, "holds none of the parameters of model="),
        ({"step": -1}, "`step` must be from 0 on: a whole number"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_arguments_of_the_wrong_kind_are_refused_with_what_to_give(change, words):
    model = nn.Linear(1, 1)
    given = {"model": model, "optimizer": sgd(model), "settings": None, "step": 0, **change}
    with pytest.raises(ConfigError, match=words):
        as_engine(None, **given)


@pytest.mark.filterwarnings("ignore:gemini_lab.protect. this script was not started")
def test_without_a_lab_a_script_runs_as_it_is():
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    protected = gemini_lab.protect(model=model, optimizer=optimizer, step=4)
    done = []
    for step in protected.steps(7):
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        done.append(step)
    assert done == [4, 5, 6]


@pytest.mark.usefixtures("group")
def test_a_version_of_ranks_that_end_one_before_the_other_is_refused():
    model = DistributedDataParallel(nn.Linear(1, 1))
    known = framework(model, sgd(model))
    known.require_boundary()
    with model.join(), pytest.raises(UnsupportedError, match=r"join\(\).*as many batches"):
        known.require_boundary()


class Told:
    """Takes down when it is called."""

    counts = True
    remarks = ()

    def __init__(self):
        self.told = []

    def begin_forward(self):
        self.told.append("forward")

    def before_update(self):
        self.told.append("before")
        return 0.5

    def before_writing(self):
        self.told.append("writing")

    def after_update(self, waited_s):
        self.told.append(f"after {waited_s}")


class Nested(torch.optim.SGD):
    """Calls its base's step, for which torch calls hooks again."""

    fails = False

    @torch.no_grad()
    def step(self, closure=None):
        if self.fails:
            raise ArithmeticError
        return super().step(closure)


def test_a_step_is_one_update_whatever_it_calls_and_also_after_one_that_raised():
    model, hook = nn.Linear(1, 1), Told()
    sgd(model)  # from now on torch calls hooks in its own step, too
    engine = TorchEngine(model, Nested(model.parameters(), lr=0.1))
    unhook = hook_optimizer(engine, hook)
    for fails in (True, False, False):
        engine.optimizer.fails = fails
        hook.told.clear()
        model(torch.ones(1)).sum().backward()
        if fails:
            with pytest.raises(ArithmeticError):
                engine.optimizer.step()
        else:
            engine.optimizer.step()
            assert hook.told == ["forward", "forward", "before", "after 0.5"]
    assert engine.global_steps == 2
    unhook()
    hook.told.clear()
    engine.optimizer.step()
    assert (engine.global_steps, hook.told) == (3, [])


def test_after_an_evaluation_before_the_version_the_first_pass_is_training():
    """The version has the mode of the evaluation, and the hook comes after it was put back."""
    model, hook = nn.Linear(1, 1).eval(), Told()
    hook_optimizer(TorchEngine(model, sgd(model)), hook)
    model.train()(torch.ones(1))
    assert hook.told == ["forward"]


@pytest.mark.parametrize("make", [sgd, lambda model: torch.optim.AdamW(model.parameters())])
def test_the_step_by_which_torch_makes_a_state_to_save_is_no_update(make):
    """For an optimizer without state it is taken at each save."""
    model, hook = nn.Linear(1, 1), Told()
    engine = TorchEngine(model, make(model))
    hook_optimizer(engine, hook)
    get_state_dict(model, engine.optimizer)
    assert (engine.global_steps, hook.told) == (0, ["writing"])
    model(torch.ones(1)).sum().backward()
    engine.optimizer.step()
    assert (engine.global_steps, hook.told[-1]) == (1, "after 0.5")


def test_a_step_that_a_scaler_leaves_out_is_no_update():
    model = nn.Linear(1, 1)
    engine = TorchEngine(model, sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for value in (1.0, float("inf"), 1.0):
        engine.optimizer.zero_grad()
        scaler.scale(model(torch.full((1,), value)).sum()).backward()
        scaler.step(engine.optimizer)
        scaler.update()
    assert engine.global_steps == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda _, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]}),
        lambda model, _: setattr(model.weight, "data", torch.ones(5)),
        lambda _, optimizer: optimizer.param_groups[0].update(momentum=0.9),
    ],
    ids=["parameters", "shape", "options"],
)
def test_a_model_that_is_changed_after_protect_is_refused(change):
    model = nn.Linear(3, 2)
    optimizer = sgd(model)
    known = framework(model, optimizer)
    specs = gemini_lab.engine.state.engine_state.lay_out(known.forms(), start_bytes=0)
    change(model, optimizer)
    for weight in optimizer.param_groups[0]["params"]:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    with pytest.raises(GeminiError, match=r"`protect`"):
        known.pieces(specs), known.capture()


def test_weights_that_something_else_may_train_are_remarked_on():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    (text,) = left_out(TorchEngine(model, sgd(model[0])))
    assert text.startswith("2 parameters require gradients and are not in optimizer= (1.weight...)")
    model[1].requires_grad_(False)
    assert not list(left_out(TorchEngine(model, sgd(model[0]))))


def test_weights_in_a_module_of_also_are_not_left_out():
    """As where one optimizer has the matrices, another one the rest."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    engine = TorchEngine(model, sgd(model[0]))
    assert not list(left_out(engine, [nn.ParameterList(model[1].parameters())]))


def test_to_look_at_an_optimizer_changes_nothing():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    schedule = ExponentialLR(optimizer, 0.5)
    random, weights = torch.get_rng_state(), [w.clone() for w in model.parameters()]
    before = repr((optimizer.state_dict(), schedule.state_dict(), sorted(vars(optimizer))))
    known = framework(model, optimizer)
    names = [form[0] for form in known.forms()]
    assert names == ["parameter.data.float32", "exp_avg.float32", "exp_avg_sq.float32"]
    assert known.present() == [True, False, False] * 2
    assert repr((optimizer.state_dict(), schedule.state_dict(), sorted(vars(optimizer)))) == before
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert torch.equal(random, torch.get_rng_state())


def add_weights(model):
    model.add_module("late", nn.Linear(2, 2))


def add_buffers(model):
    model.add_module("late", nn.BatchNorm1d(2, affine=False))


def replace_weights(model):
    model[1] = nn.Linear(2, 2)


def remove_buffers(model):
    del model[0]


def prune_weights(model):
    prune.random_unstructured(model[1], "weight", amount=1)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_weights, "has new weights 'late.bias', 'late.weight';"),
        (add_buffers, "has new parts with buffers 'late';"),
        (replace_weights, "has new weights '1.bias', '1.weight';"),
        (remove_buffers, "lost parts with buffers '0';"),
        (prune_weights, "has new weights '1.weight_orig' and lost weights '1.weight';"),
    ],
)
def test_other_parts_in_a_protected_model_are_refused_at_the_next_version(change, words):
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    state = EngineState(TorchEngine(model, sgd(model)))
    state.capture_small()
    change(model)
    with pytest.raises(UnsupportedError, match=rf"{words} .* make them all before `protect`"):
        state.capture_small()


@pytest.mark.usefixtures("group")
def test_a_part_may_be_compiled_after_protect_and_have_another_buffer():
    model = nn.Sequential(nn.Linear(2, 2))
    state = EngineState(TorchEngine(model, sgd(model)))
    model[0].register_buffer("seen", torch.ones(1))
    state.capture_small()
    model[0] = torch.compile(model[0], backend="eager")
    with pytest.raises(UnsupportedError, match=r"has new parts with buffers '0\._orig_mod'"):
        state.capture_small()
    del model[0]._orig_mod.seen
    state.capture_small()


@pytest.mark.parametrize("value", [torch.tensor([1.5, 2.5]), torch.tensor(0.5)])
def test_a_buffer_comes_back_in_the_type_and_form_that_it_was_given_on_the_way(value):
    """As where a model assigns it anew: a count that began as a whole number became a mean."""
    module = nn.Module()
    module.register_buffer("seen", torch.tensor(0))
    small_state.put_buffers(module, {"seen": value}, torch.device("cpu"))
    assert module.seen.dtype == value.dtype
    assert torch.equal(module.seen, value)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_weight_that_is_no_number_is_seen_in_whatever_type_it_is(dtype):
    """Of a complex one its imaginary part may be it alone."""
    model = nn.ParameterList([torch.ones(3, dtype=dtype), torch.ones(2)])
    state = EngineState(TorchEngine(model, sgd(model)))
    assert state.is_finite()
    with torch.no_grad():
        (torch.view_as_real(model[0]) if model[0].is_complex() else model[0])[-1] = torch.nan
    assert not state.is_finite()


def test_a_version_of_a_model_that_had_other_parts_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    there = framework(model, sgd(model))
    small = small_state.capture(there, ScriptState(), encode(ScriptState().drawn()))
    model.add_module("late", nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="the model has 4 parameters, and had 2 in the version"):
        small_state.restore(small_state.unfold(small), there, ScriptState())
