"""The script's `also`: generators, and objects of its own with a state, read and put back.

Also what a module's `state_dict` leaves out: metrics, whose sums torchmetrics does not give by
default, buffers that are not persistent, and in attributes plain values and a few small tensors,
such as the hidden state that a recurrent model takes from batch to batch.
"""

import random
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn

from gemini_lab.engine.contract import StateDict, Stateful, StateView
from gemini_lab.engine.frameworks.optimizer_state import (
    graded,
    in_place,
    is_plain,
    put_graded,
    refilled,
)
from gemini_lab.engine.frameworks.tensors import to_dtensors, to_shards
from gemini_lab.engine.own_code import is_own_type
from gemini_lab.engine.random_states import GENERATORS, Generator, put_generator, read_generator
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode

Unsaid = dict[str, StateDict]
"""For each part of a module that has something, by its name: attributes and their values."""

OF_MODULES: Final = frozenset(vars(nn.Module()))
"""Attributes that torch gives each module, which are kept otherwise or are its own."""
_LAYERS: Final = "torch.nn.modules."
_PYTHONS: Final = {"builtins", "abc", "typing"}
_IN_FRONT: Final = ("torch.distributed.", "torch.nn.utils.")
_SCALARS: Final = (bool, str, type(None))
_CONTAINERS: Final = (list, tuple, dict, OrderedDict, deque)
OF_PROCESS: Final = re.compile(r"(^|_)(fd|fileno|handle|pid|socket)(_|s?$)", re.IGNORECASE)
"""Names of numbers that mean nothing in another process."""
_ROOM_BYTES: Final = 128 * 2**10  # for all values of one module
_NUMBER_BYTES: Final = 9
_SMALL_BYTES: Final = 2**20  # of tensors in one attribute: larger ones are caches
_HELD_BYTES: Final = 4 * 2**20  # for all of them
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


class OwnValues:
    """Plain values in a module's parts that change; no `state_dict` says them.

    Those that stay as they were found are of one process, such as a rank, and belong to it.

    Args:
        module: The module.
        keeps_tensors: Whether tensors in attributes of its parts are kept, too. If not, the values
            of a part that has some are left alone: a length without the cache that it measures
            would make the part read what is not there.
    """

    def __init__(self, module: nn.Module, *, keeps_tensors: bool = False) -> None:
        self._module, self._keeps_tensors = module, keeps_tensors
        self._all: list[nn.Module] = []
        self._parts = [_Part(name, part, module) for name, part in module.named_modules()]
        self._walk()
        held_bytes = sum(part.held_bytes for part in self._parts)
        self.room_bytes = _ROOM_BYTES + min(held_bytes, _HELD_BYTES)
        # Names of what changed, and had no room or no place.
        self.left_out = set[str]()

    @property
    def is_empty(self) -> bool:
        """Return whether there are none that could change."""
        return not any(part.first for part in self._parts)

    def changed(self) -> Unsaid:
        """Return those that have changed since this was made: numbers, and encoded containers.

        A model has a thousand parts, and this runs with every version.
        """
        if _children(self._all) != self._children:
            self._walk()
        found, left_bytes = defaultdict[str, StateDict](dict), self.room_bytes
        for part in self._parts:
            if not part.may_differ():
                continue
            differing, has_more = part.differing(), not self._keeps_tensors and part.has_more()
            tensors = {key for key in differing if is_small(vars(part.part)[key])}
            sizes = {key: _bytes_of(one) for key, one in differing.items()}
            is_view = any(_shares(vars(part.part)[key], self._module) for key in tensors)
            if has_more or is_view or (tensors and sum(sizes.values()) > left_bytes):
                # All or nothing: a length without its cache would read what is not there.
                kind: Any = type(part.part)
                # A metric is told elsewhere, and a library makes its caches again.
                if is_own_type(kind) and not is_metric(part.part):
                    self.left_out |= {
                        f"{key!r} of a {kind.__name__}, which also has tensors or objects that no "
                        "version keeps"
                        for key in [*differing][:1]
                        if key not in tensors or part.moves(key)
                    }
                continue
            for key, one in differing.items():
                left_bytes -= sizes[key]
                if left_bytes >= 0:
                    found[part.name][key] = one
                else:
                    self.left_out.add(
                        f"{key!r} of a part of the model, where there are too many values"
                    )
        return dict(found)

    def put(self, changed: Unsaid) -> None:
        """Put back what `changed` gave, and all others as they were at first."""
        self._walk()
        filled = set[int]()
        for part in self._parts:
            then, held = changed.get(part.name, {}), part.values()
            if not then and not self._keeps_tensors and part.has_more():
                continue
            for key, one in {**part.first, **then}.items():
                # What has become a tensor, say, is no value any more.
                is_other = key not in then and key in vars(part.part) and key not in held
                current = vars(part.part).get(key)
                if is_other or (key in held and _is_same(held[key], one)):
                    filled.add(id(current))
                    continue
                value = decode(one) if type(one) is bytes else one
                vars(part.part)[key] = part.placed(key, value, filled)

    def _walk(self) -> None:
        """Find all parts: a script may give a model further ones."""
        known = {id(part.part): part for part in self._parts}
        named = [*self._module.named_modules()]
        self._all = [part for _, part in named]
        self._children = _children(self._all)
        self._parts = [
            known.get(id(part)) or _Part(name, part, self._module, is_new=True)
            for name, part in named
        ]


