"""What `protect` is called with, checked before anything is done with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn

from gemini_lab.errors import ConfigError, UnsupportedError

_WAY_OUT = (
    "give what deepspeed.initialize returns first, under ZeRO stage 1, 2 or 3: "
    'engine, *_ = deepspeed.initialize(model=model, config={"zero_optimization": {"stage": 1}, '
    "...})"
)


def require_engine(engine: object) -> None:
    """Refuse what is no DeepSpeed engine.

    Raises:
        UnsupportedError: It is a model of another kind, which cannot be protected yet.
        ConfigError: It is no model at all.
    """
    if isinstance(engine, DeepSpeedEngine):
        return
    if isinstance(engine, (tuple, list)) and any(isinstance(e, DeepSpeedEngine) for e in engine):
        raise ConfigError(
            "protect was given all that deepspeed.initialize returned; give the engine alone, "
            "which is the first of it: engine, *_ = deepspeed.initialize(...)"
        )
    if isinstance(inner := getattr(engine, "engine", None), DeepSpeedEngine):
        raise ConfigError(
            f"protect was given a {type(engine).__name__} around a {type(inner).__name__}; give "
            "its `.engine`"
        )
    if isinstance(engine, nn.Module):
        raise UnsupportedError(f"protect was given {_kind_of(engine)}; {_WAY_OUT}")
    raise ConfigError(f"protect was given a {type(engine).__name__}; {_WAY_OUT}")


def _kind_of(module: nn.Module) -> str:
    """A model in words: by what makes it parallel, if anything does."""
    names = {kind.__name__ for kind in type(module).__mro__}
    if "DistributedDataParallel" in names:
        return (
            "a DistributedDataParallel model, and DDP is not supported (ZeRO stage 1 trains the "
            "same and shards the optimizer)"
        )
    if names & {"FullyShardedDataParallel", "FSDPModule"}:
        return "an FSDP model, and FSDP is not supported (ZeRO stage 3 shards as it does)"
    return f"a plain {type(module).__name__}, whose optimizer it does not know"


def require_parts(client_state: object, also: object) -> None:
    """Refuse a client state, or an `also`, of the wrong type.

    Raises:
        ConfigError: It is of one.
    """
    if client_state is not None and not isinstance(client_state, dict):
        raise ConfigError(
            f"client_state= is a {type(client_state).__name__}; give a dict, which is restored in "
            "place, or name an object with a state in `also`"
        )
    if also is not None and not (
        isinstance(also, Mapping) and all(isinstance(k, str) for k in also)
    ):
        raise ConfigError(
            f"also= is a {type(also).__name__} without names; give a dict such as "
            '{"ema": ema, "rng": generator}'
        )


def as_sources(data: Any) -> list[Any]:
    """`data=` as a list: one source, or a list or tuple of them."""
    if data is None:
        return []
    is_several = isinstance(data, Sequence) and not hasattr(data, "state_dict")
    return [*data] if is_several else [data]
