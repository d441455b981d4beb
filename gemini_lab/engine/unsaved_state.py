"""Checks for state that versions lack and a script would lose in a failure: its author is told.

Nobody can say beforehand what training changes. So each check looks twice, and names what has
changed in between; what only stands there, as a teacher's weights do, is not named. `Bystanders`
are weights beside the engine's, and what a model has beside its weights and persistent buffers.
They show in no loss of the engine's, so nothing else tells that they were lost. `StrayLoaders` are
read and not handed over. What a script keeps in variables and objects of its own is not looked at:
a training process is never searched.
"""

import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import torch
import xxhash
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gemini_lab.engine.contract import Engine, StateView
from gemini_lab.engine.frameworks.optimizer_state import HOOKS, NO_VALUES, is_plain, parts_of
from gemini_lab.engine.frameworks.tensors import is_dtensor
from gemini_lab.engine.frameworks.torch_engine import optimizers_of
from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.own_code import is_own_type
from gemini_lab.engine.state.data_values import digest
from gemini_lab.engine.state.loaders import KINDS, LoaderWatch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.engine.state.small_state import persistent_buffers
from gemini_lab.engine.state.user_state import (
    OF_MODULES,
    OwnValues,
    is_metric,
    is_small,
    read_metric,
    read_values,
)
from gemini_lab.shard.codec import decode, encode

SAMPLE: Final = 256
"""Elements of a tensor that are looked at."""
_DEEPEST: Final = 6
_FEW: Final = "it has no more than 1,000 numbers and texts, and nothing else"
Look = Callable[[], int | None]
"""Gives a checksum of what something holds now; `None` where it is gone."""


class Bystanders:
    """Weights beside the engine that the script has not handed over.

    These are the kinds of the model's parts, its frozen weights, its buffers that are not
    persistent, tensors in its attributes, modules outside of it, metrics, and other optimizers.
    Tensors in dictionaries and variables are not seen, nor what the script makes later. A few
    values of each are read now, and again whenever they are asked for.
    """

    def __init__(
        self,
        made: Sequence[object],
        engine: Engine,
        kept: Sequence[object] = (),
        values: OwnValues | None = None,  # of the model, which versions have
    ) -> None:
        self._left_out = set[str]() if values is None else values.left_out
        own = {id(part) for part in engine.module.modules()}
        weights = [*engine.module.parameters()]
        optimizers = optimizers_of(engine)
        states = [dict(getattr(one, "state", {})) for one in optimizers]
        taken = {_place(one) for one in _tensors([engine.module, *states, *kept])}
        taken |= {id(weight) for weight in weights}
        self._seen: list[tuple[str, Look, int | None]] = []
        handed = {_place(one) for one in _tensors(kept)}
        groups = [group for one in optimizers for group in getattr(one, "param_groups", ())]
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
        parts = [part for part in engine.module.modules() if is_own_type(type(part))]
        # Those of torch and DeepSpeed have only what is kept, or made again.
        for part in engine.module.modules():
            for name, helper in sorted(vars(part).items()):
                if _is_helper(helper):
                    text = f"tensors of {name!r} of a {type(part).__name__}"
                    self._watch(text, _look_at(helper, _held_by))
        trained = [one for one in optimizers if isinstance(one, torch.optim.Optimizer)]
        trained = [one for one in trained if not type(one).__module__.startswith("torch.")]
        others = [part for one in trained for _, part in parts_of(one)]
        for thing in (*parts, *others):
            for name in sorted(vars(thing).keys() - OF_MODULES - NO_VALUES):
                value = vars(thing)[name]
                if isinstance(value, (list, dict, deque, set)) and not name.startswith(HOOKS):
                    text = f"{name!r} of a {type(thing).__name__}, which comes back if {_FEW}"
                    self._watch(text, partial(_grown, ref(thing), name, id(value)))
        for name, tensors in _beside_weights(engine.module).items():
            self._note(name, [one for one in tensors if _place(one) not in known])
        kept_modules = [one for one in kept if isinstance(one, nn.Module)]
        kept_parts = {id(part) for one in kept_modules for part in one.modules()}
        modules = [m for m in made if isinstance(m, nn.Module) and "_modules" in vars(m)]
        for root in _roots(modules, own):
            found = [t for t in _tensors([root]) if not taken & {_place(t), id(t)}]
            taken |= {_place(tensor) for tensor in found}
            inside = root.module if isinstance(root, DistributedDataParallel) else root
            self._note(type(inside).__name__, found)
            parts = [*inside.modules()]
            is_own = any(is_own_type(type(part)) for part in parts)
            if is_own and id(inside) not in kept_parts and not any(map(is_metric, parts)):
                text = f"values in attributes of a {type(inside).__name__}"
                self._watch(text, _look_at(inside, _values_in))
        for part in modules:
            if is_metric(part) and id(part) not in own | kept_parts:
                self._watch(f"what a {type(part).__name__} has added up", _look_at(part, _added_up))
        for optimizer in _others(made, engine, kept):
            name = f"the state of another {type(optimizer).__name__}"
            self._watch(name, _look_at(optimizer, _stepped))

    def changed(self) -> list[str]:
        found = sorted(self._left_out)
        self._left_out.clear()
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
    found = ref(thing)
    return lambda: None if (there := found()) is None else read(there)


