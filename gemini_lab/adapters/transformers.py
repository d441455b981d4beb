"""transformers' Trainer: `protect_trainer(trainer)` before `trainer.train()`.

The Trainer makes its engine (DeepSpeed's, or a model in DDP or sharded by FSDP2) inside `train()`,
and decides before that in which epoch it begins. It counts, logs, evaluates and saves after the
step. So some of its stages are hooked: the engine is protected as soon as it is there, training
begins where the restored version was, and an iteration ends where the next one's batches are asked
for. Then all that the Trainer and its callbacks did after the step is in the version, and none of
it is done again.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from gemini_lab.adapters.accelerate import (
    left_out,
    require_own_reading,
    require_whole_batches,
    trained_by,
)
from gemini_lab.adapters.trainer_state import TrainerState, require_known_sums
from gemini_lab.engine import session as sessions
from gemini_lab.engine.contract import Keepable, StateDict, StateView, ZeroEngine
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.protection import NOT_IN_A_LAB, remarks, start_protection
from gemini_lab.engine.state.loaders import watch
from gemini_lab.engine.witness import is_looked_at, look_without_lab
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.settings import SettingValue

STAGES: Final = (
    "_inner_training_loop",
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "training_step",
    "_evaluate",
    "_save_checkpoint",
    "_finalize_training",
)
"""The methods of a Trainer that are hooked."""
_GENERATING: Final = {
    "A2POTrainer",
    "AsyncDistillationTrainer",
    "AsyncGRPOTrainer",
    "DistillationTrainer",
    "GKDTrainer",
    "GOLDTrainer",
    "GRPOTrainer",
    "IWOPDTrainer",
    "OnlineDPOTrainer",
    "PPOTrainer",
    "RLOOTrainer",
    "SDFTTrainer",
    "SDPOTrainer",
}
"""Classes of TRL's, and what stands on them, that train on what they generate."""
_GENERATED: Final = "_buffered_inputs"
"""The attribute in which those of them that others write keep it, too."""


def require_trainer(trainer: Trainer) -> None:
    """Refuse a Trainer whose state would not come back.

    Raises:
        UnsupportedError: It is one; says what it does, and the way out.
    """
    for found, way_out in _obstacles(trainer):
        raise UnsupportedError(f"this Trainer cannot be protected: it {found}; {way_out}")
    require_whole_batches(trainer.accelerator)


