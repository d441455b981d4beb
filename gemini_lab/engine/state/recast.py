"""The small state of a version of another number of ranks, as a rank of this number has it.

It becomes what this rank would have captured: after that it is loaded like any other. The rules are
those of `heir`; positions in the data have one of their own, in `positions`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemini_lab.engine.contract import Resharding
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.resize_state import Heir, Small
from gemini_lab.engine.state import small_state
from gemini_lab.engine.state.loaders import LoaderWatch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.shard.codec import encode


def reshard_positions(
    sources: Sequence[object],
    positions: Sequence[Sequence[Any]],
    heir: Heir,
    *,
    may_restart: bool,
) -> list[Any]:
    """Return where each source is to go on; `None` if it starts over.

    Args:
        sources: The script's.
        positions: Of each rank then, those of its sources.
        heir: Who goes on.
        may_restart: Whether a source may begin anew whose position cannot be told.

    Raises:
        ConfigError: A position cannot be told.
    """
    found: list[Any] = []
    for number, source in enumerate(sources):
        states = [one[number] for one in positions]
        if isinstance(source, Resharding):
            state = source.reshard_state_dict(states, rank=heir.rank, world_size=heir.ranks)
            found.append(state)
        elif isinstance(source, LoaderWatch) and _is_dealt(source, states):
            found.append(_loader_position(source, states, heir))
        else:
            _begin_anew(source, heir, may_restart=may_restart)
            found.append(None)
    return found


def _is_dealt(watch: LoaderWatch, states: Sequence[Mapping[str, Any]]) -> bool:
    return watch.dealt is not None and all(one.get("dealt") is not None for one in states)


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


def _loader_position(
    watch: LoaderWatch, states: Sequence[Mapping[str, Any]], heir: Heir
) -> dict[str, Any]:
    """After as many samples of the epoch as all ranks together had read, or a few less."""
    state: dict[str, Any] = {
        "now": _draws([one["now"] for one in states], heir),
        "dealt": watch.dealt,
        "own": heir.own([one.get("own", {}) for one in states], "what the data draw from"),
        "counts": heir.lent([one.get("counts", {}) for one in states], "what the data count"),
        "asked": {},
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
    began = [one["began"] for one in states]
    return state | {
        "began": {
            "random": heir.random([one["random"] for one in began]),
            "draws": _draws([one["draws"] for one in began], heir),
            "own": heir.own([one.get("own", {}) for one in began], "what the data draw from"),
            "counts": heir.lent([one.get("counts", {}) for one in began], "what the data count"),
        },
        "taken": taken,
    }


def _draws(states: Sequence[Sequence[Mapping[str, Any]]], heir: Heir) -> list[dict[str, Any]]:
    """What an epoch's order is drawn from, of the loader and each of its samplers."""
    return [
        {
            name: heir.drawn([one[name] for one in parts], _seeded)
            if name == "generator"
            else heir.shared([one[name] for one in parts], f"a sampler's {name}")
            for name in parts[0]
        }
        for parts in zip(*states, strict=True)
    ]


def _seeded(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


_EVERYWHERE = (
    "epoch",
    "loops",
)  # of what travels beside the engine's state, what a new rank has too


def recast(
    smalls: Sequence[Small],
    heir: Heir,
    framework: Framework,
    script: ScriptState,
    *,
    may_restart: bool,
) -> dict[str, Any]:
    """Return what `small_state.capture` would have given here, with its surroundings.

    Args:
        smalls: Those of the version's ranks, unfolded, in order.
        heir: This rank.
        framework: Whose model and optimizer.
        script: What the script handed over.
        may_restart: Whether data may be read from their beginning where no position can be told.

    Raises:
        ConfigError: Something of it cannot be taken over; says what, and the way out.
    """
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
        **small_state.folded(
            buffers=heir.lent([one["buffers"] for one in smalls], "the model's buffers"),
            made=made,
            drawn=encode(drawn),
        ),
        "trains": smalls[0].get("trains", []),
        "modes": smalls[0].get("modes", []),
        "orders": heir.shared([one.get("orders", []) for one in smalls], "DDP's buckets"),
        "extra": _extra(smalls, heir),
        "at_top": all(one.get("at_top") for one in smalls),
    }


def _keepsake(name: str, smalls: Sequence[Small], heir: Heir, script: ScriptState) -> Any:
    """The state of one thing of `also`."""
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


def _extra(smalls: Sequence[Small], heir: Heir) -> dict[str, Any]:
    """What the rank of this number had said of its newest iteration; a new one has said nothing."""
    if heir.rank < heir.ranks_then:
        return dict(smalls[heir.rank]["extra"])
    first = smalls[0]["extra"]
    return {name: value if name in _EVERYWHERE else {} for name, value in first.items()}
