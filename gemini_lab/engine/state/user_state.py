"""The script's `also`: generators, and objects of its own with a state, read and put back.

Also what a module's `state_dict` leaves out: metrics, whose sums torchmetrics does not give by
default, buffers that are not persistent, and plain numbers.
"""

import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn

from gemini_lab.engine.contract import StateDict, Stateful, StateView
from gemini_lab.engine.frameworks.tensors import to_dtensors, to_shards
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import encode

Unsaid = dict[str, StateDict]
"""For each part of a module that has something, by its name: attributes and their values."""

_OF_METRICS: Final = ("_computed", "_forward_cache", "_cache")
"""What a metric works out again from what it keeps."""


def read_unsaid(module: nn.Module) -> Unsaid:
    """Return the state of a module's parts beside their `state_dict`."""
    share_states(module)
    found = {
        name: read_metric(part) if is_metric(part) else _tensors(part)
        for name, part in module.named_modules()
    }
    return {name: kept for name, kept in found.items() if kept}


def put_unsaid(module: nn.Module, unsaid: Mapping[str, StateView]) -> None:
    """Put back what `read_unsaid` gave."""
    parts = dict(module.named_modules())
    if missing := unsaid.keys() - parts.keys():
        raise ConfigError(
            f"the version has something of {sorted(missing)} in a {type(module).__name__} of "
            "`also`, which has no such part now; make it as it was"
        )
    for name, kept in unsaid.items():
        put_attributes(parts[name], kept)


class Numbers:
    """Plain numbers in a module's parts that change, such as a count; no `state_dict` says them.

    Those that stay as they were found are of one process, such as a rank, and belong to it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._first = read_numbers(module)

    @property
    def is_empty(self) -> bool:
        """Return whether there are none that could change."""
        return not self._first

    def changed(self) -> Unsaid:
        """Return those that have changed since this was made."""
        first, now = self._first, read_numbers(self._module)
        found = {
            name: {key: one for key, one in held.items() if first.get(name, {}).get(key) != one}
            for name, held in now.items()
        }
        return {name: numbers for name, numbers in found.items() if numbers}

    def put(self, changed: Unsaid) -> None:
        """Put back what `changed` gave, and all others as they were at first."""
        parts = dict(self._module.named_modules())
        for numbers in (self._first, changed):
            for name in numbers.keys() & parts.keys():
                parts[name].__dict__.update(numbers[name])


def read_numbers(module: nn.Module) -> Unsaid:
    """Return plain numbers in attributes of a module's parts that torch has not written."""
    found = {
        name: {key: one for key, one in vars(part).items() if type(one) in (int, float)}
        for name, part in module.named_modules()
        if not type(part).__module__.startswith("torch.")
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def share_states(module: nn.Module) -> None:
    """Give each metric of a collection the sums of those that update for all."""
    for part in module.modules():
        if isinstance(part, _kinds("MetricTracker")):
            raise UnsupportedError(
                "a MetricTracker makes a metric at each increment(), which a start after a failure "
                "would not have; keep the metrics themselves, and what they came to in a dict"
            )
        if isinstance(part, _kinds("MetricCollection")):
            collection: Any = part
            # Members of a compute group share one metric's sums only when the collection is read
            # like this.
            collection.items(copy_state=False)


def is_metric(part: nn.Module) -> bool:
    """Return whether it is a metric of torchmetrics, if the script has imported that."""
    return isinstance(part, _kinds("Metric"))


def read_metric(metric: Any) -> StateDict:
    """Return a metric's sums and counts."""
    # torchmetrics lists a metric's states only in `_defaults`.
    states = {name: getattr(metric, name) for name in metric._defaults}  # noqa: SLF001
    counts = {
        name: value
        for name, value in vars(metric).items()
        if name.startswith("_") and type(value) is int
    }
    tensors = {name: t for name, t in _tensors(metric).items() if name not in _OF_METRICS}
    return {**tensors, **states, **counts}


def put_attributes(part: Any, kept: StateView) -> None:
    """Put these attributes back; of a metric what was worked out of others goes."""
    for name, value in kept.items():
        before = getattr(part, name, None)
        if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
            value = value.to(before.device)  # noqa: PLW2901
        setattr(part, name, value)
    if is_metric(part):
        # A cached result of other sums would be given once more; torchmetrics clears it in this
        # way.
        part._computed = None  # noqa: SLF001


def _tensors(part: nn.Module) -> dict[str, torch.Tensor]:
    """Return its buffers that are not persistent, and untrained tensors in its attributes."""
    # torch keeps only here which buffers `state_dict` leaves out.
    hidden = part._non_persistent_buffers_set  # noqa: SLF001
    buffers = {n: b for n, b in part.named_buffers(recurse=False) if n in hidden}
    loose = {
        name: value
        for name, value in vars(part).items()
        if type(value) is torch.Tensor and not value.requires_grad
    }
    return {**buffers, **loose}


def _kinds(name: str) -> tuple[type, ...]:
    package: Any = sys.modules.get("torchmetrics")
    kind = getattr(package, name, None)
    return () if kind is None else (kind,)


GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# numpy's RandomState refuses larger seeds.
_SMALL_SEEDS: Final = 2**32  # all that numpy's older generators can be seeded with
_ADAM_COPIES: Final = 3  # what Adam keeps, at most, in tensors of a weight's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepsake:
    """One thing of the script's own that travels with every version."""

    read: Callable[[], Any]  # its state now, for the codec
    put: Callable[[Any], object]  # puts such a state back, in place
    # Whether it is made of an update (a schedule, averaged weights), so that what the script does
    # to it after `engine.step()` belongs to that update. Of other things, such as generators,
    # nobody can tell.
    is_made: bool = False
    room_bytes: int = 0  # how large its state may become beyond what is usual for small things
    # Of a generator, the state that it has when it is seeded with a number.
    renew: Callable[[int], Any] | None = None


def keepsakes(also: Mapping[str, object]) -> dict[str, Keepsake]:
    """Return how to read and put back each thing of `also`.

    Raises:
        ConfigError: Something in it has no state that could be read and put back.
        UnsupportedError: It is another DeepSpeed engine.
    """
    return {name: _keepsake(name, thing) for name, thing in also.items()}


def _keepsake(name: str, thing: object) -> Keepsake:
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


def _generator(thing: object) -> Keepsake | None:
    """Return one of `GENERATORS`: torch's, numpy's or Python's."""
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
    """Return how to keep a module that has more than its `state_dict` says."""
    numbers = Numbers(thing)

    def read() -> StateDict:
        said = _read(thing)
        return {"said": said, "unsaid": read_unsaid(thing), "numbers": numbers.changed()}

    def put(kept: StateView) -> None:
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
    """Return its `state_dict`; of a sharded module, this rank's shards."""
    state = thing.state_dict()
    plain = state if isinstance(state, dict) else dict(state)
    return to_shards(plain) if isinstance(thing, torch.nn.Module) else plain


def _put(thing: Stateful, state: StateDict) -> None:
    is_module = isinstance(thing, torch.nn.Module)
    thing.load_state_dict(to_dtensors(state, thing.state_dict()) if is_module else state)


def refill(kept: StateDict, values: StateView) -> None:
    """Refill a dict in place; equal values stay, because others may hold them."""
    with suppress(UnsupportedError):  # it has what no version could have
        if encode(kept) == encode(dict(values)):
            return
    kept.clear()
    kept.update(values)


def _tensor_bytes(state: object) -> int:
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(_tensor_bytes, state))
    return 0
