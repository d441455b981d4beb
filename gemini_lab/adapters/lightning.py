"""Lightning's Trainer: `protect_lightning(trainer)` before `trainer.fit(...)`.

The Trainer wraps the model, makes its optimizer and its loader inside `fit()`, and its loops count.
So the training is protected where the loader is there and not yet read, and the loops are told
there what the restored version had counted. An iteration ends where the next batch is asked for:
then all that Lightning and its callbacks did after the step is in the version.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from lightning.pytorch import Callback, Trainer

from gemini_lab.adapters.lightning_state import LightningState, is_librarys
from gemini_lab.engine import session as sessions
from gemini_lab.engine.contract import Keepable, StateDict
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.protection import NOT_IN_A_LAB, remarks, start_protection
from gemini_lab.engine.witness import is_looked_at, look_without_lab
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.settings import SettingValue

_REFUSED: Final = {
    "BaseFinetuning": (
        "adds weights to the optimizer while it trains",
        "give the optimizer all weights at once, some frozen by a callback's on_train_start",
    ),
    "BatchSizeFinder": (
        "trains inside of fit() before it begins",
        "look for the size in a script of its own, and give it to the loader",
    ),
    "LearningRateFinder": (
        "trains inside of fit() before it begins",
        "look for the rate in a script of its own (Tuner.lr_find), and give it to the optimizer",
    ),
    "ModelPruning": (
        "adds masks to the model while it trains",
        "prune the model before fit(), or after it in a script of its own",
    ),
    "SpikeDetection": (
        "cannot load its own state",
        "look for spikes in a callback of your own, with `state_dict` and `load_state_dict`",
    ),
    "StochasticWeightAveraging": (
        "replaces the schedule, and in the end the weights, while it trains",
        "use WeightAveraging with should_update, and torch's SWALR as the schedule",
    ),
}
"""Lightning's callbacks that are refused: what they do, and the way out."""


def protect_lightning(
    # It trains with DDPStrategy, with ModelParallelStrategy (FSDP2), or in one process.
    trainer: Trainer,
    *,
    # See `gemini_lab.protect`; what `on_save_checkpoint` of the module adds belongs here.
    also: Mapping[str, Keepable] | None = None,
    settings: Mapping[str, SettingValue] | None = None,  # see there
) -> None:
    """Keep every optimizer step of `trainer.fit(...)`, and go on from the newest after a failure.

    Call it once, on every rank, after the Trainer was made and before `fit()`. Model, optimizer,
    schedules, random states, the place in the epoch, the loops' counts, what is logged of the epoch
    under way, the data module and what callbacks say of themselves come back, so that the numbers
    that follow are those of a run that never failed. Outside `gemini-lab run` it warns once and
    does nothing.

    Raises:
        UnsupportedError: It trains in a way whose state would not come back; says what to change.
    """
    session = sessions.current
    if session is None:
        if trainer.global_rank == 0:
            warnings.warn(f"protect_lightning: {NOT_IN_A_LAB}", stacklevel=2)
        if is_looked_at():
            untyped: Any = trainer  # it does not declare its callbacks
            untyped.callbacks.insert(0, _LightningUnderCheck(also))
        return
    require_lightning(trainer)
    LightningHooks(
        trainer,
        start=functools.partial(start_protection, session),
        remark=remarks(session),
        also=also,
        settings=settings,
    )


class _LightningUnderCheck(Callback):
    """Lets a check look at what trains under plain torchrun."""

    def __init__(self, also: Mapping[str, Keepable] | None) -> None:
        self._also = also

    def on_train_start(self, trainer: Any, pl_module: object) -> None:
        del pl_module
        engine = TorchEngine(trainer.strategy.model, trainer.strategy.optimizers[0])
        look_without_lab(engine, also=self._also)


