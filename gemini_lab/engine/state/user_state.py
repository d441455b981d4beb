"""The script's `also`: generators, and objects of its own with a state."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from gemini_lab.engine.contract import Stateful
from gemini_lab.engine.frameworks.sharding import to_dtensors, to_shards
from gemini_lab.engine.state.hidden_module_state import Numbers, put_unsaid, read_unsaid
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import encode

GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_SMALL_SEEDS: Final = 2**32  # all that numpy's older generators can be seeded with
_ADAM_COPIES: Final = 3  # what Adam keeps, at most, in tensors of a weight's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepsake:
    """One thing of the script's own that travels with every version.

    Attributes:
        read: Its state now, for the codec.
        put: Puts such a state back, in place.
        is_made: Whether it is made of an update (a schedule, averaged weights), so that what the
            script does to it after `engine.step()` belongs to that update. Of other things, such as
            generators, nobody can tell.
        room_bytes: How large its state may become beyond what is usual for small things.
        renew: Of a generator, the state that it has when it is seeded with a number.
    """

    read: Callable[[], Any]
    put: Callable[[Any], object]
    is_made: bool = False
    room_bytes: int = 0
    renew: Callable[[int], Any] | None = None


def keepsakes(also: Mapping[str, object]) -> dict[str, Keepsake]:
    """How to read and put back each thing of `also`.

    Raises:
        ConfigError: Something in it has no state that could be read and put back.
        UnsupportedError: It is another DeepSpeed engine.
    """
    return {name: _keepsake(name, thing) for name, thing in also.items()}


def _keepsake(name: str, thing: Any) -> Keepsake:
    if (found := _generator(thing)) is not None:
        return found
    if isinstance(thing, dict):
        return Keepsake(
            read=lambda: to_shards(thing),
            put=lambda kept: refill(thing, to_dtensors(kept, thing)),
            room_bytes=_tensor_bytes(to_shards(thing)),
        )
    if isinstance(thing, DeepSpeedEngine):
        raise UnsupportedError(
            f"also={{{name!r}: ...}} is a second DeepSpeed engine, and a job protects one; "
            "make both models parts of one module, or train the second as a plain module with "
            "a torch optimizer and name these two in `also`"
        )
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise ConfigError(
            f"also={{{name!r}: ...}} is a {type(thing).__name__}; give a generator (torch's, "
            "numpy's or Python's), a dict, or an object with `state_dict` and `load_state_dict`"
        )
    if isinstance(thing, torch.nn.Module) and (read_unsaid(thing) or not Numbers(thing).is_empty):
        return _module(thing)
    return _stateful(thing)


def _generator(thing: Any) -> Keepsake | None:
    """One of `GENERATORS`: torch's, numpy's or Python's."""
    match thing:
        case torch.Generator():
            return Keepsake(
                read=thing.get_state,
                put=thing.set_state,
                renew=lambda seed: torch.Generator(thing.device).manual_seed(seed).get_state(),
            )
        case np.random.Generator():
            bits: Any = thing.bit_generator
            return Keepsake(
                read=lambda: bits.state,
                put=partial(setattr, bits, "state"),
                renew=lambda seed: type(bits)(seed).state,
            )
        case np.random.RandomState():
            return Keepsake(
                read=partial(thing.get_state, legacy=False),
                put=thing.set_state,
                renew=lambda seed: np.random.RandomState(seed % _SMALL_SEEDS).get_state(
                    legacy=False
                ),
            )
        case random.Random():
            return Keepsake(
                read=thing.getstate,
                put=thing.setstate,
                renew=lambda seed: random.Random(seed).getstate(),
            )
    return None


def _module(thing: torch.nn.Module) -> Keepsake:
    """A module that keeps more than its `state_dict` says."""
    numbers = Numbers(thing)

    def read() -> dict[str, Any]:
        said = _read(thing)
        return {"said": said, "unsaid": read_unsaid(thing), "numbers": numbers.changed()}

    def put(kept: Mapping[str, Any]) -> None:
        if not {"said", "unsaid"} <= kept.keys():
            raise ConfigError(
                f"the version has only the state_dict of a {type(thing).__name__} of `also`, which "
                "keeps more: an earlier gemini_lab saved it; take a version that this one saved"
            )
        _put(thing, kept["said"])
        put_unsaid(thing, kept["unsaid"])
        numbers.put(kept.get("numbers", {}))

    return Keepsake(read=read, put=put, is_made=True, room_bytes=_tensor_bytes(read()))


def _stateful(thing: Stateful) -> Keepsake:
    weights = _tensor_bytes(_read(thing))
    if isinstance(thing, torch.optim.Optimizer):  # it makes its tensors at its first step
        trained = (weight for group in thing.param_groups for weight in group["params"])
        weights = _ADAM_COPIES * sum(weight.nbytes for weight in trained)
    return Keepsake(
        read=partial(_read, thing),
        put=partial(_put, thing),
        is_made=True,
        room_bytes=weights,
    )


def _read(thing: Stateful) -> Mapping[str, object]:
    """What it says of itself; of a module that is sharded, this rank's shards."""
    state = thing.state_dict()
    plain = state if isinstance(state, dict) else dict(state)
    return to_shards(plain) if isinstance(thing, torch.nn.Module) else plain


def _put(thing: Stateful, state: dict[str, Any]) -> None:
    is_module = isinstance(thing, torch.nn.Module)
    thing.load_state_dict(to_dtensors(state, thing.state_dict()) if is_module else state)


def refill(kept: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Refill a dict in place; equal values stay, because others may hold them."""
    with suppress(UnsupportedError):  # it has what no version could have
        if encode(kept) == encode(dict(values)):
            return
    kept.clear()
    kept.update(values)


def _tensor_bytes(state: Any) -> int:
    """Bytes of all tensors and arrays in a nested state."""
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(_tensor_bytes, state))
    return 0