def _obstacles(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """Return why `trainer` cannot be protected: what it does, and the way out."""
    names = {kind.__name__ for kind in type(trainer).__mro__}
    missing = [name for name in STAGES if not hasattr(trainer, name)]
    for is_found, found, way_out in (
        (
            not trainer.is_deepspeed_enabled and trainer.accelerator.scaler is not None,
            "counts updates that its gradient scaler leaves out (fp16)",
            "use bf16=True, or DeepSpeed",
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
            bool(names & _GENERATING) or hasattr(trainer, _GENERATED),
            "keeps samples that it generated from one step to the next",
            "use a Trainer that reads its batches from a data set, such as SFTTrainer",
        ),
    ):
        if is_found:
            yield found, way_out


def require_length(loader: object) -> None:
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


def protect_trainer(
    # A Trainer, or one of a subclass, that trains with DeepSpeed, DDP or FSDP2, or in one process.
    trainer: Trainer,
    *,
    also: Mapping[str, Keepable] | None = None,  # see `gemini_lab.protect`
    # Without DeepSpeed: what would stand in the `"gemini"` block.
    settings: Mapping[str, SettingValue] | None = None,
) -> None:
    """Keep every optimizer step of `trainer.train()`, and go on from the newest after a failure.

    Call it once, on every rank, after the Trainer was made and before `train()`. Model, optimizer,
    schedule, random states, the place in the epoch, the Trainer's counters, sums and log, and what
    callbacks say of themselves come back, so that the numbers that follow are those of a run that
    never failed. Settings are the `"gemini"` block of the DeepSpeed configuration. Outside
    `gemini-lab run` it warns once and does nothing.

    Raises:
        UnsupportedError: It trains in a way whose state would not come back; says what to change.
    """
    session = sessions.current
    if session is None:
        if trainer.args.process_index == 0:
            warnings.warn(f"protect_trainer: {NOT_IN_A_LAB}", stacklevel=2)
        if is_looked_at():
            trainer.callback_handler.callbacks.insert(0, _TrainerUnderCheck(trainer, also))
        return
    require_trainer(trainer)
    require_known_sums()
    TrainerHooks(
        trainer,
        start=partial(start_protection, session),
        version=session.start.plan.version,
        remark=remarks(session),
        also=also,
        settings=settings,
    )


class _TrainerUnderCheck(TrainerCallback):  # type: ignore[misc]
    """Lets a check look at what trains under plain torchrun."""

    def __init__(self, trainer: Trainer, also: Mapping[str, Keepable] | None) -> None:
        self._trainer, self._also = trainer, also

    def on_train_begin(self, *_: object, **__: object) -> None:
        trainer = self._trainer
        engine = trained_by(
            trainer.accelerator, model=trainer.model_wrapped, optimizer=trainer.optimizer
        )
        look_without_lab(engine, also=self._also)


class TrainerHooks(TrainerCallback):  # type: ignore[misc]
    """Stands around the stages of one Trainer's `train()`; first of its callbacks."""

    def __init__(
        self,
        trainer: Trainer,  # whose
        *,
        # Protects its engine, and puts the version back into it.
        start: Callable[..., LiveProtection],
        version: int | None,  # which one; `None` where training begins anew
        remark: Callable[[str], None],  # told what the script's author should know
        also: Mapping[str, Keepable] | None = None,  # see `protect_trainer`
        settings: Mapping[str, SettingValue] | None = None,  # see there
    ) -> None:
        self._trainer = trainer
        self._start = start
        self._version = version
        self._remark = remark
        self._also = dict(also or {})
        self._settings = settings
        self._engine: ZeroEngine | TorchEngine
        self._state = TrainerState(trainer, remark)
        self._protection: LiveProtection | None = None
        self._updates_done = 0  # of the epoch that is gone on with
        self._begins_at: tuple[int, int] | None = None  # epoch and micro-batches, of a version
        self._epoch_at: Callable[[], float] | None = None  # in that epoch, the Trainer's fraction
        self._losses: list[torch.Tensor] = []
        self._has_begun = False
        for name in STAGES:
            hook = getattr(self, f"around{name}" if name[0] == "_" else f"around_{name}")
            setattr(trainer, name, partial(hook, getattr(trainer, name)))
        trainer.callback_handler.callbacks.insert(0, self)

    @property
    def _protected(self) -> LiveProtection:
        assert self._protection is not None  # the Trainer prepares before it trains
        return self._protection

    # -- where training begins -------------------------------------------------------------------

    def around_inner_training_loop(
        self, loop: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """Leave out a checkpoint of the Trainer's if there is a version to go on from."""
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
        """Return the epoch that the version lies in, and the micro-batches that were done in it."""
        max_steps, updates_an_epoch, epochs, _, trial = args
        found = init(*args)
        if trial is not None:
            raise UnsupportedError(
                "hyperparameter_search trains several times, and a run protects one training; "
                "start a run for each trial"
            )
        accumulate = int(self._trainer.args.gradient_accumulation_steps)
        if self._version is None:
            self._updates_done = found[1] // accumulate  # of a checkpoint that is gone on from
            if self._trainer.state.global_step % updates_an_epoch != self._updates_done:
                raise UnsupportedError(
                    "ignore_data_skip=True begins the checkpoint's epoch from its start, "
                    "so that a count of steps no longer tells the epoch; leave it out"
                )
            return found
        if self._version >= max_steps:
            return epochs, 0
        epoch, self._updates_done = divmod(self._version, updates_an_epoch)
        self._begins_at = epoch, self._updates_done * accumulate
        return self._begins_at

    def around_prepare_for_training(
        self, prepare: Callable[..., tuple[object, Sized]], *args: object, **kwargs: object
    ) -> tuple[object, Sized]:
        """Protect the engine, which is there now, or put the version back into it."""
        model, loader = prepare(*args, **kwargs)
        require_own_reading(loader)
        require_length(loader)
        trainer = self._trainer
        for text in left_out(trainer.accelerator, os.environ):
            self._remark(text)
        also: StateDict = {"the Trainer": self._state, **self._also}
        self._engine = trained_by(
            trainer.accelerator,
            model=trainer.model_wrapped,
            optimizer=trainer.optimizer,
            settings=self._settings,
            step=trainer.state.global_step,
        )
        of_deepspeed = getattr(self._engine, "lr_scheduler", None)
        if of_deepspeed is None and trainer.lr_scheduler is not None:
            also["the Trainer's schedule"] = trainer.lr_scheduler
        self._protection = self._start(self._engine, data=loader, also=also)
        self._protection.end_iterations_at_fetch()
        self._require_place(len(loader))
        return model, loader

    def _require_place(self, batches: int) -> None:
        """Refuse to go on where the version is not in the epoch that its number tells."""
        if self._begins_at is None:
            return
        epoch, steps = self._begins_at
        expected, found = epoch + min(steps, batches) / batches, self._trainer.state.epoch
        if not math.isclose(expected, found):
            raise ConfigError(
                f"version {self._version} was made at epoch {found:g} and its number tells "
                f"{expected:g}: an epoch was ended early, or the data have another size now; let "
                "epochs end by themselves, and start the script with the data as they were"
            )

    def around_run_epoch(self, run: Callable[..., None], **kwargs: Any) -> None:
        """Run the restored epoch as a shorter one: its loader begins where it was.

        The Trainer's own way, a second loader that skips batches, draws other random numbers.
        """
        done, self._updates_done = self._updates_done, 0
        if done:
            if kwargs["resume_from_checkpoint"] is not None:
                self._skip(done, **kwargs)
            kwargs = self._rest_of_epoch(done, kwargs)
        run(**kwargs)
        self._epoch_at = None

    def _skip(
        self,
        done: int,
        *,
        train_dataloader: object,
        epoch: int,
        resume_from_checkpoint: str,
        **_: object,
    ) -> None:
        """Go to the checkpoint's place in the epoch, and take on its random states."""
        sampler = getattr(getattr(train_dataloader, "batch_sampler", None), "batch_sampler", None)
        parts: tuple[Any, ...] = (train_dataloader, sampler)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        watch(train_dataloader).skip(done * int(self._trainer.args.gradient_accumulation_steps))
        self._trainer._load_rng_state(resume_from_checkpoint)  # noqa: SLF001

    def _rest_of_epoch(self, done: int, kwargs: StateView) -> StateDict:
        """Return the arguments of `_run_epoch` for an epoch of which some updates are done."""
        steps, updates = kwargs["steps_in_epoch"], kwargs["num_update_steps_per_epoch"]
        accumulate = int(self._trainer.args.gradient_accumulation_steps)
        before = kwargs["epoch"] * updates

        def epoch_at() -> float:
            micro_steps = (self._trainer.state.global_step - before) * accumulate
            return float(kwargs["epoch"] + min(micro_steps, steps) / steps)

        self._epoch_at = epoch_at
        return {
            **kwargs,
            "steps_in_epoch": steps - done * accumulate,
            "num_update_steps_per_epoch": updates - done,
            "resume_from_checkpoint": None,
        }

    # -- during training -------------------------------------------------------------------------

    def around_training_step(
        self, step: Callable[..., torch.Tensor], *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Add a micro-batch's part of the loss."""
        loss = step(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        """Compare callbacks from here on: they have done what they do in `on_train_begin`."""
        if not self._has_begun:
            self._has_begun = True
            self._state.parts.begin()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Log the loss: the Trainer has counted the step."""
        state = self._trainer.state
        if self._epoch_at is not None:
            state.epoch = self._epoch_at()
        done = int(self._engine.global_steps)
        if done != state.global_step:
            raise UnsupportedError(
                f"the engine has done {done} steps and the Trainer counts {state.global_step}, so "
                "a version could not be told apart; begin both together, or go on from a "
                "checkpoint that both made"
            )
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        self._state.parts.say_changes(done)
        self._protected.log(loss=loss.item())

    def on_epoch_end(self, *_: object, **__: object) -> None:
        """Refuse an epoch that a callback ended early: counting does not find it again."""
        self._state.parts.say_changes()
        if sessions.current is not None and sessions.current.witness is not None:
            sessions.current.witness.reach("batches over")
        if self._trainer.control.should_epoch_stop:
            self._remark(
                "a callback ended an epoch early (should_epoch_stop), so that a recovery does not "
                "find the place in the epochs after it; let epochs end by themselves"
            )

    def around_evaluate(
        self, evaluate: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """However long that takes, it is no hang."""
        with self._protected.pause("evaluation"):
            return evaluate(*args, **kwargs)

    def around_save_checkpoint(
        self, save: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        with self._protected.pause("saving a checkpoint"):
            return save(*args, **kwargs)

    def around_finalize_training(
        self, end: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """Make the last version before the best model may be loaded over it."""
        self._protected.reach_top()
        self._protected.finish()
        return end(*args, **kwargs)
