"""Discovery of what is around an engine: loaders, schedules, other engines.

What is found alone is taken along without being named; of several nobody can tell which is which
after a restart, so these are remarked on.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch.distributed as dist
from deepspeed.runtime.dataloader import RepeatingLoader
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gemini_lab.engine.arguments import as_sources
from gemini_lab.engine.contract import Engine, Keepable, Source, StateDict
from gemini_lab.engine.frameworks.ddp_buckets import BucketOrder
from gemini_lab.engine.frameworks.torch_engine import TorchEngine, optimizers_of
from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.own_code import is_own_type
from gemini_lab.engine.random_states import GENERATORS
from gemini_lab.engine.state.loaders import KINDS
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.engine.state.user_state import OwnValues
from gemini_lab.engine.unsaved_state import Bystanders

Kind = TypeVar("Kind")
IS_READ_ALREADY: Final = (
    "an iterator of the {} in data= was made before `protect`, and workers read for it: if "
    "training continues with it, as with a loader that keeps one iterator for all epochs, what it "
    "gives does not come back after a failure; make iterators afterwards, one for each epoch"
)
_MODELS: Final = (DeepSpeedEngine, DistributedDataParallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The objects of this process beside an engine."""

    # The loader that DeepSpeed made of `training_data`; else torch's DataLoaders.
    loaders: Sequence[Any]
    schedules: Sequence[LRScheduler]  # of any optimizer, and those that step others
    scalers: Sequence[GradScaler]  # scalers of gradients that the script uses itself
    engines: Sequence[DeepSpeedEngine]  # other engines that train
    replicated: Sequence[DistributedDataParallel]  # other models in DDP that train


def gather(
    engine: Engine,
    *,
    data: Source | Sequence[Source] | None,
    client_state: StateDict | None,
    also: Mapping[str, Keepable] | None,
    remark: Callable[[str], None],
    made: Callable[[], Sequence[object]] = made_objects,
) -> ScriptState:
    """Return what a script hands over, with what else can be taken along."""
    named = dict(also or {})
    # A dropped model in a reference cycle would be remarked on as one that trains.
    gc.collect()  # what nobody reaches any more is not there
    things = made()
    around = look_around(engine, things)
    sources = [*around.loaders] if data is None else as_sources(data)
    repeated = {id(one.loader) for one in sources if isinstance(one, RepeatingLoader)}
    sources = [one.loader if isinstance(one, RepeatingLoader) else one for one in sources]
    if data is None and len(sources) > 1:
        remark(
            f"{len(sources)} DataLoaders are there and none is kept; name those that training "
            "reads: protect(..., data=train_loader)"
        )
        sources = []
    schedules = list[LRScheduler]()
    optimizers = optimizers_of(engine)
    for number, each in enumerate(optimizers):
        whose = "the optimizer" if len(optimizers) == 1 else f"optimizer {number}"
        stepped_by_script = [
            one for one in _schedules(around.schedules, each) if one is not engine.lr_scheduler
        ]
        found = _unnamed(stepped_by_script, named)
        if len(found) == 1:
            named[f"{whose}'s {type(found[0]).__name__}"] = found[0]
        schedules += found if len(found) > 1 else ()
    for name, optimizer in (also or {}).items():
        others = _unnamed(_schedules(around.schedules, optimizer), named)
        if len(others) == 1:
            named[f"{name}'s {type(others[0]).__name__}"] = others[0]
        elif others:
            remark(_several_schedules(others, f"of {name!r} in `also`"))
    scalers = _unnamed(around.scalers, named)
    if len(scalers) == 1:
        named["the GradScaler"] = scalers[0]
    elif scalers:
        remark(
            f"{len(scalers)} GradScalers are there and are not kept; name them: "
            'protect(..., also={"scaler": scaler})'
        )
    for name, generator in _generators_in(engine.module):
        if _unnamed([generator], named):
            named[name] = generator
    for text in _left(schedules, around, sources):
        remark(text)
    script = ScriptState(data=sources, client_state=client_state, also=named)
    script.orders = [BucketOrder(one) for one in around.replicated]
    script.values = OwnValues(engine.module)
    bystanders = Bystanders(things, engine, [client_state, *named.values()], script.values)
    script.bystanders = bystanders.changed
    known = {id(one) for one in things}

    def late() -> list[str]:
        new = [one for one in _of(LRScheduler, made()) if id(one) not in known]
        return [type(one).__name__ for each in optimizers for one in _schedules(new, each)]

    script.late_schedules = late
    early = [one for one in sources if id(one) not in repeated and _is_read_already(one, things)]
    for loader in {id(one): one for one in early}.values():
        remark(IS_READ_ALREADY.format(type(loader).__name__))
    return script


def _generators_in(model: nn.Module) -> Iterator[tuple[str, Keepable]]:
    """Yield those in attributes of the script's own parts of a model."""
    for name, part in model.named_modules():
        for key, value in vars(part).items() if is_own_type(type(part)) else ():
            if isinstance(value, GENERATORS):
                yield f"the generator {key!r} of part {name!r}", value


