"""What stands around an engine when it is protected: loaders, schedules, other engines.

What is found alone is taken along without being named; of several nobody can tell which is which
after a restart, so these are remarked on.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from deepspeed.runtime.engine import DeepSpeedEngine
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from gemini_lab.engine.arguments import as_sources
from gemini_lab.engine.contract import Keepable, Source
from gemini_lab.engine.state.bystanders import Bystanders
from gemini_lab.engine.state.script_state import ScriptState

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this process has beside an engine.

    Attributes:
        loaders: The loader that DeepSpeed made of `training_data`; else torch's DataLoaders.
        schedules: Learning rate schedules of the engine's optimizer that the script steps itself.
        engines: Other engines that train.
    """

    loaders: Sequence[Any]
    schedules: Sequence[Any]
    engines: Sequence[Any]


def gather(
    engine: Any,
    *,
    data: Source | Sequence[Source] | None,
    client_state: dict[str, Any] | None,
    also: Mapping[str, Keepable] | None,
    remark: Callable[[str], None],
    living: Callable[[], Iterable[object]] | None = None,
) -> ScriptState:
    """What a script hands over, with what of the rest can be taken along.

    Args:
        engine: As for what follows, see `protect`.
        data: Where the data stand.
        client_state: The script's own.
        also: The script's own, too.
        remark: Told what is there and will not come back after a failure.
        living: Gives all objects of this process; by default the garbage collector does.
    """
    named = dict(also or {})
    things = [*(_living() if living is None else living())]
    around = look_around(engine, things)
    schedules = [
        one for one in around.schedules if all(one is not thing for thing in named.values())
    ]
    sources = [*around.loaders] if data is None else as_sources(data)
    if data is None and len(sources) > 1:
        remark(
            f"{len(sources)} DataLoaders are there and none is kept; name those that training "
            "reads: protect(..., data=train_loader)"
        )
        sources = []
    if len(schedules) == 1:
        named[f"the optimizer's {type(schedules[0]).__name__}"] = schedules[0]
    for text in _left(schedules, around.engines, sources):
        remark(text)
    script = ScriptState(data=sources, client_state=client_state, also=named)
    script.bystanders = Bystanders(things, engine, [client_state, *named.values()]).changed
    return script


def _left(
    schedules: Sequence[Any], engines: Sequence[Any], sources: Sequence[Any]
) -> Iterator[str]:
    """What will not come back after a failure, as sentences for the script's author."""
    if len(schedules) > 1:
        yield (
            f"{len(schedules)} schedules of the optimizer are there ({_listed(schedules)}) and are "
            'not kept; name them: protect(..., also={"warm-up": one, "decay": other})'
        )
    if engines:
        yield (
            f"another DeepSpeed engine trains here ({_listed([one.module for one in engines])}) "
            "and is not kept, as a job protects one; make both models parts of one module"
        )
    if any(getattr(source, "persistent_workers", False) for source in sources):
        yield (
            "a DataLoader has persistent_workers=True: what its workers draw after the first epoch "
            "does not come back; leave that option out"
        )


def look_around(engine: Any, living: Iterable[object]) -> Surroundings:
    """What is there now; what the script makes later is not seen."""
    own = engine.training_dataloader
    adapters = _loader_adapters()
    kinds = (DataLoader, LRScheduler, DeepSpeedEngine, *adapters)
    # By their type alone: to ask an object of unknown kind anything may run its code.
    things = [thing for thing in living if issubclass(type(thing), kinds)]
    prepared: list[Any] = [thing for thing in things if issubclass(type(thing), adapters)]
    read = {id(one.base_dataloader) for one in prepared}
    plain = [thing for thing in things if issubclass(type(thing), DataLoader)]
    loaders = [*prepared, *(loader for loader in plain if id(loader) not in read)]
    return Surroundings(
        loaders=loaders if own is None else [own],
        schedules=_schedules(_of(LRScheduler, things), engine),
        engines=[
            other
            for other in _of(DeepSpeedEngine, things)
            if other is not engine and other.optimizer is not None
        ],
    )


def _schedules(found: Sequence[Any], engine: Any) -> list[Any]:
    """Those of the engine's optimizer that neither DeepSpeed nor another schedule steps."""
    optimizers = _with_wrapped(engine.optimizer)
    stepped = {id(part) for one in found for part in getattr(one, "_schedulers", ())}
    stepped.add(id(engine.lr_scheduler))
    return [
        one
        for one in found
        if id(one) not in stepped and not optimizers.isdisjoint(_with_wrapped(one.optimizer))
    ]


def _with_wrapped(optimizer: Any) -> set[int]:
    """The identities of an optimizer and of the one that it wraps."""
    inner = getattr(optimizer, "optimizer", None)
    return {id(optimizer)} if inner is None else {id(optimizer), id(inner)}


def _loader_adapters() -> tuple[type, ...]:
    """Accelerate's loaders, if it is there: they wrap the DataLoader that they read."""
    module = sys.modules.get("accelerate.data_loader")
    return () if module is None else (module.DataLoaderAdapter,)


def _of(kind: type[Kind], things: Sequence[object]) -> list[Kind]:
    return [thing for thing in things if isinstance(thing, kind)]


def _living() -> list[object]:
    gc.collect()  # what nobody reaches any more is not there
    return gc.get_objects()


def _listed(things: Sequence[object]) -> str:
    return ", ".join(type(thing).__name__ for thing in things)
