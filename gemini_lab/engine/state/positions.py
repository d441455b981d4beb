"""The position in the data where another number of ranks reads them: counted in samples.

Who deals an epoch's order to the ranks in turn (torch's DistributedSampler) has dealt the same
samples after as many of them, whatever the number of ranks. Other sources say it themselves, by a
`reshard_state_dict`; of the rest nobody can tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemini_lab.engine.contract import Resharding
from gemini_lab.engine.frameworks.heir import Heir
from gemini_lab.engine.state.loaders import LoaderWatch


def reshard_positions(
    sources: Sequence[object],
    positions: Sequence[Sequence[Any]],
    heir: Heir,
    *,
    may_restart: bool,
) -> list[Any]:
    """Where each source is to go on; None where it begins anew.

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
