"""transformers' Trainer with DeepSpeed: `protect_trainer(trainer)` before `trainer.train()`.

The Trainer makes its engine inside `train()`, and decides before that in which epoch it begins. It
counts, logs, evaluates and saves after the step. So some of its stages are hooked: the engine is
protected as soon as it is there, training begins where the restored version was, and an iteration
ends where the next one's batches are asked for. Then all that the Trainer and its callbacks did
after the step is in the version, and none of it is done again.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from gemini_lab.adapters.accelerate import require_own_reading
from gemini_lab.adapters.trainer_state import TrainerState
from gemini_lab.engine import session as sessions
from gemini_lab.engine.contract import Keepable
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.protection import NOT_IN_A_LAB, remarks, start_protection
from gemini_lab.errors import ConfigError, UnsupportedError

_STAGES: Final = (
    "_inner_training_loop",
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "training_step",
    "_evaluate",
    "_save_checkpoint",
    "_finalize_training",
)
_GENERATING: Final = {"GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "PPOTrainer", "GKDTrainer"}


def protect_trainer(trainer: Trainer, *, also: Mapping[str, Keepable] | None = None) -> None:
    """Keep every optimizer step of `trainer.train()`, and go on from the newest after a failure.

    Call it once, on every rank, after the Trainer was made and before `train()`. Model, optimizer,
    schedule, random states, the place in the epoch, the Trainer's counters, sums and log, and what
    callbacks say of themselves come back, so that the numbers that follow are those of a run that
    never failed. Settings are the `"gemini"` block of the DeepSpeed configuration. Outside
    `gemini-lab run` it warns once and does nothing.

    Args:
        trainer: A Trainer, or one of a subclass, that trains with DeepSpeed.
        also: See `gemini_lab.protect`.

    Raises:
        UnsupportedError: It trains in a way whose state would not come back; says what to change.
    """
    session = sessions.current
    if session is None:
        if trainer.args.process_index == 0:
            warnings.warn(f"protect_trainer: {NOT_IN_A_LAB}", stacklevel=2)
        return
    require_trainer(trainer)
    TrainerHooks(
        trainer,
        start=partial(start_protection, session),
        version=session.start.plan.version,
        remark=remarks(session),
        also=also,
    )


class TrainerHooks(TrainerCallback):  # type: ignore[misc]
    """Stands around the stages of one Trainer's `train()`; first of its callbacks.

    Args:
        trainer: Whose.
        start: Protects its engine, and puts the version back into it.
        version: Which one; `None` where training begins anew.
        remark: Told what the script's author should know.
        also: See `protect_trainer`.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        start: Callable[..., LiveProtection],
        version: int | None,
        remark: Callable[[str], None],
        also: Mapping[str, Keepable] | None = None,
    ) -> None:
        self._trainer = trainer
        self._start = start
        self._version = version
        self._remark = remark
        self._also = dict(also or {})
        self._state = TrainerState(trainer)
        self._protection: LiveProtection | None = None
        self._updates_done = 0  # of the epoch that is gone on with
        self._epoch_at: Callable[[], float] | None = None  # in that epoch, the Trainer's fraction
        self._losses: list[torch.Tensor] = []
        for name in _STAGES:
            hook = getattr(self, f"around{name}" if name[0] == "_" else f"around_{name}")
            setattr(trainer, name, partial(hook, getattr(trainer, name)))
        trainer.callback_handler.callbacks.insert(0, self)

    @property
    def _protected(self) -> LiveProtection:
        assert self._protection is not None  # the Trainer prepares before it trains
        return self._protection

    # -- where training begins -------------------------------------------------------------------

    def around_inner_training_loop(
        self, loop: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """A checkpoint of the Trainer's is not gone on from where there is a version."""
        if self._protection is not None:
            raise ConfigError(
                "train() was called a second time, and a run protects one training; start another "
                "run for the second"
            )
        if self._version is not None:
            kwargs["resume_from_checkpoint"] = None
        return loop(*args, **kwargs)

    def around_init_training_state(
        self, init: Callable[..., tuple[int, int]], *args: Any
    ) -> tuple[int, int]:
        """The epoch that the version lies in, and the micro-batches that were done in it."""
        max_steps, updates_an_epoch, epochs, _, trial = args
        found = init(*args)
        if trial is not None:
            raise UnsupportedError(
                "hyperparameter_search trains several times, and a run protects one training; "
                "start a run for each trial"
            )
        if self._version is None:
            if found[1]:
                raise UnsupportedError(
                    f"resume_from_checkpoint begins after {found[1]} batches of an epoch, which "
                    "the Trainer skips with a loader of its own; go on from a checkpoint at the "
                    "end of an epoch, set ignore_data_skip=True, or keep the run's persistent tier "
                    "and go on with `gemini-lab run --resume`"
                )
            return found
        if self._version >= max_steps:
            return epochs, 0
        self._updates_done = self._version % updates_an_epoch
        steps = self._updates_done * int(self._trainer.args.gradient_accumulation_steps)
        return self._version // updates_an_epoch, steps

    def around_prepare_for_training(
        self, prepare: Callable[..., tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """The engine is there: protect it, or put the version back into it."""
        model, loader = prepare(*args, **kwargs)
        require_own_reading(loader)
        _require_length(loader)
        trainer = self._trainer
        also: dict[str, Any] = {"the Trainer": self._state, **self._also}
        engine = trainer.deepspeed
        schedule = trainer.lr_scheduler
        if engine.lr_scheduler is None and schedule is not None:
            also["the Trainer's schedule"] = schedule
        self._protection = self._start(engine, data=loader, also=also)
        self._protection.end_iterations_at_fetch()
        return model, loader

    def around_run_epoch(self, run: Callable[..., None], **kwargs: Any) -> None:
        """The epoch that is gone on with is run as a shorter one: its loader begins where it was.

        The Trainer's own way, a second loader that skips batches, draws other random numbers.
        """
        done, self._updates_done = self._updates_done, 0
        if done:
            steps = kwargs["steps_in_epoch"]
            accumulate = int(self._trainer.args.gradient_accumulation_steps)
            before = kwargs["epoch"] * kwargs["num_update_steps_per_epoch"]

            def epoch_at() -> float:
                updates = self._trainer.state.global_step - before
                return float(kwargs["epoch"] + min(updates * accumulate, steps) / steps)

            self._epoch_at = epoch_at
            kwargs = {
                **kwargs,
                "steps_in_epoch": steps - done * accumulate,
                "num_update_steps_per_epoch": kwargs["num_update_steps_per_epoch"] - done,
            }
        run(**kwargs)
        self._epoch_at = None

    # -- during training -------------------------------------------------------------------------

    def around_training_step(
        self, step: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """A micro-batch's part of the loss."""
        loss = step(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Before the first step: say which callbacks have something that does not come back."""
        if self._trainer.state.global_step == 0 and (names := self._state.forgotten()):
            self._remark(
                f"callbacks have attributes that do not come back after a failure ("
                f"{', '.join(names)}); give them `state_dict` and `load_state_dict`, or make them "
                "an ExportableState; if nothing in them changes, all is well"
            )

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The Trainer has counted the step: log its loss."""
        state = self._trainer.state
        if self._epoch_at is not None:
            state.epoch = self._epoch_at()
        done = int(self._trainer.deepspeed.global_steps)
        if done != state.global_step:
            raise UnsupportedError(
                f"the engine has done {done} steps and the Trainer counts {state.global_step}, so "
                "a version could not be told apart; begin both together, or go on from a "
                "checkpoint that both made"
            )
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        self._protected.log(loss=loss.item())

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """An epoch that a callback ended early is not found again by counting."""
        if self._trainer.control.should_epoch_stop:
            self._remark(
                "a callback ended an epoch early (should_epoch_stop), so that a recovery does not "
                "find the place in the epochs after it; let epochs end by themselves"
            )

    def around_evaluate(self, evaluate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """However long that takes, it is no hang."""
        with self._protected.pause("evaluation"):
            return evaluate(*args, **kwargs)

    def around_save_checkpoint(self, save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same."""
        with self._protected.pause("saving a checkpoint"):
            return save(*args, **kwargs)

    def around_finalize_training(self, end: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The last version is made before the best model may be loaded over it."""
        self._protected.reach_top()
        self._protected.finish()
        return end(*args, **kwargs)


def require_trainer(trainer: Any) -> None:
    """Refuse a Trainer whose state would not come back.

    Raises:
        UnsupportedError: It is one; says what it does, and the way out.
    """
    for found, way_out in _obstacles(trainer):
        raise UnsupportedError(f"this Trainer cannot be protected: it {found}; {way_out}")


def _obstacles(trainer: Any) -> Iterator[tuple[str, str]]:
    """What stands against protecting `trainer`: what it does, and the way out."""
    names = {kind.__name__ for kind in type(trainer).__mro__}
    missing = [name for name in _STAGES if not hasattr(trainer, name)]
    for is_found, found, way_out in (
        (
            not trainer.is_deepspeed_enabled,
            "trains without DeepSpeed",
            "give TrainingArguments(deepspeed=...) a configuration with ZeRO stage 1, 2 or 3",
        ),
        (
            bool(missing),
            f"has no {', '.join(missing)}",
            "use transformers 5.23 or a later 5.x",
        ),
        (
            trainer.args.auto_find_batch_size,
            "looks for a batch size that fits, and trains several times for it",
            "set auto_find_batch_size=False",
        ),
        (
            bool(names & _GENERATING),
            "keeps samples that it generated from one step to the next",
            "use a Trainer that reads its batches from a data set, such as SFTTrainer",
        ),
    ):
        if is_found:
            yield found, way_out


def _require_length(loader: Any) -> None:
    """Refuse a loader whose place in an epoch cannot be told from a count of steps.

    Raises:
        UnsupportedError: It is one.
    """
    if not isinstance(loader, DataLoader):
        raise UnsupportedError(
            f"the training loader is a {type(loader).__name__}; let get_train_dataloader return a "
            "torch DataLoader"
        )
    try:
        len(loader)
    except TypeError as error:
        raise UnsupportedError(
            "the training data have no length, so the place in them cannot be told from a count of "
            "steps; use a data set with __len__ and __getitem__"
        ) from error
