"""A plain PyTorch model and its optimizer, counted like an engine: what `protect(model=...)` makes.

How its ranks share it is read off the model, and what cannot be kept exactly is refused here.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gemini_lab.engine.contract import Engine
from gemini_lab.engine.frameworks.pipeline_stages import StageTrials, is_trial
from gemini_lab.engine.frameworks.stepping import StepHook, uncompiled
from gemini_lab.engine.frameworks.tensors import is_dtensor, is_fsdp1, is_fsdp2
from gemini_lab.engine.private_names import require, require_known
from gemini_lab.engine.rank_agreement import rank_and_world_size
from gemini_lab.errors import ConfigError, UnsupportedError, kind_of
from gemini_lab.settings import SettingValue

Parallelism = Literal["DDP", "FSDP2", "none"]
_REPLICATE: Final = "torch.distributed._composable.replicate"
_STEP, _OF_STEP = "wrapper", "self"
"""The function in which torch calls an optimizer's `step` and its hooks, and who it is of there."""
_SAVING: Final = ("torch.distributed.checkpoint.state_dict", "_init_optim_state")
"""The module and the function in which torch takes a step with zeros, to save what it makes."""
_TENSORS: Final = (torch.Tensor, nn.Parameter)
_WRAPPED: Final = 4  # optimizers around one another that are looked into


def _nothing() -> None:
    """Nobody listens."""