def _parts(model: nn.Module) -> int:
    return xxhash.xxh3_64_intdigest(repr([type(one).__name__ for one in model.modules()]).encode())


def _grown(held: ref[object], name: str, identity: int) -> int | None:
    """Return a checksum of a container that a thing still has and that no version keeps."""
    value = vars(thing).get(name) if (thing := held()) is not None else None
    is_kept = is_plain(value) or is_small(value)
    return digest(value) if id(value) == identity and not is_kept else None


def _is_helper(thing: object) -> bool:
    """Return whether it is a plain object that may hold tensors, such as averages of a library."""
    kind = type(thing)
    is_known = isinstance(thing, (nn.Module, torch.Tensor, torch.optim.Optimizer, *KINDS))
    is_plain_object = kind.__module__ not in {"builtins", "collections", "types"}
    is_torchs = kind.__module__.startswith(("torch.", "numpy"))
    return (
        not is_known
        and is_plain_object
        and not is_torchs
        and kind.__weakrefoffset__ > 0  # a tuple's or a number's own class has no references
        and bool(getattr(thing, "__dict__", None))
    )


def _held_by(thing: object) -> int:
    held = [*_tensors([*vars(thing).values()], depth=_DEEPEST - 2)]
    return _sum_of(held, len(held))


def _values_in(module: nn.Module) -> int:
    return xxhash.xxh3_64_intdigest(repr(read_values(module)).encode())


def _added_up(metric: Any) -> int:
    return _sum_of(_tensors([read_metric(metric)]), int(metric.update_count))


def _stepped(optimizer: torch.optim.Optimizer) -> int:
    return _sum_of(_tensors([dict(optimizer.state)]), len(optimizer.state))


def _others(
    made: Iterable[Any], engine: Engine, kept: Sequence[object]
) -> Iterator[torch.optim.Optimizer]:
    """Yield optimizers that are neither the engine's nor handed over, nor wrap these."""
    known = {id(one) for one in (*kept, *optimizers_of(engine))}
    known |= {id(getattr(one, "optimizer", one)) for one in (*kept, *optimizers_of(engine))}
    for one in made:
        is_one = isinstance(one, torch.optim.Optimizer) and hasattr(one, "state")
        if is_one and known.isdisjoint({id(one), id(getattr(one, "optimizer", one))}):
            yield one