class _Part:
    """A part of a module, and what its attributes held when this was made."""

    def __init__(
        self, name: str, part: nn.Module, module: nn.Module, *, is_new: bool = False
    ) -> None:
        self.name, self.part = name, part
        own = {key: one for key, one in vars(part).items() if key not in OF_MODULES}
        # Views of weights are as these are; a copy in their place would be so no longer.
        self._views = {key for key, one in own.items() if _shares(one, module)}
        self.first: StateDict = {} if is_new else self.values()
        # Tensors count their changes: no bytes of them have to be read to see that there are none.
        self._tensors = {key: _signed(own[key]) for key in self.first if is_small(own[key])}
        self._looked = dict(self._tensors)  # when one had no room
        self.held_bytes = sum(len(self.first[key]) for key in self._tensors)
        # Numbers, texts and tuples never change in place: another object is another value.
        values = self.first.keys() - self._tensors.keys()
        self._fixed = [(key, one) for key, one in own.items() if key in values]
        self._things = {key: id(one) for key, one in own.items() if key not in self.first}
        self._kinds = [(key, type(own[key])) for key in self._things]
        self._size = len(vars(part))
        self._is_read = is_new or not all(_is_fixed(one) for _, one in self._fixed)

    def may_differ(self) -> bool:
        """Return whether a value may have changed, which takes no encoding to see."""
        held = vars(self.part)
        return (
            self._is_read
            or len(held) != self._size
            or any(held.get(key) is not one for key, one in self._fixed)
            or any(not _is_signed(held.get(key), one) for key, one in self._tensors.items())
            or any(type(held.get(key)) is not kind for key, kind in self._kinds)
        )

    def values(self) -> StateDict:
        return {key: one for key, one in _values(self.part).items() if key not in self._views}

    def placed(self, key: str, value: Any, filled: set[int]) -> Any:
        """Return a value as this part may have it by that name."""
        made = [tensor for tensor, _ in self._tensors.get(key, ())]
        put = partial(_put_tensors, self.part, made, filled)
        return refilled(vars(self.part).get(key), value, filled, put)

    def differing(self) -> StateDict:
        """Return the values that are not as at first."""
        first = self.first
        return {
            key: one
            for key, one in self.values().items()
            if key not in first or not _is_same(first[key], one)
        }

    def moves(self, key: str) -> bool:
        """Return whether a tensor was there before, and has changed; a cache is made once."""
        now, before = vars(self.part)[key], self._looked.get(key)
        self._looked[key] = _signed(now)
        return before is not None and not _is_signed(now, before)

    def has_more(self) -> bool:
        """Return whether attributes have tensors, or other objects than at first."""
        values = self.values()
        held = vars(self.part)
        return bool(held["_non_persistent_buffers_set"]) or any(
            _has_tensors(one) or self._things.get(key) != id(one)
            for key, one in held.items()
            if key not in OF_MODULES
            and key not in values
            and key not in self._views
            and not isinstance(one, (*GENERATORS, int, float))
        )


def _bytes_of(one: object) -> int:
    return len(one) if isinstance(one, (bytes, str)) else _NUMBER_BYTES


