"""The counts of Lightning's loops, and its callbacks' and metrics' state: read, and put back."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from gemini_lab.adapters.callback_parts import CallbackParts, ListedCallback
from gemini_lab.engine.contract import StateDict
from gemini_lab.engine.state.rehearsal import named
from gemini_lab.engine.state.user_state import (
    is_metric,
    put_attributes,
    read_metric,
    share_states,
)

_KEPT: Final = ("value", "_update_count")
_MEAN: Final = (*_KEPT, "cumulated_batch_size")
_SET: Final = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "gradient_clip_algorithm",
    "gradient_clip_val",
)
"""What callbacks set in a Trainer on the way, as GradientAccumulationScheduler does."""
_SILENT: Final = frozenset(
    {
        "BasePredictionWriter",
        "DeviceStatsMonitor",
        "GradientAccumulationScheduler",
        "LambdaCallback",
        "LearningRateMonitor",
        "ModelSummary",
        "OnExceptionCheckpoint",
        "ProgressBar",
        "ThroughputMonitor",
    }
)
"""Lightning's own callbacks that say no state, and whose attributes no later number depends on."""
_TOLD: Final = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class LightningState:
    """The counts, callbacks, data module and metrics of a Trainer; for `also`.

    Args:
        trainer: It has set up a training.
        remark: Told what does not come back.
    """

    def __init__(self, trainer: Any, remark: Callable[[str], None]) -> None:
        self._trainer = trainer
        # What callbacks hold, beside what they say.
        self.parts = CallbackParts(self._listed, lambda: trainer.lightning_module, remark)
        self._first_set = {name: getattr(trainer, name) for name in _SET}
        self._is_under_way = False
        self._averages: StateDict = {}  # of a version, by the names that they are logged by
        self._results = trainer.fit_loop.epoch_loop._results  # noqa: SLF001 - nothing else has them
        self._update = self._results.update_metrics
        self._results.update_metrics = self._update_metrics

    def state_dict(self) -> StateDict:
        averages = {name: one for name, one in self._read_averages() if one}
        return {
            "loops": self._loops(),
            "should_stop": self._trainer.should_stop,
            "set": self._changed(),
            "callbacks": {name: one.state_dict() for name, one in self._stateful()},
            "parts": self.parts.state_dict(),
            "data": _state_of(self._trainer.datamodule),
            "told": {name: dict(getattr(self._told, name)) for name in _TOLD},
            "averages": {**self._averages, **averages},
            "metrics": {name: read_metric(one) for name, one in self._metrics()},
        }

    def load_state_dict(self, kept: StateDict) -> None:
        """Put back what `state_dict` gave; the loops only before they run."""
        if not self._is_under_way and kept["loops"] != self._loops():
            self._trainer.fit_loop.load_state_dict(kept["loops"])
        self._trainer.should_stop = kept["should_stop"]
        if self._is_under_way:  # as they begin, callbacks require what the script has set
            for name, value in {**self._first_set, **kept.get("set", {})}.items():
                setattr(self._trainer, name, value)
        for name, callback in self._stateful():
            if name in kept["callbacks"]:
                self._put(callback, kept["callbacks"][name])
        self.parts.load_state_dict(kept.get("parts", {}))
        if kept["data"]:
            self._trainer.datamodule.load_state_dict(kept["data"])
        for name in _TOLD:
            getattr(self._told, name).update(kept["told"][name])
        self._averages = dict(kept["averages"])
        for name, metric in self._metrics():
            put_attributes(metric, kept["metrics"].get(name, {}))

    def _put(self, callback: Any, state: StateDict) -> None:
        kinds = _kinds_of(callback)
        if "Timer" in kinds and self._is_under_way:
            return  # its clock runs on, and would count the same time twice
        if "ModelCheckpoint" in kinds:
            callback.current_score = state["current_score"]  # which it says, and leaves out
            callback.dirpath = state["dirpath"]  # each start has another one, by its logger
        with named(f"the callback {type(callback).__name__}"):
            callback.load_state_dict(state)

    def _changed(self) -> StateDict:
        now = {name: getattr(self._trainer, name) for name in _SET}
        return {name: value for name, value in now.items() if value != self._first_set[name]}

    def _loops(self) -> StateDict:
        """Return what they count; positions in the data are kept elsewhere."""
        return {**self._trainer.fit_loop.state_dict(), "state_dict": {}}

    def begin(self) -> None:
        """Make the loops go on as if they had never ended.

        Until their next round, Lightning's own restart would leave out a schedule's step, or an
        evaluation, that a version lies after or before.
        """
        if not self._is_under_way:
            self.parts.begin()
        self._is_under_way = True
        loop = self._trainer.fit_loop
        optimization = loop.epoch_loop.automatic_optimization, loop.epoch_loop.manual_optimization
        for one in (loop, loop.epoch_loop, loop.epoch_loop.val_loop, *optimization):
            one.on_iteration_done()

    @property
    def _told(self) -> Any:
        return self._trainer._logger_connector  # noqa: SLF001 - what monitors read

    def _callbacks(self) -> Iterator[tuple[str, Any]]:
        """Yield each with a name that is the same in every start of the script."""
        for number, callback in enumerate(self._trainer.callbacks):
            yield f"{number} {callback.state_key}", callback

    def _listed(self) -> Iterator[ListedCallback]:
        """Yield all of them, with what they say."""
        said = dict(self._stateful())
        for name, callback in self._callbacks():
            is_known = bool(_SILENT & _kinds_of(callback)) and is_librarys(type(callback))
            yield ListedCallback(
                name=name,
                callback=callback,
                said=said[name].state_dict if name in said else None,
                is_known=is_known or type(callback).__module__.startswith("gemini_lab."),
            )

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        """Yield those that give their state, also if it is empty now."""
        for name, callback in self._callbacks():
            base = next(k for k in type(callback).__mro__ if k.__name__ == "Callback")
            if type(callback).state_dict is not base.__dict__["state_dict"]:
                yield name, callback

    def _read_averages(self) -> Iterator[tuple[str, StateDict]]:
        """Return what Lightning itself has summed up for the log of the epoch under way."""
        for name, metric in self._results.items():
            if metric.is_tensor and not metric.has_reset:
                yield name, _fields(metric)

    def _update_metrics(self, name: str, value: Any, batch_size: int) -> None:
        """Go on from the version when something is first logged after a restart."""
        if name in self._averages:
            for field, kept in self._averages.pop(name).items():
                setattr(self._results[name], field, kept)
        self._update(name, value, batch_size)

    def _metrics(self) -> Iterator[tuple[str, Any]]:
        """Yield torchmetrics' own objects in the module."""
        module = self._trainer.lightning_module
        share_states(module)
        for name, part in module.named_modules():
            if is_metric(part):
                yield name, part


def _kinds_of(callback: Any) -> set[str]:
    return {kind.__name__ for kind in type(callback).__mro__ if is_librarys(kind)}


def is_librarys(kind: type) -> bool:
    """Return whether Lightning ships this class."""
    return kind.__module__.startswith("lightning.")


def _fields(metric: Any) -> StateDict:
    names = _MEAN if metric.meta.is_mean_reduction else _KEPT
    return {name: getattr(metric, name) for name in names}


def _state_of(datamodule: Any) -> StateDict:
    return {} if datamodule is None else dict(datamodule.state_dict())