def _beside_weights(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    """Return the model's tensors that no version has, by names and what would keep them."""
    found = defaultdict(list)
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            # torch keeps only here which buffers `state_dict` leaves out.
            if name in part._non_persistent_buffers_set:  # noqa: SLF001
                found[f"the model's buffers {name!r}, which persistent=True keeps"].append(buffer)
        for name, value in vars(part).items():
            if type(value) is torch.Tensor and not (is_own_type(type(part)) and is_small(value)):
                found[f"its attributes {name!r}, which register_buffer keeps"].append(value)
    return found


def _roots(modules: Sequence[nn.Module], own: set[int]) -> Iterator[nn.Module]:
    """Return modules that are no part of others, of the model, or of another engine."""
    of_engines = {
        id(part) for one in modules if isinstance(one, DeepSpeedEngine) for part in one.modules()
    }
    parts = {id(child) for one in modules for child in one.children()} | own | of_engines
    return (one for one in modules if id(one) not in parts)


def _tensors(things: Iterable[object], depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in modules, containers, and objects with a state."""
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
            # What merely hangs on it is not asked: an optimizer may step to say its state, and a
            # loader may begin an epoch.
            said = {} if depth else thing.state_dict()
            yield from _tensors([said, getattr(thing, "__dict__", {})], depth + 1)


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
    """Return whether it has values now: FSDP2 frees those of gathered weights."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    return bool(tensor.untyped_storage().nbytes())


def _sum_of(tensors: Iterable[torch.Tensor], count: int = 0) -> int:
    """Return a checksum of a count, and of the first values of each."""
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


class StrayLoaders:
    """Looks at iterators of loaders, and keeps none of them alive.

    Args:
        sources: What says where the data stand: loaders or their watches, or objects that may read
            a loader by themselves; where there is such a one, nothing is looked at.
    """

    def __init__(self, sources: Sequence[object]) -> None:
        loaders = [one.loader if isinstance(one, LoaderWatch) else one for one in sources]
        self._is_blind = not all(isinstance(one, KINDS) for one in loaders)
        self._known = {id(part) for loader in loaders for part in _samplers(loader)}
        self._seen: list[tuple[weakref.ref[Any], int]] = []

    def look(self) -> None:
        """See who is amid an epoch."""
        if self._is_blind:
            return
        self._seen = [
            (weakref.ref(one), taken)
            for one in made_objects()
            if isinstance(one, _BaseDataLoaderIter)
            and (taken := _taken_amid(one))
            and self._known.isdisjoint(map(id, _samplers(one)))
        ]

    def read_on(self) -> list[str]:
        """Return the data sets of loaders that were read on since the last look, each once."""
        seen, self._seen = self._seen, []
        alive = [(one, taken) for held, taken in seen if (one := held()) is not None]
        # A DataLoader's iterator has no public way to its data set.
        read = [one._dataset for one, taken in alive if _taken_amid(one) > taken]  # noqa: SLF001
        return sorted({f"a DataLoader of a {type(data).__name__}" for data in read})


def _samplers(reads: object) -> list[object]:
    """Return what identifies a loader and its iterators: its batches' indices and samplers."""
    names = ("_index_sampler", "batch_sampler", "sampler", "data_sampler")
    found = [getattr(reads, name, None) for name in names]
    found += [getattr(one, "sampler", None) for one in found]
    return [one for one in found if one is not None]


def _taken_amid(iterator: Any) -> int:
    """Return how many batches an iterator has given; 0 outside of an epoch."""
    taken: int = getattr(iterator, "_num_yielded", 0)  # one that could not be made has none
    try:
        return taken if taken < len(iterator) else 0
    except Exception:  # noqa: BLE001 - a stream has no length, and a sampler's own may be amiss
        return taken


_FEW_NAMES: Final = 3
_SAME: Final = 40  # characters by which a remark is known whose names may grow
_LOOKS: Final = 3  # so many versions of a worker are looked at
_GLANCES: Final = (3, 10, 30, 100, 300, 1000, 3000)  # versions, after which it is looked around

STANDS_STILL: Final = (
    "the position in the data did not move during an iteration, so batches would repeat after a "
    "failure: pass `protect` the loader that training reads, and make its iterator after `protect`"
)
TAKE_TURNS: Final = (
    "the script reads two iterators of one loader in turn, and a version keeps the position of the "
    "newer one only: read the other one, such as an evaluation, from a loader of its own"
)
READS_AHEAD: Final = (
    "the script asked for {} batches before its first forward pass, and for one before each later "
    "one. If it holds the next batch while it trains on another one, a failure would leave that "
    'batch out: hold one at most, and set "reads_ahead": true. If it only looks at the first '
    "batches, it may stay as it is"
)
ARE_STRAYS: Final = (
    "the script reads loaders that `protect` does not know ({}), and after a failure they start "
    "from the beginning: make them before `protect`, and pass all loaders of the loop: "
    "protect(..., data=[loader, other])"
)
IS_AMBIGUOUS: Final = (
    "between the step and the next forward pass the script drew random numbers or changed "
    "client_state, and a version keeps both as they were right after the step: if that code is of "
    "the finished iteration (an evaluation, a counter), loop `for step in protected.steps(N)`"
)
ASKS_NOTHING: Final = (
    "the script never asked where to continue, so a loop from 0 would repeat the first iterations "
    "after a recovery: loop `for step in protected.steps(N)`, or from protected.step"
)
ARE_NOT_KEPT: Final = (
    "these change during training, and no version keeps them: {}. After a failure they are as the "
    "script makes them. To keep one, pass what holds it, such as an average or another model and "
    'its optimizer: protect(..., also={{"ema": ema}})'
)

COMPILED_BY_HISTORY: Final = (
    "torch.compile has compiled the model again, because {} changed: from then on it computes with "
    "other code, and which code depends on all that came before in a process. After a failure the "
    "last bits may differ. Choose one kind of code, by torch.compile(..., dynamic=True) or "
    "dynamic=False, and keep numbers that change in tensors"
)
COMES_LATE: Final = (
    "the script made a schedule of the optimizer after `protect` ({}), and no version keeps it: "
    "after a failure it would start from its beginning, at the restored rate; make it before "
    "`protect`"
)
IS_OVER: Final = (
    "version {version} was made after protected.{loop} had ended, so this start runs no pass of "
    "that loop, and a name that only its body sets, such as a last loss, has no value: give it one "
    "before the loop, or keep it in `client_state`"
)
DATA_CHANGE: Final = (
    "the data change values that no version keeps ({}), and after a failure these are as at the "
    "start: if later batches depend on them, give the object that holds them `state_dict` and "
    '`load_state_dict`, and pass it: protect(..., also={{"data": dataset}}); caches may stay'
)


class ScriptWatch:
    """Looks at what a script does around its versions, and says each thing once."""

    def __init__(
        self,
        script: ScriptState,
        remark: Callable[[str], None],
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.is_asked = False  # whether the script has asked where to go on
        self._script, self._remark, self._notices = script, remark, notices
        self._strays = StrayLoaders(script.sources)
        self._looks = _LOOKS
        self._sealed = 0
        self._positions = b""
        self._at_fetch: bytes | None = None  # what was drawn when a loader was first asked
        self._said: list[str] = []
        self._is_empty_loop_said = False
        for loader in script.watches:
            loader.on_fetch = self._see_fetch
            loader.on_return = partial(self.remark_once, TAKE_TURNS)

    @property
    def remarks(self) -> Sequence[str]:
        return self._said

    def end_update(self) -> None:
        """Count what loaders read from here on to the next iteration."""
        self._at_fetch = None

    def note_empty_loop(self, loop: str, *, version: int) -> None:
        """Say, once, that a loop gives no pass: what its body makes is not there."""
        if not self._is_empty_loop_said:
            self._is_empty_loop_said = True
            self.remark_once(IS_OVER.format(loop=loop, version=version))

    def see_version(self, drawn: bytes, *, at_top: bool) -> None:
        """Look at a version that is sealed."""
        if self._looks:
            self._look(decode(drawn), at_top=at_top)
        self._sealed += 1
        for text in self._notices():
            self.remark_once(text)
        for lead in {one.lead for one in self._script.watches if one.lead and not one.is_ahead}:
            self.remark_once(READS_AHEAD.format(lead + 1))
        if strays := self._strays.read_on():
            self.remark_once(ARE_STRAYS.format(", ".join(strays)))
        if self._sealed in (1, *_GLANCES):
            self._strays.look()
            if late := self._script.late_schedules():
                self.remark_once(COMES_LATE.format(", ".join(late)))
        is_told = any(text.startswith(COMPILED_BY_HISTORY[:_SAME]) for text in self._said)
        if self._sealed in _GLANCES and not is_told and (changing := _compiled_by_history()):
            self.remark_once(COMPILED_BY_HISTORY.format(", ".join(changing)))
        if self._sealed in _GLANCES and (names := self._script.bystanders()):
            self.remark_once(ARE_NOT_KEPT.format(", ".join(names)))
        if self._sealed in _GLANCES and (changes := self._script.data_changes()):
            self.remark_once(DATA_CHANGE.format(", ".join(changes)))

    def _look(self, drawn: StateView, *, at_top: bool) -> None:
        self._looks -= 1
        positions = encode([_without_counts(one) for one in drawn["data"]])
        if drawn["data"] and positions == self._positions:
            self.remark_once(STANDS_STILL)
        self._positions = positions
        others = {name: drawn[name] for name in ("client", "also", "own", "random")}
        if not at_top and encode(others) != (self._at_fetch or encode(self._script.others())):
            self.remark_once(IS_AMBIGUOUS)
        if not self._looks and not self.is_asked:
            self.remark_once(ASKS_NOTHING)

    def _see_fetch(self) -> None:
        """Keep what was drawn before a loader was asked for a batch."""
        if self._looks and self._at_fetch is None:
            self._at_fetch = encode(self._script.others())

    def remark_once(self, text: str) -> None:
        """Tell the script's author something, if that was not said yet."""
        if text not in self._said:
            self._said.append(text)
            self._remark(text)


def _compiled_by_history() -> list[str]:
    """Return names of what torch.compile took for constant at first, and for variable now."""
    states = getattr(sys.modules.get("torch._dynamo.pgo"), "_CODE_STATE", None) or {}
    variable = getattr(sys.modules.get("torch._dynamo.pgo"), "auto_dynamic", None)
    found = set[str]()
    for state in states.values():
        for name, entry in state.automatic_dynamic.items():
            sizes = entry.size if isinstance(entry.size, tuple) else (entry.scalar,)
            found |= {name} if any(one is variable for one in sizes) else set()
    return sorted(found)[:_FEW_NAMES]


def _without_counts(position: Any) -> Any:
    """Return a position without what the data count and draw, which they may do for others, too."""
    is_counted = isinstance(position, dict) and "taken" in position
    names = position.keys() - {"own", "counts"} if is_counted else ()
    return {name: position[name] for name in sorted(names)} if is_counted else position
