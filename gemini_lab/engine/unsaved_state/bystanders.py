"""Weights beside the engine's that change while it trains: they will not come back, so it is said.

Averaged weights and second models show in no loss of the engine's, so nothing else tells that they
were lost. Whether they are trained, or stand still as a teacher does, is seen by looking twice. So
is what a model has beside its weights and persistent buffers, such as a memory of what it saw.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import torch
import xxhash
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine.frameworks.sharding import is_dtensor
from gemini_lab.engine.own_code import is_own_type
from gemini_lab.engine.state.hidden_module_state import is_metric, read_metric
from gemini_lab.engine.state.small_state import persistent_buffers

SAMPLE: Final = 256
"""Elements of a tensor that are looked at."""
_DEEPEST: Final = 6
Look = Callable[[], int | None]
"""Gives a checksum of what something holds now; `None` where it is gone."""


class Bystanders:
    """Weights beside the engine that the script has not handed over.

    These are the kinds of the model's parts, its frozen weights, its buffers that are not
    persistent, tensors in its attributes, modules outside of it, metrics, and other optimizers.
    Tensors in dictionaries and variables are not seen, nor what the script makes later. A few
    values of each are read now, and again whenever they are asked for.

    Args:
        made: What this process has made.
        engine: What is protected.
        kept: What travels with versions already.
    """

    def __init__(self, made: Sequence[object], engine: Any, kept: Sequence[object] = ()) -> None:
        own = {id(part) for part in engine.module.modules()}
        weights = [*engine.module.parameters()]
        state = getattr(engine.optimizer, "state", {})
        taken = {_place(one) for one in _tensors([engine.module, dict(state), *kept])}
        taken |= {id(weight) for weight in weights}
        self._seen: list[tuple[str, Look, int | None]] = []
        handed = {_place(one) for one in _tensors(kept)}
        groups = getattr(engine.optimizer, "param_groups", ())
        kept_frozen = handed | {id(weight) for group in groups for weight in group["params"]}
        frozen = [
            w for w in weights if not w.requires_grad and not kept_frozen & {_place(w), id(w)}
        ]
        self._note("frozen weights of the model", frozen)
        known = handed | {_place(one) for one in weights}
        known |= {_place(buffer) for _, buffer in persistent_buffers(engine.module)}
        self._watch(
            "the model's parts, which are made before `protect`", _look_at(engine.module, _parts)
        )
        for name in sorted({key for part in _own_parts(engine.module) for key in _numbers(part)}):
            self._watch(
                f"the number {name!r} in the model's parts, which a buffer keeps",
                _look_at(engine.module, partial(_number, name=name)),
            )
        for name, tensors in _beside_weights(engine.module).items():
            self._note(name, [one for one in tensors if _place(one) not in known])
        modules = [m for m in made if isinstance(m, nn.Module) and "_modules" in vars(m)]
        for root in _roots(modules, own):
            found = [t for t in _tensors([root]) if not taken & {_place(t), id(t)}]
            taken |= {_place(tensor) for tensor in found}
            inside = root.module if isinstance(root, DistributedDataParallel) else root
            self._note(type(inside).__name__, found)
        for part in modules:
            if is_metric(part) and id(part) not in own | _parts_of(kept):
                self._watch(f"what a {type(part).__name__} has added up", _look_at(part, _added_up))
        for optimizer in _others(made, engine, kept):
            name = f"the state of another {type(optimizer).__name__}"
            self._watch(name, _look_at(optimizer, _stepped))

    def changed(self) -> list[str]:
        """Return those whose values have changed, in words, each once."""
        found = []
        for one in [*self._seen]:
            name, look, before = one
            if (now := look()) is not None and now != before:
                found.append(name)
                self._seen.remove(one)
        return found

    def _note(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        references = [ref(tensor) for tensor in tensors]
        if references:
            self._watch(name, partial(_digest, references))

    def _watch(self, name: str, look: Look) -> None:
        self._seen.append((name, look, look()))


def _digest(references: Sequence[ref[torch.Tensor]]) -> int | None:
    """Return a checksum of the first values of each; `None` once one is gone."""
    tensors = [reference() for reference in references]
    found = [tensor for tensor in tensors if tensor is not None]
    return _sum_of(found) if len(found) == len(tensors) else None


def _look_at(thing: Any, read: Callable[[Any], int]) -> Look:
    """Reads it as long as it is there."""
    found = ref(thing)
    return lambda: None if (there := found()) is None else read(there)


def _parts(model: nn.Module) -> int:
    """A checksum of which kinds of parts it has, in order."""
    return xxhash.xxh3_64_intdigest(repr([type(one).__name__ for one in model.modules()]).encode())


def _own_parts(model: nn.Module) -> Iterator[nn.Module]:
    return (part for part in model.modules() if is_own_type(type(part)))


def _numbers(part: nn.Module) -> Mapping[str, int | float]:
    return {key: one for key, one in vars(part).items() if type(one) in (int, float)}


def _number(model: nn.Module, *, name: str) -> int:
    """A checksum of a number that the script's own parts of a model have by this name."""
    held = [_numbers(part).get(name) for part in _own_parts(model)]
    return xxhash.xxh3_64_intdigest(repr(held).encode())


