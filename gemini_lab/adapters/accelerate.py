"""Accelerate: `protect_accelerator(accelerator)` after `accelerator.prepare(...)`.

The loop stays the script's own. What is found here is what the Accelerator was given: DeepSpeed's
engine, or the model (alone, in DDP, or sharded by FSDP2) and its torch optimizer; its schedules,
what was registered for its checkpoints, and its own count of micro-batches. Updates are made at
boundaries alone, and its loaders read a batch ahead; both are covered by `gemini_lab.protect`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine import session as sessions
from gemini_lab.engine.arguments import as_sources
from gemini_lab.engine.contract import Keepable, Protected, Source, StateDict, ZeroEngine
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.private_names import require
from gemini_lab.engine.protection import protect, remarks
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.settings import SettingValue

Value = TypeVar("Value")
_READ: Final = (
    "_custom_objects",
    "_dataloaders",
    "_models",
    "_optimizers",
    "_schedulers",
    "distributed_type",
    "parallelism_config",
)
"""What an Accelerator alone knows of what it has prepared."""


def protect_accelerator(
    accelerator: Accelerator,  # it trains with DeepSpeed, DDP or FSDP2, or in one process
    *,
    # The prepared loader that training reads, or what else `gemini_lab.protect` takes; by default
    # the only loader that was prepared.
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,  # see `gemini_lab.protect`
    # See there; what was registered for the Accelerator's checkpoints, its schedules and its
    # gradient scaler are taken along by themselves.
    also: Mapping[str, Keepable] | None = None,
    # Without DeepSpeed: what would stand in the `"gemini"` block.
    settings: Mapping[str, SettingValue] | None = None,
) -> Protected:
    """Keep every optimizer step of the model that `accelerator` has prepared.

    Call it once, on every rank, after `accelerator.prepare` and before the loop.

    Returns:
        The handle: loop over `protected.steps(iterations)` or `protected.epochs(epochs)`.

    Raises:
        UnsupportedError: It trains in a way that cannot be protected; says what to change.
        ConfigError: See `gemini_lab.protect`.
        CapacityError: See `gemini_lab.protect`.
    """
    found = look_into(accelerator, data=data, also=also, settings=settings)
    if sessions.current is not None:
        for text in left_out(accelerator, os.environ):
            remarks(sessions.current)(text)
    return protect(found.engine, data=found.data, client_state=client_state, also=found.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The prepared parts of an Accelerator, as `gemini_lab.protect` takes them."""

    engine: ZeroEngine | TorchEngine  # DeepSpeed's, or the model and its optimizer as one
    data: Source | Sequence[Source] | None  # where the data stand; `None` if that cannot be told
    # Schedules, what was registered, the count of micro-batches, and the script's own.
    also: Mapping[str, Keepable]


def look_into(
    accelerator: Accelerator,
    *,
    data: Source | Sequence[Source] | None = None,
    also: Mapping[str, Keepable] | None = None,
    settings: Mapping[str, SettingValue] | None = None,
) -> Prepared:
    """Return what `protect_accelerator` protects; see there."""
    prepared: Any = accelerator
    if data is None and len(prepared._dataloaders) == 1:  # noqa: SLF001 - nothing else tells
        # Accelerate has no public list of what it has prepared.
        data = prepared._dataloaders[0]  # noqa: SLF001
    for source in as_sources(data):
        require_own_reading(source)
    engine = trained_by(prepared, settings=settings)
    return Prepared(engine=engine, data=data, also={**_found(prepared, engine), **(also or {})})


def trained_by(
    accelerator: Accelerator,  # it has prepared them
    *,
    model: nn.Module | None = None,  # as it is called; by default the only one that was prepared
    # The same of its optimizer.
    optimizer: torch.optim.Optimizer | AcceleratedOptimizer | None = None,
    settings: Mapping[str, SettingValue] | None = None,  # without DeepSpeed, the script's
    step: int = 0,  # without DeepSpeed, updates that were done before
) -> ZeroEngine | TorchEngine:
    """Return what an Accelerator trains: DeepSpeed's engine, or a model and its optimizer as one.

    Raises:
        UnsupportedError: It prepared several, or what cannot be put back exactly.
        ConfigError: It has settings in two places.
    """
    require(accelerator, *_READ, package="accelerate")
    require_whole_batches(accelerator)
    if (zero := getattr(accelerator, "deepspeed_engine_wrapped", None)) is not None:
        if settings is not None:
            raise ConfigError(
                'settings= is for training without DeepSpeed; write them into the "gemini" block '
                "of its configuration"
            )
        engine: ZeroEngine = zero.engine
        return engine
    models: list[Any] = [model]
    if model is None:
        models = [_as_called(one) for one in accelerator._models]  # noqa: SLF001 - nobody else tells
    optimizers = accelerator._optimizers if optimizer is None else [optimizer]  # noqa: SLF001
    if (len(models), len(optimizers)) != (1, 1):
        raise UnsupportedError(
            f"this Accelerator has prepared {len(models)} models and {len(optimizers)} optimizers, "
            "and a job protects one of each; call protect_accelerator after accelerator.prepare("
            "model, optimizer, ...), and make several models parts of one module"
        )
    inner = optimizers[0]
    if not isinstance(inner, torch.optim.Optimizer) or isinstance(inner, AcceleratedOptimizer):
        inner = getattr(inner, "optimizer", inner)  # else it is the script's own, around another
    return TorchEngine(models[0], inner, settings=settings, step=step)