def is_small(value: Any) -> bool:
    """Return whether this is a small tensor, or a list, tuple or dict of such and nothing else."""
    found = _tensors_in(value)
    return bool(found) and sum(one.nbytes for one in found) <= _SMALL_BYTES


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of such a value; none if there is anything else in it."""
    if type(value) is torch.Tensor:
        is_one = value.layout == torch.strided and not (value.is_leaf and value.requires_grad)
        return [value] if is_one and not value.is_meta else []
    if type(value) not in (list, tuple, dict):
        return []
    inner = [_tensors_in(one) for one in (value.values() if type(value) is dict else value)]
    return [one for found in inner for one in found] if all(inner) else []


def _signed(value: Any) -> list[tuple[torch.Tensor, int]]:
    # torch has no public name for how often a tensor was changed.
    return [(one, one._version) for one in _tensors_in(value)]  # noqa: SLF001


def _is_signed(value: Any, signed: Sequence[tuple[torch.Tensor, int]]) -> bool:
    now = _signed(value)
    return len(now) == len(signed) and all(
        one is other and version == count
        for (one, version), (other, count) in zip(now, signed, strict=True)
    )


def _shares(value: Any, module: nn.Module) -> bool:
    """Return whether a tensor of this value is a view of a module's weights or buffers."""
    found = {one.untyped_storage().data_ptr() for one in _tensors_in(value)} - {0}
    return bool(found) and any(
        one.untyped_storage().data_ptr() in found
        for one in (*module.parameters(), *module.buffers())
        if type(one) in (torch.Tensor, nn.Parameter)
    )


