"""The small part of a version: what an iteration changes beside the weights' own tensors.

`recast` makes it of those of another world size: it becomes what this rank would have captured, and
is loaded like any other. The rules are those of `resize_state.Heir`; a position in the data has one
of its own (`reshard_positions`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import torch
from torch import nn

from gemini_lab.engine.contract import Resharding, StateDict, StateView
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.optimizer_state import graded, put_graded
from gemini_lab.engine.frameworks.resize_state import Heir
from gemini_lab.engine.frameworks.tensors import is_dtensor, require_apart
from gemini_lab.engine.random_states import restore_random_states
from gemini_lab.engine.state.loaders import LoaderWatch
from gemini_lab.engine.state.rehearsal import differences, named
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode

_SHOWN: Final = 3


class ModelParts:
    """A model's weights, and its parts that have persistent buffers, as they are now.

    A buffer may come later, to a part that is there: a version puts it back by its name.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._weights = dict(module.named_parameters())
        self._parts = {name for name, _ in module.named_modules()}
        self._with_buffers = _parts_with_buffers(module)

    def require_same(self) -> None:
        """Refuse a model of other parts; name them."""
        weights = dict(self._module.named_parameters())
        if not _are_same(self._weights, weights):
            had = self._weights
            new = [n for n, one in weights.items() if n not in had or not _is_same(had[n], one)]
            raise _refusal("weights", new, self._weights.keys() - weights.keys())
        with_buffers = _parts_with_buffers(self._module)
        added, gone = with_buffers - self._parts, self._with_buffers - with_buffers
        if added or gone:
            raise _refusal("parts with buffers", added, gone)


def _are_same(then: dict[str, nn.Parameter], now: dict[str, nn.Parameter]) -> bool:
    """Return whether these are the same weights in order, by the same names in their parts.

    The parts' own names do not count: `torch.compile` of a part, say, changes them alone.
    """
    return len(then) == len(now) and all(
        name.rpartition(".")[2] == name_now.rpartition(".")[2] and _is_same(one, one_now)
        for (name, one), (name_now, one_now) in zip(then.items(), now.items(), strict=True)
    )


def _is_same(then: nn.Parameter, now: nn.Parameter) -> bool:
    """Return whether it is the same; FSDP2 may show a whole weight in place of its shard."""
    return then is now or is_dtensor(then)


def _parts_with_buffers(module: nn.Module) -> set[str]:
    """Return their names; also of parts that make buffers, or leave them out, later."""
    return {
        name
        for name, part in module.named_modules()
        # `named_buffers` skips those that are None by now: a part may make its buffer when it
        # computes.
        if part._buffers.keys() - part._non_persistent_buffers_set  # noqa: SLF001
    }


def _refusal(of: str, new: Collection[str], gone: Collection[str]) -> UnsupportedError:
    found = [
        f"{word} {of} {_few(names)}" for word, names in (("has new", new), ("lost", gone)) if names
    ]
    return UnsupportedError(
        f"since `protect` was called, the model {' and '.join(found)}; parts that are added, "
        "replaced or removed while it trains do not come back after a failure: make them all "
        "before `protect`, where what begins later may be frozen until then"
    )


def _few(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in islice(sorted(names), _SHOWN))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


_TRAINS: Final = "trains"  # which weights require gradients: some are frozen, or thawed, on the way
_MODES: Final = "modes"  # of the model's parts: a script may have a batch norm stand still
_GRADED: Final = "graded"  # in what form weights have a gradient, if they have one
_VALUES: Final = "values"  # in attributes of the model's parts
_ORDERS: Final = "orders"  # of gradients in the buckets of models beside the engine's
_COMPARED: Final = (
    *("counters", "optimizer", "scheduler", _TRAINS, _MODES, _GRADED, _VALUES, "buffers"),
    *("made", "client", "also", "own", "random"),
)
"""What is read back once it was put back: all but positions in the data, and orders of sums."""
_SYNCS: Final = "syncs"  # whether these take over buffers in their next forward pass
_DRAWN: Final = "drawn"  # bytes of their own: captured at another moment than the rest