def _as_called(model: nn.Module) -> nn.Module:
    """Return the model in what was wrapped around it: an Accelerator lists it as it was before."""
    wrappers: list[Any] = [one for one in made_objects() if _wraps(type(one))]
    inside = {id(_inside(one)): one for one in wrappers}
    while id(model) in inside:
        model = inside.pop(id(model))
    return model


def _inside(wrapper: object) -> object:
    """Return what it wraps; nothing if its constructor failed, and a traceback still has it."""
    return getattr(wrapper, "_orig_mod", None) or getattr(wrapper, "module", None)


def _wraps(kind: type) -> bool:
    """Return whether it is DDP's, or torch.compile's, whose class takes long to import."""
    return issubclass(kind, DistributedDataParallel) or kind.__name__ == "OptimizedModule"


def require_whole_batches(accelerator: Accelerator) -> None:
    """Refuse ranks that exchange their batches before they read them.

    Raises:
        UnsupportedError: They do.
    """
    size = getattr(accelerator.parallelism_config, "sp_size", None) or 1
    if size > 1:
        raise UnsupportedError(
            f"the Accelerator's parallelism_config has sp_size={size}, so that its loader gives a "
            "batch in parts, and a place within these does not come back; use cp_size or tp_size, "
            "or DeepSpeed's Ulysses with an mpu and a loader of your own"
        )


def left_out(accelerator: Accelerator, environment: Mapping[str, str]) -> Iterator[str]:
    """Return settings of an Accelerator that have no effect, as sentences for users: FSDP on CPUs.

    Args:
        accelerator: As it trains.
        environment: The variables, where Accelerate notes that FSDP was asked for.
    """
    asked = environment.get("ACCELERATE_USE_FSDP", "false").lower() in {"true", "1"}
    kind = accelerator.distributed_type.value
    if asked and kind.startswith(("NO", "MULTI_")):
        yield (
            "FSDP was asked for, and is not used: Accelerate leaves it out on CPUs, so that every "
            "rank holds the whole model, in DDP; what is kept, and what it takes, is DDP's. Train "
            "on GPUs for FSDP, or leave fsdp=True or the fsdp_plugin out to say that DDP is meant"
        )


class _Count:
    """Micro-batches that `accumulate` has counted, and checkpoints that were named."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, object]:
        return {"step": self._accelerator.step, "saved": self._accelerator.save_iteration}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from there; a checkpoint after the version keeps its folder, and its number."""
        self._accelerator.step = state["step"]
        configuration = self._accelerator.project_configuration
        if not configuration.automatic_checkpoint_naming or "saved" not in state:
            return
        number = [state["saved"]]
        folder = Path(self._accelerator.project_dir, "checkpoints")
        while (folder / f"checkpoint_{number[0]}").exists():  # which Accelerate would refuse
            number[0] += 1
        configuration.iteration = broadcast_object_list(number)[0]


def _found(accelerator: Accelerator, engine: TorchEngine | ZeroEngine) -> StateDict:
    """Return what of the Accelerator changes with training, by names that a restart finds."""
    found: StateDict = {"the Accelerator's count": _Count(accelerator)}
    if accelerator.scaler is not None:
        found["the Accelerator's gradient scaler"] = accelerator.scaler
    for number, schedule in enumerate(accelerator._schedulers):  # noqa: SLF001
        if schedule.scheduler is not engine.lr_scheduler:
            found[f"the Accelerator's schedule {number}"] = schedule.scheduler
    for number, thing in enumerate(accelerator._custom_objects):  # noqa: SLF001
        found[f"registered {number}: {type(thing).__name__}"] = thing
    return found


def require_own_reading(loader: object) -> None:
    """Refuse a loader of which one rank reads and sends the batches to the others.

    Raises:
        UnsupportedError: It is one.
    """
    if type(loader).__name__ == "DataLoaderDispatcher":
        raise UnsupportedError(
            "one rank reads the data and sends the batches to the others (dispatch_batches), and a "
            "place in that does not come back; set dispatch_batches=False in the "
            "DataLoaderConfiguration (a Trainer's: accelerator_config) and use a data set with a "
            "length"
        )
