"""Which Trainers, and which training data of theirs, are protected; the rest is refused."""

from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import DataLoader

from gemini_lab.errors import UnsupportedError

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


def require_length(loader: Any) -> None:
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
