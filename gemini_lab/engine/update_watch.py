"""Whether what is protected is what trains: weights that change without an update of its optimizer.

An optimizer that is made anew after `protect`, or weights that the script writes by hand, make no
versions, and a loop over steps would never end. Passes without any change are no fault: gradients
are accumulated, a scaler leaves updates out, an environment is played.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gemini_lab.errors import UnsupportedError
from gemini_lab.log import events

SAID_AFTER: Final = 3
ENDS_AFTER: Final = 30
"""So many changes in a row, without an update of the protected optimizer between them."""


class UpdateWatch:
    """Counts changes of the weights that are no update; called by training's thread.

    Args:
        optimizer: What is protected.
        weights: What it trains.
        version: Gives the number of the newest version.
        emit: Says an event.
        ends: Whether too many such changes end the run.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Iterable[torch.Tensor],
        version: Callable[[], int],
        *,
        emit: Callable[[events.AnyEvent], None] = lambda _: None,
        ends: bool = True,
    ) -> None:
        self._weights = [*weights]
        self._ids = {id(weight) for weight in self._weights}
        self._protected = type(optimizer).__name__
        self._optimizer = optimizer
        self._version, self._emit, self._ends = version, emit, ends
        self._is_on = False  # before training, a rate may be searched for
        self._is_updating = False
        self._is_explained = True  # what has changed since the loop's last top
        self._in_a_row = 0
        self._counts: list[int] = []
        self._hook: Any = register_optimizer_step_post_hook(self._see)

    def begin_update(self) -> None:
        """The protected optimizer begins an update: what others do in it is a part of it."""
        self._is_on = self._is_updating = True

    def end_update(self) -> None:
        """It has ended."""
        self._is_updating, self._is_explained = False, True
        self._in_a_row = 0

    def reach_top(self) -> None:
        """The script is at the top of its loop.

        Raises:
            UnsupportedError: The weights have changed too often without an update.
        """
        self._is_on, counts = True, self._count()
        if not self._is_explained and counts != self._counts:
            self._note("the script itself")
        self._counts, self._is_explained = counts, False
        if self._ends and self._in_a_row >= ENDS_AFTER:
            raise UnsupportedError(
                f"the weights have changed {self._in_a_row} times in a row without an update of "
                f"the {self._protected} that `protect` was given: the newest version is "
                f"{self._version()}, and protected.steps would never end; give `protect` the "
                "optimizer that trains, and make no other one for its weights afterwards; "
                'where two train the same in turn, have "on_unkept_updates": "warn"'
            )

    def begin_anew(self) -> None:
        """At the loop's top, a version was put back."""
        self._counts, self._is_explained, self._in_a_row = self._count(), False, 0

    def close(self) -> None:
        """Training is over."""
        self._hook.remove()

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Any optimizer of this process has made its step."""
        if not self._is_on or self._is_updating or optimizer is self._optimizer:
            return
        groups = optimizer.param_groups
        if any(id(weight) in self._ids for group in groups for weight in group["params"]):
            self._is_explained = True  # by this
            self._note(f"another {type(optimizer).__name__}")

    def _note(self, by: str) -> None:
        self._in_a_row += 1
        if self._in_a_row == SAID_AFTER:
            event = events.UpdatesUnkept(
                version=self._version(), by=by, optimizer=self._protected, ends=self._ends
            )
            warnings.warn(f"gemini_lab: {event}", stacklevel=2)
            self._emit(event)

    def _count(self) -> list[int]:
        """How often torch has seen each of the weights written."""
        return [0 if one.is_inference() else one._version for one in self._weights]  # noqa: SLF001 - torch has no other name for it