def _added_up(metric: Any) -> int:
    return _sum_of(_tensors([read_metric(metric)]), int(metric.update_count))


def _stepped(optimizer: torch.optim.Optimizer) -> int:
    return _sum_of(_tensors([dict(optimizer.state)]), len(optimizer.state))


def _others(
    made: Iterable[Any], engine: Any, kept: Sequence[object]
) -> Iterator[torch.optim.Optimizer]:
    """Optimizers that are neither the engine's, nor handed over, nor around or inside of these."""
    known = {id(one) for one in (*kept, engine.optimizer)}
    known |= {id(getattr(one, "optimizer", one)) for one in (*kept, engine.optimizer)}
    for one in made:
        is_one = isinstance(one, torch.optim.Optimizer) and hasattr(one, "state")
        if is_one and known.isdisjoint({id(one), id(getattr(one, "optimizer", one))}):
            yield one


def _parts_of(kept: Sequence[object]) -> set[int]:
    return {id(part) for one in kept if isinstance(one, nn.Module) for part in one.modules()}


def _beside_weights(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    """The model's own tensors that no version has, by their names and what would keep them."""
    found = defaultdict(list)
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name in part._non_persistent_buffers_set:  # noqa: SLF001 - torch asks it so too
                found[f"the model's buffers {name!r}, which persistent=True keeps"].append(buffer)
        for name, value in vars(part).items():
            if type(value) is torch.Tensor:
                found[f"its attributes {name!r}, which register_buffer keeps"].append(value)
    return found


def _roots(modules: Sequence[nn.Module], own: set[int]) -> Iterator[nn.Module]:
    """Modules that are no part of others, of the model, or of another engine."""
    of_engines = {
        id(part) for one in modules if isinstance(one, DeepSpeedEngine) for part in one.modules()
    }
    parts = {id(child) for one in modules for child in one.children()} | own | of_engines
    return (one for one in modules if id(one) not in parts)


def _tensors(things: Iterable[Any], depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in modules, containers, and objects with a state."""
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, nn.Module):
            yield from thing.parameters()
            yield from thing.buffers()
        elif depth >= _DEEPEST:
            continue
        elif isinstance(thing, Mapping):
            yield from _tensors(thing.values(), depth + 1)
        elif isinstance(thing, list | tuple):
            yield from _tensors(thing, depth + 1)
        elif hasattr(thing, "state_dict"):
            yield from _tensors([thing.state_dict(), getattr(thing, "__dict__", {})], depth + 1)


def _held(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    part = getattr(tensor, "ds_tensor", None)
    part = tensor if part is None else part
    held: torch.Tensor = part.to_local() if is_dtensor(part) else part
    return held


def _place(tensor: torch.Tensor) -> int:
    """Return where its values lie; its own identity if it has none."""
    held = _held(tensor)
    return held.untyped_storage().data_ptr() if _is_filled(held) else id(tensor)


def _is_filled(tensor: torch.Tensor) -> bool:
    """Whether it has values now: FSDP2 frees those of gathered weights."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    return bool(tensor.untyped_storage().nbytes())


def _sum_of(tensors: Iterable[torch.Tensor], count: int = 0) -> int:
    """A checksum of a count, and of the first values of each."""
    digest = xxhash.xxh3_64(str(count).encode())
    for tensor in tensors:
        if not _is_filled(_held(tensor)):
            continue
        row = _held(tensor).detach()
        while row.dim() > 1 and row.numel() > SAMPLE and row.shape[0]:
            row = row[0]
        sample = row.flatten()[:SAMPLE].clone().cpu()  # numpy would pin down the storage itself
        digest.update(sample.view(torch.uint8).numpy().data)
    return digest.intdigest()
