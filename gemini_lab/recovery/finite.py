"""Whether the losses that ranks log are numbers: a state that makes none is not worth saving."""

from math import isfinite

from gemini_lab.log.events import Iteration

LOSS = "loss"
"""The value that is looked at. A gradient norm says nothing: fp16 meets infinite ones whenever it
looks for its scale, and makes no update of them."""


class LossWatch:
    """Which ranks' losses are NaN or infinite.

    Attributes:
        since: The iteration in which that began; `None` while all losses are numbers.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self._ranks: set[int] = set()

    def take(self, said: Iteration) -> bool:
        """A rank ended an iteration; whether it began with that, or ended for all ranks."""
        loss = said.value(LOSS)
        if loss is None:
            return False
        if isfinite(loss):
            self._ranks.discard(said.rank)
        else:
            self._ranks.add(said.rank)
        was_so, is_so = self.since is not None, bool(self._ranks)
        if was_so != is_so:
            self.since = said.iteration if is_so else None
        return was_so != is_so
