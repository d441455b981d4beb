"""The arguments of `protect`, checked before use."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn

from gemini_lab.engine.contract import Engine, Keepable, Source, StateDict, Stateful, ZeroEngine
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.errors import ConfigError, kind_of, shown
from gemini_lab.limits import require_text
from gemini_lab.settings import SettingValue
from gemini_lab.units import check_number

MOST_VALUES: Final = 256
"""That a script may log of an iteration: they travel with each version."""
LONGEST_NAME: Final = 100
Value = TypeVar("Value")
_SCHEDULE = "scheduler"
_WAY_OUT = (
    "give what deepspeed.initialize returns first, under ZeRO stage 1, 2 or 3, or what trains in "
    "plain PyTorch: protect(model=model, optimizer=optimizer)"
)
_ADAPTERS: Final = {
    ("accelerate", "Accelerator"): "accelerate.protect_accelerator(accelerator)",
    ("transformers", "Trainer"): "transformers.protect_trainer(trainer)",
}  # what is given to `protect` by mistake, and what is meant for it


def as_engine(
    engine: object,
    *,
    model: nn.Module | Sequence[nn.Module] | None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    settings: Mapping[str, SettingValue] | None,
    step: int,
) -> Engine:
    """Return the engine to protect: DeepSpeed's, or one made of a model and its optimizer.

    Raises:
        UnsupportedError: It has state that cannot be put back exactly.
        ConfigError: It is neither, or both.
    """
    check_number("step", step, is_whole=True)
    if engine is not None:
        if model is not None or optimizer is not None or settings is not None or step:
            raise ConfigError(
                "protect was given an engine and model=, optimizer=, settings= or step=, which "
                'are for plain PyTorch; an engine has its own, and its settings are the "gemini" '
                "block of the DeepSpeed configuration"
            )
        return require_engine(engine)
    if model is None or optimizer is None:
        is_there = model is not None, optimizer is not None
        given = {(True, False): "a model= alone", (False, True): "an optimizer= alone"}.get(
            is_there, "nothing"
        )
        raise ConfigError(f"protect was given {given}; {_WAY_OUT}")
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(
            f'settings= is {kind_of(settings)}; give a dict such as {{"replicas": 2}}'
        )
    if isinstance(model, DeepSpeedEngine):
        raise ConfigError("model= is a DeepSpeed engine; give it alone: protect(engine)")
    return TorchEngine(model, optimizer, settings=settings, step=step)


def with_schedule(
    also: Mapping[str, Keepable] | None, scheduler: Stateful | Sequence[Stateful] | None
) -> dict[str, Keepable]:
    """Return `also`, with the schedules that a script hands over."""
    named = dict(also or {})
    is_list = isinstance(scheduler, list | tuple)
    for number, one in enumerate(as_sources(scheduler)):
        name = f"{_SCHEDULE} {number}" if is_list else _SCHEDULE
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise ConfigError(
                f"scheduler= is {kind_of(one)}; give one with `state_dict` and "
                "`load_state_dict`, such as torch's; name several in `also`"
            )
        if name in named:
            raise ConfigError(f"scheduler= is kept as {name!r}; call that of `also` otherwise")
        named[name] = one
    return named


def require_engine(engine: object) -> Engine:
    """Refuse, with a ConfigError, what is no engine."""
    if isinstance(engine, TorchEngine):  # an adapter made it
        return engine
    if isinstance(engine, DeepSpeedEngine):
        found: ZeroEngine = engine
        return found
    if isinstance(engine, (tuple, list)) and any(isinstance(e, DeepSpeedEngine) for e in engine):
        raise ConfigError(
            "protect was given all that deepspeed.initialize returned; give the engine alone, "
            "which is the first of it: engine, *_ = deepspeed.initialize(...)"
        )
    for kind in type(engine).__mro__:
        if meant := _ADAPTERS.get((kind.__module__.partition(".")[0], kind.__name__)):
            raise ConfigError(
                f"protect was given {kind_of(engine)}; call gemini_lab.adapters.{meant} in "
                "its place"
            )
    if isinstance(inner := getattr(engine, "engine", None), DeepSpeedEngine):
        raise ConfigError(
            f"protect was given {kind_of(engine)} around a {type(inner).__name__}; give "
            "its `.engine`"
        )
    if isinstance(engine, nn.Module):
        raise ConfigError(
            f"protect was given a model alone ({type(engine).__name__}); give it with what trains "
            "it: protect(model=model, optimizer=optimizer)"
        )
    raise ConfigError(f"protect was given {kind_of(engine)}; {_WAY_OUT}")


def require_parts(client_state: object, also: object) -> None:
    """Refuse, with a ConfigError, a client state or an `also` of the wrong type."""
    if client_state is not None and not isinstance(client_state, dict):
        raise ConfigError(
            f"client_state= is {kind_of(client_state)}; give a dict, which is restored in "
            "place, or name an object with a state in `also`"
        )
    if also is not None and not (
        isinstance(also, Mapping) and all(isinstance(k, str) for k in also)
    ):
        raise ConfigError(
            f"also= is {kind_of(also)} without names; give a dict such as "
            '{"ema": ema, "rng": generator}'
        )


def require_rewind(steps: object, skip: object) -> None:
    """Refuse what is no rewind, whatever was done so far.

    Raises:
        ConfigError: A number is none, or `skip` is neither true nor false.
    """
    check_number("steps", steps, is_whole=True)
    if not isinstance(skip, bool):
        raise ConfigError(f"skip= is {kind_of(skip)}; give True or False")


def numbers_of(values: StateDict) -> dict[str, float]:
    """Return what a script logs as plain numbers, or raise a ConfigError."""
    for name in require_few(values):
        require_text("a logged value's name", name, most=LONGEST_NAME)
    return {name: _logged(name, value) for name, value in values.items()}


def require_few(values: dict[str, Value]) -> dict[str, Value]:
    """Return what a script logs of an iteration; refuse too many values with a ConfigError."""
    if len(values) > MOST_VALUES:
        raise ConfigError(
            f"protected.log was given {len(values):,} values of one iteration; give {MOST_VALUES} "
            "at most"
        )
    return values


def _logged(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ConfigError(
        f"protected.log({name}={shown(value)}): it has to be one number, such as loss.item()"
    )


def as_sources(data: Any) -> list[Source]:
    """Return `data=` as a list: one source, or a list or tuple of them."""
    if data is None:
        return []
    is_several = isinstance(data, Sequence) and not hasattr(data, "state_dict")
    return [*data] if is_several else [data]