class LightningHooks(Callback):
    """Stands in the loops of one Trainer's `fit()`; first of its callbacks."""

    def __init__(
        self,
        trainer: Any,  # whose
        *,
        # Protects its model and optimizer, and puts the version back into them.
        start: Callable[..., LiveProtection],
        remark: Callable[[str], None],  # told what the script's author should know
        also: Mapping[str, Keepable] | None = None,  # see `protect_lightning`
        settings: Mapping[str, SettingValue] | None = None,  # see there
    ) -> None:
        self._trainer = trainer
        self._start = start
        self._remark = remark
        self._also = dict(also or {})
        self._settings = settings
        self._protection: LiveProtection | None = None
        self._engine: TorchEngine
        self._state: LightningState
        self._losses: list[torch.Tensor] = []
        self._done = 0
        loop = trainer.fit_loop
        _stand_around(loop, "_load_combined_loader_states", self._before_reading)
        _stand_around(loop.epoch_loop, "on_run_start", self._on_epoch)
        _stand_around(loop.epoch_loop.val_loop, "run", self._validate)
        trainer.callbacks.insert(0, self)

    def setup(self, trainer: Any, *_: object, **__: object) -> None:
        """Look again: the module and a Tuner may have brought callbacks of their own by now."""
        require_callbacks(trainer)

    def _before_reading(self, load: Callable[[], None]) -> None:
        """Protect, or put the version back, before the loader is read."""
        load()
        trainer = self._trainer
        if self._protection is not None:
            raise ConfigError(
                "Lightning made its training loader a second time, and a run protects one fit; "
                "call fit() once, without reload_dataloaders_every_n_epochs"
            )
        for found, way_out in _obstacles_of_fit(trainer):
            raise UnsupportedError(f"this fit cannot be protected: {found}; {way_out}")
        optimizer = trainer.strategy.optimizers[0]
        _compute_before_the_step(optimizer)
        self._engine = TorchEngine(
            trainer.strategy.model,
            optimizer,
            settings=self._settings,
            step=trainer.fit_loop.epoch_loop.global_step,
        )
        self._state = LightningState(trainer, self._remark)
        loaders = [*trainer.fit_loop._combined_loader.flattened]  # noqa: SLF001
        self._protection = self._start(self._engine, data=loaders, also=self._kept())
        self._protection.end_iterations_at_fetch()
        self._done = self._engine.global_steps

    def _kept(self) -> StateDict:
        """Return what is kept beside the model, its optimizer and the data."""
        schedules = {
            f"Lightning's schedule {number}": config.scheduler
            for number, config in enumerate(self._trainer.lr_scheduler_configs)
        }
        return {"Lightning": self._state, **schedules, **self._also}

    def _on_epoch(self, begin: Callable[[object], None], fetcher: object) -> None:
        begin(fetcher)
        self._state.begin()

    def on_train_batch_end(
        self, _trainer: object, _module: object, outputs: Any, *_: object
    ) -> None:
        """Log the loss, once an optimizer step."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        done = self._engine.global_steps
        if done == self._done:
            return
        if done != self._trainer.global_step:
            raise UnsupportedError(
                f"the optimizer has done {done} steps and Lightning counts "
                f"{self._trainer.global_step}, so a version could not be told apart; let Lightning "
                "call every step of the one optimizer"
            )
        self._done = done
        self._state.parts.say_changes(done)
        if self._losses:
            self._protected.log(loss=torch.stack(self._losses).mean().item())
            self._losses.clear()

    def on_train_epoch_end(self, *_: object) -> None:
        """Say what callbacks have changed in their epoch."""
        self._state.parts.say_changes()
        if sessions.current is not None and sessions.current.witness is not None:
            sessions.current.witness.reach("batches over")

    def _validate(self, run: Callable[[], object]) -> object:
        """However long that takes, it is no hang."""
        if self._protection is None:  # Lightning looks whether it runs, before it trains
            return run()
        with self._protection.pause("validation"):
            return run()

    def on_train_end(self, *_: object) -> None:
        """Make the last version before other callbacks load the best weights over it."""
        self._protected.reach_top()
        self._protected.finish()

    @property
    def _protected(self) -> LiveProtection:
        assert self._protection is not None  # Lightning makes its loader before it trains
        return self._protection


def require_lightning(trainer: Any) -> None:
    """Refuse a Trainer whose state would not come back, as far as it shows before `fit()`.

    Raises:
        UnsupportedError: It is one; says what it does, and the way out.
    """
    require_callbacks(trainer)
    name = type(trainer.strategy).__name__
    if name not in {"DDPStrategy", "ModelParallelStrategy", "SingleDeviceStrategy"}:
        raise UnsupportedError(
            f"this Trainer uses {name}, which is untried; use DDPStrategy, ModelParallelStrategy "
            "(FSDP2), or DeepSpeed in a loop of your own with gemini_lab.protect"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise UnsupportedError(
            "this Trainer counts updates that its gradient scaler leaves out (16-mixed); use "
            'precision="bf16-mixed" or "32-true"'
        )
    if trainer.reload_dataloaders_every_n_epochs:
        raise UnsupportedError(
            "this Trainer makes its loaders again (reload_dataloaders_every_n_epochs), and a place "
            "in another loader does not come back; set it to 0"
        )


def require_callbacks(trainer: Any) -> None:
    """Refuse callbacks of Lightning's whose changes would not come back.

    Raises:
        UnsupportedError: It has one; says what it does, and the way out.
    """
    for callback in trainer.callbacks:
        for kind in filter(is_librarys, type(callback).__mro__):
            if kind.__name__ in _REFUSED:
                found, way_out = _REFUSED[kind.__name__]
                raise UnsupportedError(
                    f"the callback {type(callback).__name__} cannot be protected: it {found}; "
                    f"leave it out, and {way_out}"
                )


def _obstacles_of_fit(trainer: Any) -> Iterator[tuple[str, str]]:
    """Return why a fit that is set up cannot be protected: what was found, and the way out."""
    if len(trainer.strategy.optimizers) != 1:
        yield (
            f"it has {len(trainer.strategy.optimizers)} optimizers",
            "a run protects one: let configure_optimizers return a single one with all parameters",
        )
    if not trainer.lightning_module.automatic_optimization:
        yield (
            "its module optimizes by itself (automatic_optimization=False)",
            "use gemini_lab.protect in a loop of your own",
        )
    step = trainer.lightning_module.training_step
    if "dataloader_iter" in step.__code__.co_varnames[: step.__code__.co_argcount]:
        yield "its training_step reads the data itself (dataloader_iter)", "take a batch"
    for loader in trainer.fit_loop._combined_loader.flattened:  # noqa: SLF001
        try:
            len(loader)
        except TypeError:
            yield (
                "its training data have no length, so that Lightning reads a batch ahead",
                "use a data set with __len__ and __getitem__",
            )


def _stand_around(thing: object, name: str, around: Callable[..., Any]) -> None:
    setattr(thing, name, functools.partial(around, getattr(thing, name)))


def _compute_before_the_step(optimizer: torch.optim.Optimizer) -> None:
    """Compute the loss before `optimizer.step` begins, to which Lightning hands it as a closure.

    An update is waited for where the step begins: a version would have no iteration to leave in.
    An optimizer that calls its closure again, as SAM does, computes again.
    """
    step: Callable[..., Any] = optimizer.step

    @functools.wraps(step)
    def after_closure(closure: Callable[[], Any] | None = None, **more: Any) -> Any:
        if closure is None:
            return step(**more)
        with torch.enable_grad():
            computed = [closure()]

        def compute() -> object:
            return computed.pop() if computed else closure()

        return step(closure=compute, **more)

    optimizer.step = after_closure  # type: ignore[method-assign]