def capture(framework: Framework, script: ScriptState, drawn: bytes) -> StateDict:
    """Return the small state as it is now: plain values and small tensors, for the codec."""
    buffers = dict(persistent_buffers(framework.module))
    for name, buffer in buffers.items():
        require_apart(buffer, f"the model's buffer {name!r}")
    trains = [weight.requires_grad for weight in framework.module.parameters()]
    return {
        **framework.capture(),
        _TRAINS: trains,
        _MODES: [part.training for part in framework.module.modules()],
        _GRADED: graded(framework.trained()),
        _VALUES: {} if script.values is None else script.values.changed(),
        _ORDERS: [order.indices for order in script.orders],
        _SYNCS: [order.syncs_buffers for order in script.orders],
        **folded(buffers=buffers, made=script.made(), drawn=drawn),
    }


def folded(*, buffers: StateView, made: StateView, drawn: bytes) -> StateDict:
    """Return the parts that no framework has, as `unfold` finds them."""
    return {"buffers": dict(buffers), "made": dict(made), _DRAWN: drawn}


def unfold(small: StateDict) -> StateDict:
    """Return a decoded small state with its parts side by side, as in versions of 0.1.0."""
    return {"made": {}, "also": {}, **small, **decode(small.get(_DRAWN, encode({})))}


def restore(
    small: StateView,  # as `unfold` gave it
    framework: Framework,  # whose model and optimizer
    script: ScriptState,  # what the script handed over
    *,
    with_data: bool = True,  # whether the positions in the data are put back as well
    in_place: bool = False,  # whether the script reads on with the iterators that it has
) -> None:
    """Put back what `capture` gave; the optimizer's tensors were put back before."""
    framework.restore(small)
    if trains := small.get(_TRAINS):
        weights = [*framework.module.parameters()]
        if len(weights) != len(trains):
            raise ConfigError(
                f"the model has {len(weights)} parameters, and had {len(trains)} in the version; "
                "parts that are added or removed while it trains do not come back: do so before "
                "`protect`"
            )
        for weight, is_trained in zip(weights, trains, strict=True):
            weight.requires_grad_(is_trained)
    for part, mode in zip(framework.module.modules(), small.get(_MODES, []), strict=False):
        part.training = mode
    put_graded(framework.trained(), small.get(_GRADED, []))
    if script.values is not None:
        script.values.put(small.get(_VALUES, {}))
    with named("the model's buffers"):
        put_buffers(framework.module, small["buffers"], framework.device)
    if with_data:
        script.put_data(small["data"], seeds=small.get("seeds", []), in_place=in_place)
    script.put(small)
    for order, syncs in zip(script.orders, small.get(_SYNCS, []), strict=False):
        order.syncs_buffers = syncs
    # Last: whatever was put back before may have drawn.
    restore_random_states(small["random"])


def put_orders(small: StateView, framework: Framework, script: ScriptState) -> None:
    """Put back in what order gradients are added up; all ranks together, before the rest."""
    framework.put_order(small)
    script.put_orders(small.get(_ORDERS, []))


def require_put_back(small: StateView, framework: Framework, script: ScriptState) -> None:
    """Refuse a small state that is not what `restore` was to put back; nothing is drawn."""

    def read() -> StateDict:
        now = unfold(capture(framework, script, encode(script.others())))
        return {name: now[name] for name in _COMPARED if name in small and name in now}

    now = read()
    found = differences({name: small[name] for name in now}, now)
    if found:
        unsteady = differences(now, read())  # what is another one each time that it is read
        found = {where: text for where, text in found.items() if where not in unsteady}
    for where, text in found.items():
        raise UnsupportedError(
            f"{where} does not come back from a version as it was: {text}; training would continue "
            "with other numbers after a failure. Keep an optimizer's state in the type of its "
            "weights, to which torch's load_state_dict casts it, and have any other "
            "load_state_dict put back what state_dict gave, bit by bit"
        )