def begin_repeating(engine: Engine, data: Source | Sequence[Source] | None) -> None:
    """Restart DeepSpeed's repeating loaders at an epoch's start, after `protect`.

    Each makes its iterator at once, as a pipeline does with `training_data`, and positions reach
    later iterators only. Without a lab it is done as well, so that a script reads the same.
    """
    sources = as_sources(engine.training_dataloader if data is None else data)
    for source in sources:
        if isinstance(source, RepeatingLoader):
            source.data_iter = iter(source.loader)


def _is_read_already(source: Any, made: Sequence[object]) -> bool:
    """Return whether workers read for an iterator of a loader that was made before `protect`."""
    return isinstance(source, KINDS) and any(
        getattr(one, "_num_workers", 0) and getattr(one, "_dataset", None) is source.dataset
        for one in _of(_BaseDataLoaderIter, made)
    )


def _left(
    schedules: Sequence[object], around: Surroundings, sources: Sequence[object]
) -> Iterator[str]:
    """Return what will not come back after a failure, as sentences for the user."""
    if len(schedules) > 1:
        yield _several_schedules(schedules, "of the optimizer")
    if around.engines:
        names = _listed([one.module for one in around.engines])
        yield (
            f"another DeepSpeed engine trains here ({names}) "
            "and is not kept, as a job protects one; make both models parts of one module"
        )
    # Of two ranks no sum differs from another.
    static = [one for one in around.replicated if one.static_graph]
    if static := [one.module for one in static if dist.get_world_size(one.process_group) > 2]:
        yield (
            f"another model in DDP has static_graph=True ({_listed(static)}): a worker that "
            "starts after a failure adds its gradients up in another order once, and their last "
            "bits differ; leave static_graph out"
        )
    if any(getattr(source, "persistent_workers", False) for source in sources):
        yield (
            "a DataLoader has persistent_workers=True: what its workers draw after the first epoch "
            "does not come back; leave that option out"
        )


def _unnamed(found: Iterable[Kind], named: Mapping[str, object]) -> list[Kind]:
    return [one for one in found if all(one is not thing for thing in named.values())]


def _several_schedules(schedules: Sequence[object], whose: str) -> str:
    return (
        f"{len(schedules)} schedules {whose} are there ({_listed(schedules)}) and are "
        'not kept; name them: protect(..., also={"warm-up": one, "decay": other})'
    )


def look_around(engine: Engine, made: Iterable[object]) -> Surroundings:
    """Return what exists now; later objects are not seen."""
    own = engine.training_dataloader
    # Accelerate's loaders, if it is there, wrap the DataLoader that they read.
    accelerate = sys.modules.get("accelerate.data_loader")
    adapters = () if accelerate is None else (accelerate.DataLoaderAdapter,)
    kinds = (DataLoader, LRScheduler, GradScaler, *_MODELS, *adapters)
    # By their type alone: Accelerate's loaders pass for the DataLoader that they read.
    things = [thing for thing in made if issubclass(type(thing), kinds)]
    prepared: list[Any] = [thing for thing in things if issubclass(type(thing), adapters)]
    read = {id(one.base_dataloader) for one in prepared}
    plain = [thing for thing in things if issubclass(type(thing), DataLoader)]
    loaders = [*prepared, *(loader for loader in plain if id(loader) not in read)]
    is_torchs = isinstance(engine, TorchEngine)  # DeepSpeed has one of its own
    return Surroundings(
        loaders=loaders if own is None else [own],
        schedules=_of(LRScheduler, things),
        scalers=[one for one in _of(GradScaler, things) if is_torchs and one.is_enabled()],
        engines=[
            other
            for other in _of(DeepSpeedEngine, things)
            if other is not engine and other.optimizer is not None
        ],
        replicated=_replicated(_of(DistributedDataParallel, things), engine),
    )


def _replicated(
    found: Sequence[DistributedDataParallel], engine: Engine
) -> list[DistributedDataParallel]:
    """Return those beside the engine's, in the same order on every rank and in every start."""
    own = {id(part) for part in engine.module.modules()}
    others = [one for one in found if id(one) not in own]
    return sorted(others, key=lambda one: [(n, [*w.shape]) for n, w in one.named_parameters()])


def _schedules(found: Sequence[LRScheduler], optimizer: object) -> list[LRScheduler]:
    """Return those of an optimizer that no other schedule steps."""
    optimizers = _with_wrapped(optimizer)
    stepped = {id(part) for one in found for part in getattr(one, "_schedulers", ())}
    return [
        one
        for one in found
        if id(one) not in stepped and not optimizers.isdisjoint(_with_wrapped(one.optimizer))
    ]


def _with_wrapped(optimizer: object) -> set[int]:
    inner = getattr(optimizer, "optimizer", None)
    return {id(optimizer)} if inner is None else {id(optimizer), id(inner)}


def _of(kind: type[Kind], things: Sequence[object]) -> list[Kind]:
    return [thing for thing in things if isinstance(thing, kind)]


def _listed(things: Sequence[object]) -> str:
    return ", ".join(type(thing).__name__ for thing in things)
