"""TorchTitan: `checkpoint=TitanCheckpoints.Config(enable=True)` in the configuration of a Trainer.

It is TorchTitan's own manager of checkpoints, which also keeps every step as a version. The Trainer
asks it for a checkpoint when model, optimizers, schedules and loader are there: then they are
protected. What TorchTitan saves by itself, every `interval` steps, stays as it is.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import tyro
from torchtitan.components.checkpoint import CheckpointManager

from gemini_lab.engine import session as sessions
from gemini_lab.engine.contract import Protected, StateDict
from gemini_lab.engine.protection import protect


class TitanCheckpoints(CheckpointManager):  # type: ignore[misc]
    """TorchTitan's checkpoints, and a version of each step.

    Outside `gemini-lab run` it warns once, and is TorchTitan's manager.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """TorchTitan's own settings of checkpoints, with those of versions."""

        # What would stand in the `"gemini"` block of a DeepSpeed configuration.
        gemini: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def __init__(self, config: Config, *, states: dict[str, Any], **parts: Any) -> None:
        super().__init__(config, states=states, **parts)
        self._trainer = states["train_state"]
        self._parts, self._settings = parts, config.gemini
        self._counts = _Counts(self._trainer)
        self._protected: Protected
        self._steps: Iterator[int] | None = None

    def _load(self, step: int = -1) -> bool:
        """Protect the Trainer's parts, and go on from the newest version; else from a checkpoint.

        Raises:
            UnsupportedError: Their state would not come back; says what to change.
        """
        session, trainer = sessions.current, self._trainer
        has_version = session is not None and session.start.plan.version is not None
        found = False if has_version else bool(super()._load(step))
        self._counts.done = trainer.step  # of a checkpoint that is gone on from
        self._protected = protect(
            model=self._parts["model_parts"],
            optimizer=[*self._parts["optimizers"]],
            data=self._parts["dataloader"],
            also={"the Trainer": self._counts},
            settings=self._settings,
            step=0 if has_version else trainer.step,
        )
        self._steps = self._protected.steps(trainer.config.training.steps)
        _stand_around(trainer, "train_step", self._around_step)
        _stand_around(trainer.metrics_processor, "log", self._around_log)
        return found or has_version

    def _around_step(self, train: Callable[..., None], *batches: object) -> None:
        """End the iteration before: whatever the Trainer did after its step is in the version."""
        assert self._steps is not None  # it loads before it trains
        self._trainer.step = next(self._steps) + 1  # a rewound run goes on with an earlier one
        train(*batches)
        self._counts.done = self._trainer.step

    def _around_log(
        self, log: Callable[..., None], step: int, loss: float, *more: Any, **named: Any
    ) -> None:
        if getattr(self._trainer, "pp_has_last_stage", True):  # the others have none
            self._protected.log(loss=loss)
        log(step, loss, *more, **named)

    def _close(self) -> None:
        """Make the last version, unless the Trainer ends with an error or without data."""
        steps, self._steps = self._steps, None
        is_whole = sys.exc_info()[0] is None and self._counts.done == self._trainer.step
        if steps is not None and is_whole:
            next(steps, None)
        super()._close()


class _Counts:
    """The Trainer's counts, as they were after the last step that is done."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.done: int = trainer.step  # steps: the Trainer counts one when it begins it

    def state_dict(self) -> StateDict:
        return {**self._trainer.state_dict(), "step": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._trainer.load_state_dict(dict(state))
        self.done = state["step"]


def _stand_around(thing: object, name: str, around: Callable[..., None]) -> None:
    setattr(thing, name, partial(around, getattr(thing, name)))