def _put_tensors(
    part: nn.Module, made: Sequence[torch.Tensor], filled: set[int], held: Any, value: Any
) -> Any:
    """Return a value on the device of what it replaces.

    A tensor that the part was made with is written in place, as others may hold it. One that came
    later may be a step's result, which the script still reads.
    """
    put = partial(_put_tensors, part, made, filled)
    if type(value) in (list, tuple):
        is_like = type(held) is type(value) and len(held) == len(value)
        there = held if is_like else [None] * len(value)
        return type(value)(put(*pair) for pair in zip(there, value, strict=True))
    if type(value) is dict:
        there = held if type(held) is dict else {}
        return {name: put(there.get(name), one) for name, one in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if any(held is one for one in made) and (id(held) not in filled or _is_equal(held, value)):
        filled.add(id(held))
        return in_place(held, value)
    near = [*_tensors_in(held), *part.parameters(), *part.buffers()]
    return value.to(near[0].device) if near else value


def _is_equal(held: torch.Tensor, value: torch.Tensor) -> bool:
    return held.dtype == value.dtype and encode(held) == encode(value)


def _children(parts: Iterable[nn.Module]) -> int:
    return sum(len(vars(part)["_modules"]) for part in parts)


def _is_fixed(one: object) -> bool:
    if isinstance(one, tuple):
        return all(_is_fixed(inner) for inner in one)
    return type(one) in (int, float, *_SCALARS)


def _has_tensors(one: object) -> bool:
    if isinstance(one, dict):
        one = [*one.values()]
    if isinstance(one, (list, tuple, set, deque)):
        return any(_has_tensors(inner) for inner in one)
    return isinstance(one, torch.Tensor) and not isinstance(one, nn.Parameter)


def read_values(module: nn.Module) -> Unsaid:
    """Return plain values in attributes of a module's parts that torch keeps nowhere.

    Containers of a script's own parts, and of torch's layers, are encoded. Of other packages' parts
    only numbers count: the rest is theirs to make.
    """
    found = {name: _values(part) for name, part in module.named_modules()}
    return {name: held for name, held in found.items() if held}


def _values(part: nn.Module) -> StateDict:
    kind: Any = type(part)  # of which mypy does not know that it has a hash
    keeps_containers, hides_private, keeps_numbers = _kept_of(kind)
    is_own = is_own_type(kind)
    found = StateDict()
    for key, one in vars(part).items() if keeps_numbers else ():
        if key in OF_MODULES or (hides_private and key.startswith("_")):
            continue
        if type(one) in (int, float) or (keeps_containers and type(one) in _SCALARS):
            if type(one) is not int or not OF_PROCESS.search(key):
                found[key] = one
        elif keeps_containers and (
            (type(one) in _CONTAINERS and is_plain(one)) or (is_own and is_small(one))
        ):
            found[key] = encode(one)
    return found


@cache
def _kept_of(kind: type) -> tuple[bool, bool, bool]:
    """Return whether containers of such a part, all but private names, and numbers are kept."""
    # fully_shard and parametrizations put a class of torch's in front of a part's own.
    own = next(one for one in kind.__mro__ if not one.__module__.startswith(_IN_FRONT))
    is_torchs = own.__module__.startswith("torch.")
    is_whole = is_own_type(own) or own.__module__.startswith(_LAYERS)
    modules = {one.__module__ for one in own.__mro__ if not is_own_type(one)} - _PYTHONS
    is_mixed = not all(one.startswith(_LAYERS) for one in modules)
    return is_whole, is_whole and is_mixed, is_whole or not is_torchs


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


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
    if isinstance(thing, GENERATORS):
        return _generator(thing)
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
    if isinstance(thing, torch.nn.Module) and (read_unsaid(thing) or not OwnValues(thing).is_empty):
        return _module(thing)
    return _stateful(thing)


def _generator(thing: Generator) -> Keepsake:
    return Keepsake(
        read=partial(read_generator, thing),
        put=partial(put_generator, thing),
        renew=partial(_renewed, thing),
    )


def _renewed(thing: Generator, seed: int) -> object:
    """Return the state of one of its kind that is seeded with a number."""
    match thing:
        case torch.Generator():
            return torch.Generator(thing.device).manual_seed(seed).get_state()
        case np.random.Generator():
            bits: Any = type(thing.bit_generator)
            return bits(seed).state
    kind: Any = type(thing)
    is_pythons = isinstance(thing, random.Random)
    return read_generator(kind(seed if is_pythons else seed % _SMALL_SEEDS))


def _module(thing: torch.nn.Module) -> Keepsake:
    """Return how to keep a module that has more than its `state_dict` says."""
    values = OwnValues(thing, keeps_tensors=True)

    def read() -> StateDict:
        said = _read(thing)
        return {"said": said, "unsaid": read_unsaid(thing), "numbers": values.changed()}

    def put(kept: StateView) -> None:
        if not {"said", "unsaid"} <= kept.keys():
            if read_unsaid(thing):
                raise ConfigError(
                    f"the version has only the state_dict of a {type(thing).__name__} of `also`, "
                    "which keeps more: an earlier gemini_lab saved it; take a version that this "
                    "one saved"
                )
            kept = {"said": kept, "unsaid": {}}
        _put(thing, kept["said"])
        put_unsaid(thing, kept["unsaid"])
        values.put(kept.get("numbers", {}))

    return Keepsake(read=read, put=put, is_made=True, room_bytes=_tensor_bytes(read()))


def _stateful(thing: Stateful) -> Keepsake:
    if isinstance(thing, torch.optim.Optimizer):
        return _optimizer(thing)
    return Keepsake(
        read=partial(_read, thing),
        put=partial(_put, thing),
        is_made=True,
        room_bytes=_tensor_bytes(_read(thing)),
    )


def _optimizer(thing: torch.optim.Optimizer) -> Keepsake:
    def trained() -> list[torch.Tensor]:
        return [weight for group in thing.param_groups for weight in group["params"]]

    def put(kept: StateView) -> None:
        groups, state = thing.param_groups, thing.state
        # A version of an earlier gemini_lab has the state_dict alone.
        _put(thing, kept.get("said", kept))
        # torch replaces both, and a schedule of the script's own may hold them.
        thing.param_groups = refilled(groups, thing.param_groups, set(), in_place)
        thing.state = refilled(state, thing.state, set(), in_place)
        put_graded(trained(), kept.get("graded", []))

    return Keepsake(
        read=lambda: {"said": _read(thing), "graded": graded(trained())},
        put=put,
        is_made=True,
        # It makes its tensors at its first step.
        room_bytes=_ADAM_COPIES * sum(weight.nbytes for weight in trained()),
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
    """Refill a dict in place, and the containers in it; what is equal stays: others may hold it."""
    with suppress(UnsupportedError):  # it has what no version could have
        if encode(kept) == encode(dict(values)):
            return
    found = refilled(dict(kept), dict(values), set())
    kept.clear()
    kept.update(found)


def _tensor_bytes(state: object) -> int:
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(_tensor_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(_tensor_bytes, state))
    return 0
