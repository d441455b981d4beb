"""Small state of a DeepSpeed engine beside its tensors: counters, batch sizes, and the schedule."""

from collections.abc import Mapping, Sequence
from typing import Final

from deepspeed.runtime.engine import DeepSpeedEngine

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.optimizer_state import require_both
from gemini_lab.engine.frameworks.resize_state import DataParallelGroups, Heir
from gemini_lab.engine.frameworks.zero import data_parallel_ranks_of, place_of, unevenness
from gemini_lab.errors import UnsupportedError
from gemini_lab.settings import SettingValue

_COUNTERS: Final = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_BATCH: Final = "train_batch_size"
_MICRO_BATCH: Final = "train_micro_batch_size_per_gpu"
_MICRO_BATCHES: Final = "gradient_accumulation_steps"
_SIZES: Final = (_BATCH, _MICRO_BATCH, _MICRO_BATCHES)
"""What a script may change on the way, by `set_train_batch_size`."""
_OF_PIPELINE: Final = "micro_offset"
"""A count in a PipelineModule, by which it seeds layers; other models have none."""


class CountedEngine(Framework):
    """A DeepSpeed engine's small state, whatever its ZeRO stage; a view of one begins with it."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        super().__init__(engine)
        self.count(engine)

    def count(self, engine: DeepSpeedEngine) -> None:
        """Read what the engine counts from here on."""
        self.engine = self._deepspeed = engine  # far more of it is read than it declares
        self.uneven, self.is_pipelined = unevenness(engine), bool(engine.pipeline_parallelism)
        self._first_sizes = self._sizes()
        self._updated_at: int | None = None  # micro-batches that were done after the newest update

    def meet(self) -> None:
        if self.uneven:  # on all ranks
            self.groups = DataParallelGroups.agreed(data_parallel_ranks_of(self._deepspeed))

    @property
    def place(self) -> str:
        return place_of(self._deepspeed)

    def settings(self) -> Mapping[str, SettingValue]:
        # DeepSpeed keeps the blocks that it does not know only in the raw configuration.
        config = self._deepspeed._config  # noqa: SLF001
        block: Mapping[str, SettingValue] = config._param_dict.get("gemini", {})  # noqa: SLF001
        return block

    def batch(self) -> int | None:
        return int(self._deepspeed.train_batch_size())

    def note_update(self) -> None:
        """Note how many micro-batches are done, after an update."""
        self._updated_at = self._deepspeed.micro_steps

    def require_boundary(self) -> None:
        engine = self._deepspeed
        if not engine.managed_gradient_accumulation():
            return
        # Who tells the engine of boundaries calls its step there alone: so it counts updates.
        # Only here it says whether the script has declared a boundary itself, or nothing.
        declared: bool | None = engine._is_gradient_accumulation_boundary  # noqa: SLF001
        steps: int = engine.gradient_accumulation_steps()
        is_within = engine.micro_steps % steps if declared is None else not declared
        # After an update the script may have set another number of micro-batches.
        if is_within and engine.micro_steps != self._updated_at:
            raise UnsupportedError(
                f"a version was to be made in the middle of {steps} micro-batches; have a pass of "
                "the loop end with the engine.step() that updates the weights (DeepSpeed counts "
                "micro-batches from its start: call set_train_batch_size where as many are done as "
                "both of its sizes divide)"
            )

    def capture(self) -> StateDict:
        scheduler = self._deepspeed.lr_scheduler
        return {
            "counters": {name: getattr(self._deepspeed, name) for name in _COUNTERS},
            "sizes": dict(self._sizes().items() - self._first_sizes.items()),
            "scheduler": None if scheduler is None else dict(scheduler.state_dict()),
            _OF_PIPELINE: getattr(self._deepspeed.module, _OF_PIPELINE, None),
        }

    def restore(self, small: StateView) -> None:
        if self._deepspeed.lr_scheduler is not None:
            self._deepspeed.lr_scheduler.load_state_dict(small["scheduler"])
        for name in _COUNTERS:
            setattr(self._deepspeed, name, small["counters"][name])
        if small[_OF_PIPELINE] is not None:
            setattr(self._deepspeed.module, _OF_PIPELINE, small[_OF_PIPELINE])
        self.note_update()
        for name, size in {**self._first_sizes, **small.get("sizes", {})}.items():
            # `set_train_batch_size` divides by the old sizes, and may refuse on the way.
            setattr(self._deepspeed._config, name, size)  # noqa: SLF001

    def require_fit(self, small: StateView) -> None:
        require_both(
            "a learning rate scheduler",
            stored=small["scheduler"],
            current=self._deepspeed.lr_scheduler,
        )

    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        sizes = self._sizes_of(
            heir.shared([one.get("sizes", {}) for one in smalls], "a batch size"), heir.ranks
        )
        counters = heir.shared([one["counters"] for one in smalls], "a count")
        return {
            "counters": self._counters(counters, {**self._first_sizes, **sizes}[_MICRO_BATCHES]),
            "sizes": sizes,
            "batch": sizes.get(_BATCH, self.batch()),
            "scheduler": heir.shared([one["scheduler"] for one in smalls], "the schedule"),
            _OF_PIPELINE: heir.shared([one[_OF_PIPELINE] for one in smalls], "a count of passes"),
        }

    def _sizes(self) -> dict[str, int]:
        return {name: getattr(self._deepspeed._config, name) for name in _SIZES}  # noqa: SLF001

    def _sizes_of(self, sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
        """Return the sizes that a script set, for so many ranks; the batch stays, if it can."""
        if not sizes:
            return {}
        now = {**self._first_sizes, **sizes}
        a_step = now[_MICRO_BATCH] * ranks
        if now[_BATCH] % a_step == 0:
            now[_MICRO_BATCHES] = now[_BATCH] // a_step
        return {**now, _BATCH: now[_MICRO_BATCHES] * a_step}

    def _counters(self, counters: Mapping[str, int], micro_batches: int) -> dict[str, int]:
        """Return the counters of a version for another number of micro-batches."""
        engine = self._deepspeed
        if engine.pipeline_parallelism or not engine.managed_gradient_accumulation():
            return dict(counters)
        return {**counters, "micro_steps": counters["global_steps"] * micro_batches}
