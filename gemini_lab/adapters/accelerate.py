"""Accelerate with DeepSpeed: `protect_accelerator(accelerator)` after `accelerator.prepare(...)`.

The loop stays the script's own. Accelerate calls the engine's step inside `accelerator.backward`,
at boundaries alone, and its loaders read a batch ahead; both are covered by `gemini_lab.protect`.
What is found here is what the Accelerator was given: its engine, its schedules, what was registered
for its checkpoints, and its own count of micro-batches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from accelerate import Accelerator

from gemini_lab.engine.arguments import as_sources
from gemini_lab.engine.contract import Keepable, Protected, Source, ZeroEngine
from gemini_lab.engine.protection import protect
from gemini_lab.errors import UnsupportedError

Value = TypeVar("Value")


def protect_accelerator(
    accelerator: Accelerator,
    *,
    data: Source | Sequence[Source] | None = None,
    client_state: dict[str, Value] | None = None,
    also: Mapping[str, Keepable] | None = None,
) -> Protected:
    """Keep every optimizer step of the model that `accelerator` has prepared.

    Call it once, on every rank, after `accelerator.prepare` and before the loop.

    Args:
        accelerator: It trains with DeepSpeed.
        data: The prepared loader that training reads, or what else `gemini_lab.protect` takes; by
            default the only loader that was prepared.
        client_state: See `gemini_lab.protect`.
        also: See there; what was registered for the Accelerator's checkpoints, and its schedules,
            are taken along by themselves.

    Returns:
        The handle: loop over `protected.steps(iterations)` or `protected.epochs(epochs)`.

    Raises:
        UnsupportedError: It trains in a way that cannot be protected; says what to change.
        ConfigError: See `gemini_lab.protect`.
        CapacityError: See `gemini_lab.protect`.
    """
    found = look_into(accelerator, data=data, also=also)
    return protect(found.engine, data=found.data, client_state=client_state, also=found.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What an Accelerator has prepared, as `gemini_lab.protect` takes it.

    Attributes:
        engine: DeepSpeed's.
        data: Where the data stand; `None` if that cannot be told.
        also: Schedules, what was registered, the count of micro-batches, and the script's own.
    """

    engine: ZeroEngine
    data: Source | Sequence[Source] | None
    also: Mapping[str, Keepable]


def look_into(
    accelerator: Accelerator,
    *,
    data: Source | Sequence[Source] | None = None,
    also: Mapping[str, Keepable] | None = None,
) -> Prepared:
    """What `protect_accelerator` protects; see there."""
    prepared: Any = accelerator
    if prepared.deepspeed_engine_wrapped is None:
        raise UnsupportedError(
            f"this Accelerator has no DeepSpeed engine (it trains with "
            f"{prepared.distributed_type.name}); give it a DeepSpeedPlugin with ZeRO stage 1, 2 or "
            "3, and call protect_accelerator after accelerator.prepare(model, ...)"
        )
    engine = prepared.deepspeed_engine_wrapped.engine
    if data is None and len(prepared._dataloaders) == 1:  # noqa: SLF001 - nothing else tells
        data = prepared._dataloaders[0]  # noqa: SLF001
    for source in as_sources(data):
        require_own_reading(source)
    return Prepared(engine=engine, data=data, also={**_found(prepared, engine), **(also or {})})


class _Count:
    """Micro-batches that `accelerator.accumulate` has counted."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, object]:
        """The count."""
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._accelerator.step = state["step"]


def _found(accelerator: Any, engine: Any) -> dict[str, Any]:
    """What the Accelerator has that changes with training, by names that a restart finds again."""
    found: dict[str, Any] = {"the Accelerator's count": _Count(accelerator)}
    for number, schedule in enumerate(accelerator._schedulers):  # noqa: SLF001
        if schedule.scheduler is not engine.lr_scheduler:
            found[f"the Accelerator's schedule {number}"] = schedule.scheduler
    for number, thing in enumerate(accelerator._custom_objects):  # noqa: SLF001
        found[f"registered {number}: {type(thing).__name__}"] = thing
    return found


def require_own_reading(loader: object) -> None:
    """Refuse a loader of which one rank reads and sends the batches to the others.

    Raises:
        UnsupportedError: It is one.
    """
    if type(loader).__name__ == "DataLoaderDispatcher":
        raise UnsupportedError(
            "one rank reads the data and sends the batches to the others (dispatch_batches), and a "
            "place in that does not come back; set dispatch_batches=False in the "
            "DataLoaderConfiguration (a Trainer's: accelerator_config) and use a data set with a "
            "length"
        )
