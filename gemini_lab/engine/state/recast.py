"""The small state of a version of another number of ranks, as a rank of this number has it.

It becomes what this rank would have captured: after that it is loaded like any other. The rules are
those of `heir`; positions in the data have one of their own, in `positions`.
"""

from collections.abc import Sequence
from typing import Any

from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.heir import Heir, Small
from gemini_lab.engine.state import small_state
from gemini_lab.engine.state.positions import reshard_positions
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.shard.codec import encode

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
    """What `small_state.capture` would have given here, with what stands beside it.

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