def put_buffers(
    module: torch.nn.Module, kept: Mapping[str, torch.Tensor], device: torch.device
) -> None:
    """Put buffers back, also those that a model makes or sizes when it first computes."""
    for name, _ in [*persistent_buffers(module)]:
        if name not in kept:
            _place_of(module, name)[name.rpartition(".")[2]] = None
    for name, value in kept.items():
        place, own_name = _place_of(module, name), name.rpartition(".")[2]
        buffer = place.get(own_name)
        if buffer is None or buffer.dtype != value.dtype:  # as where a count became a mean
            place[own_name] = value.to(device if buffer is None else buffer.device, copy=True)
            continue
        with torch.no_grad():
            if buffer.shape != value.shape:
                buffer.resize_(value.shape)
            buffer.copy_(value)


def _place_of(module: torch.nn.Module, name: str) -> dict[str, torch.Tensor | None]:
    """Return the part of a model that has the buffer of that name."""
    part = dict(module.named_modules()).get(name.rpartition(".")[0])
    if part is None:
        raise ConfigError(
            f"the version has a buffer {name!r} of the model, which has no such part now; make the "
            "model as it was"
        )
    # Only this dictionary has the places of buffers that are None until the part computes.
    place: dict[str, torch.Tensor | None] = part._buffers  # noqa: SLF001
    return place


def persistent_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that belong to a model's state, such as the statistics of batch norms."""
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            # torch's own `state_dict` asks this set too; there is no public way.
            if name not in child._non_persistent_buffers_set:  # noqa: SLF001
                yield f"{prefix}.{name}" if prefix else name, buffer


def reshard_positions(
    sources: Sequence[object],
    positions: Sequence[Sequence[Any]],
    heir: Heir,
    *,
    may_restart: bool,
) -> list[Any]:
    """Return where each source is to go on; `None` if it starts over."""
    found: list[Any] = []
    for number, source in enumerate(sources):
        states = [one[number] for one in positions]
        if isinstance(source, Resharding):
            state = source.reshard_state_dict(states, rank=heir.rank, world_size=heir.ranks)
            found.append(state)
        elif (
            isinstance(source, LoaderWatch)
            and source.dealt is not None
            and all(one.get("dealt") is not None for one in states)
        ):
            found.append(_loader_position(source, states, heir))
        else:
            _begin_anew(source, heir, may_restart=may_restart)
            found.append(None)
    return found


def _begin_anew(source: object, heir: Heir, *, may_restart: bool) -> None:
    """Say that a source reads from its beginning, or refuse that."""
    thing = source.loader if isinstance(source, LoaderWatch) else source
    name = type(thing).__name__
    if not may_restart:
        raise heir.refusal(
            f"where in the data the {name} of data= is to go on cannot be told; read through a "
            "DistributedSampler, give the object a reshard_state_dict(states, *, rank, "
            'world_size), or set "data_on_resize": "restart" to read from the beginning'
        )
    heir.remark(f"the {name} of data= reads from its beginning: its position cannot be told")


def _loader_position(watch: LoaderWatch, states: Sequence[StateView], heir: Heir) -> StateDict:
    """Return a place after as many samples as all ranks had read, or a few less."""
    state: StateDict = {
        "now": _draws([one["now"] for one in states], heir),
        "dealt": watch.dealt,
        "own": heir.own([one.get("own", {}) for one in states], "what the data draw from"),
        "counts": heir.lent([one.get("counts", {}) for one in states], "what the data count"),
        "began": None,
        "taken": 0,
    }
    if all(one["began"] is None for one in states):
        return state
    what = "the number of batches that were read of the epoch"
    samples = heir.shared([one["taken"] * one["dealt"] for one in states], what)
    taken, again = divmod(samples, watch.dealt or 1)
    if again:
        heir.remark(
            f"{again} samples of the epoch are read twice: {samples} were read, and {heir.ranks} "
            f"ranks read {watch.dealt} at a time"
        )
    names = [name for name in ("began", "drawn_from") if all(one.get(name) for one in states)]
    begun = {name: _beginning([one[name] for one in states], heir) for name in names}
    return {**state, **begun, "taken": taken}


