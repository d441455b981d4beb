"""What a Trainer counts and logs, and what its callbacks keep: read for a version, and put back."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from gemini_lab.adapters.callback_parts import CallbackParts, Listed
from gemini_lab.adapters.log_history import LogHistory
from gemini_lab.adapters.trainer_counts import OwnCounts, assigned_by
from gemini_lab.engine.private_names import require_known
from gemini_lab.engine.state.rehearsal import named

_STATE: Final = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)  # what training changes in a TrainerState, beside its history
_TRAINER: Final = (
    "current_flos",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_total_loss_scalar",
    "_tr_loss",
)  # what its loop keeps in the Trainer itself


def require_known_sums() -> None:
    """Refuse a version of transformers whose Trainer calls its sums and counts otherwise.

    Raises:
        UnsupportedError: It does.
    """
    assigned = {*assigned_by(Trainer)}
    missing = [name for name in _TRAINER if name not in assigned]
    require_known(missing, Trainer.__name__, package="transformers")


class TrainerState:
    """The counters, sums and history of a Trainer, and its callbacks' own states; for `also`.

    Args:
        trainer: What the script calls `train()` of.
        remark: Told what will not come back.

    Attributes:
        parts: What callbacks hold, beside what they say.
    """

    def __init__(self, trainer: Any, remark: Callable[[str], None]) -> None:
        self._trainer = trainer
        self.parts = CallbackParts(self._listed, lambda: trainer.model, remark)
        self._counts = OwnCounts(trainer, remark)
        self._history = LogHistory()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and small tensors."""
        state = self._trainer.state
        return {
            "state": {name: getattr(state, name) for name in _STATE},
            "trainer": {name: getattr(self._trainer, name, None) for name in _TRAINER},
            "counts": self._counts.state_dict(),
            "history": self._history.follow(state.log_history),
            "callbacks": {name: _read(one) for name, one in self._callbacks() if _is_kept(one)},
            "parts": self.parts.state_dict(),
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        for name, value in kept["state"].items():
            setattr(self._trainer.state, name, value)
        for name, value in kept["trainer"].items():
            if value is not None:
                is_tensor = isinstance(value, torch.Tensor)
                placed = value.to(self._trainer.args.device) if is_tensor else value
                setattr(self._trainer, name, placed)
        self._counts.load_state_dict(kept.get("counts", {}))  # versions of 0.1.0 have none
        self._trainer.state.log_history = self._history.read(kept["history"])
        for name, callback in self._callbacks():
            if name in kept["callbacks"]:
                with named(f"the callback {type(callback).__name__}"):
                    _put(callback, kept["callbacks"][name])
        self.parts.load_state_dict(kept.get("parts", {}))

    def _listed(self) -> Iterator[Listed]:
        """All callbacks, with what they say; what transformers' own hold is for people alone."""
        for name, callback in self._callbacks():
            module = type(callback).__module__
            yield Listed(
                name=name,
                callback=callback,
                said=partial(_read, callback) if _is_kept(callback) else None,
                is_known=module.startswith(("transformers.", "gemini_lab.")),
            )

    def _callbacks(self) -> Iterator[tuple[str, Any]]:
        """Each with a name that is the same in every start of the script."""
        for number, callback in enumerate(self._trainer.callback_handler.callbacks):
            yield f"{number} {type(callback).__name__}", callback


def _is_stateful(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _is_kept(callback: Any) -> bool:
    """Whether it says what its state is: as torch's objects do, or as an ExportableState."""
    return _is_stateful(callback) or isinstance(callback, ExportableState)


def _read(callback: Any) -> Any:
    return callback.state_dict() if _is_stateful(callback) else callback.state()["attributes"]


def _put(callback: Any, kept: Any) -> None:
    if _is_stateful(callback):
        callback.load_state_dict(kept)
        return
    for name, value in kept.items():
        setattr(callback, name, value)
