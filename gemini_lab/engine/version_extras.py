"""The extras of a version beside the engine's state: a loading rank goes on with them."""

from collections.abc import Mapping
from typing import Any, Final

from gemini_lab.engine.iterations import IterationLog, iteration_in
from gemini_lab.engine.script_loops import LoopPlace, place_to_small
from gemini_lab.engine.verify.verification import Verification
from gemini_lab.log.events import Iteration
from gemini_lab.recovery.guard import Guard

_GUARD: Final = "guard"


def carried(
    iterations: IterationLog,
    *,
    place: LoopPlace,
    guard: Guard | None,
    verification: Verification | None,
) -> dict[str, object]:
    """Return the extras of a version made now.

    Args:
        iterations: The newest of them travels along.
        place: Where in the script's loops it is made.
        guard: What it knows travels along, if there is one.
        verification: The same.
    """
    judged = {} if guard is None else {_GUARD: guard.to_small()}
    verified = {} if verification is None else verification.to_small()
    return {**iterations.to_small(), **place_to_small(place), **judged, **verified}


def newest_in(small: Mapping[str, object]) -> Iteration | None:
    """The iteration that made a version; `None` where there is no version, or none made it."""
    return iteration_in(small) if small else None


def guard_in(small: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the guard's knowledge; `None` if there was no guard."""
    found: Mapping[str, Any] | None = small.get(_GUARD)
    return found