def _beginning(states: Sequence[StateView], heir: Heir) -> StateDict:
    return {
        "random": heir.random([one["random"] for one in states]),
        "draws": _draws([one["draws"] for one in states], heir),
        "own": heir.own([one.get("own", {}) for one in states], "what the data draw from"),
        "counts": heir.lent([one.get("counts", {}) for one in states], "what the data count"),
    }


def _draws(states: Sequence[Sequence[StateView]], heir: Heir) -> list[StateDict]:
    """Return what an epoch's order is drawn from, of the loader and each of its samplers."""
    return [
        {
            name: heir.drawn(
                [one[name] for one in parts],
                lambda seed: torch.Generator().manual_seed(seed).get_state(),
            )
            if name == "generator"
            else heir.shared([one[name] for one in parts], f"a sampler's {name}")
            for name in parts[0]
        }
        for parts in zip(*states, strict=True)
    ]


_EVERYWHERE: Final = ("epoch", "loops")
"""Extras of a version that a new rank has, too."""


def recast(
    smalls: Sequence[StateView],  # captures of the former ranks of this data-parallel group
    heir: Heir,
    framework: Framework,
    script: ScriptState,
    *,
    may_restart: bool,  # whether data may be read from their beginning
    had_number: bool,  # whether the rank that this one inherits from had the same number
) -> StateDict:
    """Return what `capture` would have given here, with its surroundings."""
    for small in smalls:
        script.require_fit(small)
        framework.require_fit(small)
    kept = {
        name: _keepsake(name, smalls, heir, script)
        for name in {**smalls[0]["also"], **smalls[0]["made"]}
    }
    made = {name: kept[name] for name in smalls[0]["made"]}
    drawn = {
        "data": reshard_positions(
            script.sources, [one["data"] for one in smalls], heir, may_restart=may_restart
        ),
        "client": heir.own([one["client"] for one in smalls], "client_state"),
        "also": {name: kept[name] for name in smalls[0]["also"]},
        "own": heir.own([one.get("own", []) for one in smalls], "what the data draw from"),
        "random": heir.random([one["random"] for one in smalls]),
    }
    return {
        **framework.recast(smalls, heir),
        **folded(
            buffers=heir.lent([one["buffers"] for one in smalls], "the model's buffers"),
            made=made,
            drawn=encode(drawn),
        ),
        _TRAINS: smalls[0].get(_TRAINS, []),
        _MODES: smalls[0].get(_MODES, []),
        _GRADED: smalls[0].get(_GRADED, []),
        _VALUES: smalls[0].get(_VALUES, {}),
        _ORDERS: heir.shared([one.get(_ORDERS, []) for one in smalls], "DDP's buckets"),
        "extra": _extra(smalls, heir, had_number=had_number),
        "at_top": all(one.get("at_top") for one in smalls),
    }


def _keepsake(name: str, smalls: Sequence[StateView], heir: Heir, script: ScriptState) -> Any:
    keepsake, what = script.keepsakes[name], f"also={{{name!r}: ...}}"
    place = "made" if name in smalls[0]["made"] else "also"
    values = [one[place][name] for one in smalls]
    if keepsake.renew is not None:
        return heir.drawn(values, keepsake.renew)
    if keepsake.is_made:
        return heir.shared(
            values, what, way_out="keep there what is whole and the same on every rank"
        )
    return heir.own(values, what)


def _extra(smalls: Sequence[StateView], heir: Heir, *, had_number: bool) -> StateDict:
    """Return what the rank of this number said of its newest iteration; a new one said nothing."""
    if had_number:
        return dict(smalls[heir.rank]["extra"])
    first = smalls[0]["extra"]
    return {name: value if name in _EVERYWHERE else {} for name, value in first.items()}