class TorchEngine:
    """Models of this rank and the torch optimizers that train them, with a count of updates.

    Most ranks have one of each. Those of a pipeline may have several stages. An update is over when
    each optimizer has made its step.

    Attributes:
        models: The models as the script calls them.
        optimizers: The optimizers, in the script's order.
        module: The only model, or a list of all.
        optimizer: The first optimizer.
        trials: The passes by which a pipeline learns shapes, if the models are its stages.
        global_steps: Updates done so far.
        before_update: Called where an update begins, on the thread that makes it.
        after_update: Called where it has ended and is counted.
        before_writing: Called where a step begins that is no update, but writes the state.

    Raises:
        UnsupportedError: They have state that cannot be put back exactly; says what to change.
        ConfigError: They are no model and no optimizer, or not of one another.
    """

    training_dataloader = None  # what a DeepSpeed engine may have, too
    lr_scheduler = None

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        settings: Mapping[str, SettingValue] | None = None,
        step: int = 0,
    ) -> None:
        _require_step_hooks()
        models, optimizers = _listed(model), _listed(optimizer)
        for one in models:
            if isinstance(one, nn.Module):
                # Until then the model's parameters are not those that its optimizer has.
                reshard(one)
        _require_kinds(models, optimizers, step)
        for found, way_out in _obstacles(models, optimizers):
            raise UnsupportedError(f"this model cannot be protected: {found}; {way_out}")
        self.models: tuple[nn.Module, ...] = tuple(models)
        self.optimizers: tuple[torch.optim.Optimizer, ...] = tuple(optimizers)
        self.module: nn.Module = models[0] if len(models) == 1 else nn.ModuleList(models)
        self.optimizer: torch.optim.Optimizer = optimizers[0]
        self.trials = StageTrials(models)
        bare = [unwrapped(one) for one in models]
        self.bare: nn.Module = bare[0] if len(bare) == 1 else nn.ModuleList(bare)
        self.settings = dict(settings or {})
        self.global_steps = step
        self.parallelism: Parallelism = _parallelism(models)
        self.before_update: Callable[[], None] = _nothing
        self.after_update: Callable[[], None] = _nothing
        self.before_writing: Callable[[], None] = _nothing
        self._depth = 0
        self._updates = True
        self._stepped = set[int]()  # optimizers, in the update under way
        for each in optimizers:
            each.register_step_pre_hook(uncompiled(self._enter))
            each.register_step_post_hook(uncompiled(self._leave))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.optimizer.param_groups[0]["params"][0].device
        return device

    @property
    def global_rank(self) -> int:
        return rank_and_world_size()[0]

    @property
    def is_within_update(self) -> bool:
        """Return whether some optimizers have made their step, and others have not."""
        return bool(self._stepped)

    def _enter(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._depth and not self._is_nested(optimizer):
            self._depth = 0  # a step before this one raised
        self._depth += 1
        if self._depth > 1:
            return
        self._updates = not _is_saving()
        if not self._updates:
            self.before_writing()
        elif not self._stepped:
            self.before_update()
        elif id(optimizer) in self._stepped:
            raise UnsupportedError(
                f"a {type(optimizer).__name__} of optimizer= makes its second step, and "
                f"{len(self.optimizers) - len(self._stepped)} of {len(self.optimizers)} have made "
                "none since: a version is made when all have; have each pass of the loop step all "
                "of them once (a GradScaler has to leave out all or none), or name those in `also` "
                "that train otherwise"
            )

    def _leave(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._depth -= 1
        if self._depth or not self._updates:
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self.optimizers):
            self._stepped.clear()
            self.global_steps += 1
            self.after_update()

    def _is_nested(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a class's `step` called that of its base: torch calls hooks for both."""
        # torch calls the hooks for a subclass's step and its base's; nothing tells them apart but
        # this.
        frame, found = inspect.currentframe(), 0
        while frame is not None:
            is_step = frame.f_code.co_name == _STEP  # in which torch calls the hooks
            found += is_step and frame.f_locals.get(_OF_STEP) is optimizer
            frame = frame.f_back
        return found > 1


def _is_saving() -> bool:
    """Return whether torch's `get_state_dict` or `set_state_dict` has the optimizer make its state.

    It does so wherever there is none: always, for an optimizer without any, such as SGD.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _SAVING:
            return True
        frame = frame.f_back
    return False


def left_out(engine: TorchEngine, handed: Iterable[object] = ()) -> Iterator[str]:
    """Return what of the model will not come back after a failure, as sentences for users."""
    kept = {id(weight) for weight in trained_by(engine.optimizers)}
    modules = [thing for thing in handed if isinstance(thing, nn.Module)]
    own = {id(weight) for part in [engine.bare, *modules] for weight in part.parameters()}
    if beside := len(kept - own):
        yield (
            f"optimizer= trains {beside} parameters that are no part of model=: they come back, "
            "and the buffers of their module, such as a loss's running centres, do not; if it has "
            'some, name it: protect(..., also={"loss": criterion})'
        )
    kept |= {id(weight) for module in modules for weight in module.parameters()}
    named = engine.bare.named_parameters()
    left = [name for name, weight in named if weight.requires_grad and id(weight) not in kept]
    if left:
        yield (
            f"{len(left)} parameters require gradients and are not in optimizer= ({left[0]}...): "
            "what else trains them does not come back; name that and what it trains in `also`, or "
            "let requires_grad_(False) say that nothing does"
        )


def hook_optimizer(
    engine: TorchEngine, hook: StepHook, afterwards: Callable[[], None] = _nothing
) -> Callable[[], None]:
    """Install the hook around the optimizer's updates and the model's forward pass.

    `optimizer.step` is called for updates alone, whatever a script accumulates before; a step that
    is left out, as by a GradScaler after an overflow, makes no update.

    Args:
        engine: The models and optimizers.
        hook: Is called around them.
        afterwards: Called after an update, when the hook has been.

    Returns:
        Takes the hook off again.
    """
    models, waited_s = engine.models, 0.0
    # An evaluation before a version leaves its mode to the start that restores that version.
    modes = {True, *(model.training for model in models)}

    @uncompiled
    def begin_forward(model: nn.Module, *_: object) -> None:
        if torch.is_grad_enabled() and model.training in modes and not is_trial():
            hook.begin_forward()

    def before_update() -> None:
        nonlocal modes, waited_s
        modes = {model.training for model in models}
        hook.begin_forward()  # also where the model is not called as a whole
        waited_s = hook.before_update()

    def after_update() -> None:
        hook.after_update(waited_s)
        afterwards()

    # Before the model's own hooks: those of FSDP already call collectives of the next iteration.
    handles = [one.register_forward_pre_hook(begin_forward, prepend=True) for one in models]
    engine.before_update = before_update
    engine.after_update = after_update
    engine.before_writing = hook.before_writing

    def unhook() -> None:
        for handle in handles:
            handle.remove()
        engine.before_update = engine.after_update = engine.before_writing = _nothing

    return unhook


def reshard(model: nn.Module) -> None:
    """Free FSDP2's whole weights, which it may keep after a forward pass without gradients.

    As long as it keeps them, the model's parameters are not those that its optimizer has.
    """
    for module in model.modules():
        if is_fsdp2(module):
            module.reshard()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel and `torch.compile`, in either order."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def replicated_by(model: nn.Module) -> DistributedDataParallel | None:
    """Return what replicates the model, if anything does."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def _require_step_hooks() -> None:
    """Refuse a torch in which a step within a step would count twice.

    Raises:
        UnsupportedError: It is one.
    """
    hooked: Any = torch.optim.Optimizer.profile_hook_step(_nothing)
    code = hooked.__code__
    known = {code.co_name, *code.co_varnames, *code.co_cellvars}
    missing = [name for name in (_STEP, _OF_STEP) if name not in known]
    require_known(missing, "Optimizer.profile_hook_step", package="torch")


def optimizers_of(engine: Engine) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers whose steps together make an engine's update."""
    return engine.optimizers if isinstance(engine, TorchEngine) else (engine.optimizer,)


def trained_by(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    """Yield the weights that optimizers train, in their order."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _parallelism(models: Sequence[nn.Module]) -> Parallelism:
    if any(replicated_by(model) is not None for model in models):
        return "DDP"
    return "FSDP2" if any(is_fsdp2(part) for one in models for part in one.modules()) else "none"


def _listed(given: Any) -> list[Any]:
    """Return what a script gave as a list, unless it is one thing."""
    return [*given] if isinstance(given, list | tuple) else [given]


def _require_kinds(models: Sequence[object], optimizers: Sequence[object], step: object) -> None:
    """Refuse what is no model, no torch optimizer, or no count.

    Raises:
        ConfigError: It is none.
    """
    for model in models:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model= is {kind_of(model)}; give the nn.Module that is trained")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"optimizer= is {kind_of(optimizer)}; give {_way_out_of(optimizer)}")
    for name, given in (("model", models), ("optimizer", optimizers)):
        if not given or len({id(one) for one in given}) < len(given):
            raise ConfigError(
                f"{name}= is a list of {len(given)}, none or one of them twice; give what this "
                "rank trains, each once"
            )
    own = {id(w) for one in models if isinstance(one, nn.Module) for w in one.parameters()}
    torchs = [one for one in optimizers if isinstance(one, torch.optim.Optimizer)]
    if any(own.isdisjoint(map(id, trained_by([one]))) for one in torchs):
        raise ConfigError(
            "optimizer= holds none of the parameters of model=; make the optimizer of "
            "model.parameters(), and after fully_shard, which replaces them"
        )
    trained = [id(weight) for weight in trained_by(torchs)]
    if len({*trained}) < len(trained):
        raise ConfigError(
            "two of optimizer= train the same parameter, such as one that stages share; give each "
            "parameter to one optimizer"
        )
    if not isinstance(step, int) or step < 0:
        raise ConfigError(f"step={step!r} is no number of updates; give 0 or more")


def _way_out_of(wrapper: object) -> str:
    """Return which argument to pass as an optimizer instead."""
    inner, path = wrapper, ""
    for _ in range(_WRAPPED):
        inner, path = getattr(inner, "optimizer", None), f"{path}.optimizer"
        if isinstance(inner, torch.optim.Optimizer):
            return (
                f"its `{path}`, and name it itself in `also` where it keeps something of its own, "
                "such as slow weights, with `state_dict` and `load_state_dict`"
            )
    return (
        "one torch.optim.Optimizer, or a list of those that step in each pass (what else is "
        "trained goes into `also`)"
    )


def _obstacles(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[tuple[str, str]]:
    for model in models:
        yield from _of_model(model)
    for optimizer in optimizers:
        # By its name: to import it compiles functions.
        if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in _kinds(optimizer)):
            yield (
                "its ZeroRedundancyOptimizer shares out state by itself",
                "use a torch optimizer (what DDP replicates is kept once), or fully_shard",
            )
    ddps = [replicated_by(model) for model in models]
    groups = {None if one is None else id(one.process_group) for one in ddps}
    if len(groups) > 1:
        yield (
            "its models are in DDP over different ranks, or some of them",
            "wrap all of them alike",
        )
    for weight in trained_by(optimizers):
        yield from _of_weight(weight, is_replicated=ddps[0] is not None)


def _of_model(model: nn.Module) -> Iterator[tuple[str, str]]:
    if any(is_fsdp1(part) for part in model.modules()):
        yield (
            "it is wrapped in FullyShardedDataParallel (FSDP1)",
            "shard it with FSDP2: torch.distributed.fsdp.fully_shard(model)",
        )
    if any(isinstance(part, DataParallel) for part in model.modules()):
        yield "it is wrapped in DataParallel", "use DistributedDataParallel"
    if any(kind.__module__ == _REPLICATE for part in model.modules() for kind in _kinds(part)):
        yield "replicate() was called with it", "wrap it in DistributedDataParallel"
    ddp = replicated_by(model)
    inside = (p for p in unwrapped(model).modules() if isinstance(p, DistributedDataParallel))
    if ddp is None and any(True for _ in inside):
        yield "DistributedDataParallel is around parts of it", "wrap the model as a whole"
    elif ddp is not None:
        yield from _of_ddp(ddp)


def _kinds(thing: object) -> tuple[type, ...]:
    return type(thing).__mro__


def _of_ddp(ddp: Any) -> Iterator[tuple[str, str]]:
    """Yield options of DistributedDataParallel that have state, or make ranks unlike."""
    if ddp.static_graph:
        yield (
            "DDP has static_graph=True, whose first iteration adds up gradients in another order",
            "leave static_graph out",
        )
    if ddp.mixed_precision is not None:
        yield "DDP has mixed_precision", "use torch.autocast"
    require(ddp, "_comm_hooks", package="torch")
    # Hooks with state (PowerSGD) would need it in each version; DDP lists them only here.
    for hook, state in ddp._comm_hooks:  # noqa: SLF001
        if state is not None and not isinstance(state, dist.ProcessGroup):
            name, kind = getattr(hook, "__name__", hook), type(state).__name__
            yield (
                f"DDP's communication hook {name} keeps state of its own ({kind})",
                "use one without, such as bf16_compress_hook, or none",
            )


def _of_weight(weight: torch.Tensor, *, is_replicated: bool) -> Iterator[tuple[str, str]]:
    is_known = type(weight.data) in _TENSORS or is_dtensor(weight.data)
    if not is_known or weight.layout != torch.strided or weight.is_meta:
        kind = "meta" if weight.is_meta else type(weight.data).__name__
        yield (
            f"a parameter of shape {[*weight.shape]} is a {kind} tensor ({weight.layout})",
            "use dense parameters of torch's own kinds, materialised before `protect`",
        )
    if is_replicated and is_dtensor(weight):
        yield "its parameters are DTensors under DDP", "use fully_shard with a mesh of both"
