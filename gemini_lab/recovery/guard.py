"""Whether an iteration counts: the losses and states of all ranks, before its version is sent.

Every rank judges the same numbers, which the ranks exchange, so all come to the same verdict. A
rejected iteration is taken back, and nothing of it was sent. If the next try cannot pass it either,
training goes one version further back each time, until there is none. The root agent watches losses
by `LossWatch`, also if no iteration is ever rejected.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Any, Final

from gemini_lab.log.events import Iteration
from gemini_lab.settings import Settings

WINDOW: Final = 128
"""Newest good losses with which a loss is compared."""
FEWEST: Final = 32
"""With fewer of them no loss is too high: at first it falls fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One rank's view of an iteration."""

    loss: float | None  # what it logged; `None` for nothing
    is_finite: bool  # whether all numbers of its state, as the iteration left it, are numbers


class Guard:
    """Judges the iterations of a job, on each of its ranks alike.

    Args:
        rejects_not_finite: Whether losses and states that are no numbers are rejected.
        most_deviations: How many standard deviations above the mean of the newest good ones a loss
            may lie; `None` for any number.
    """

    def __init__(self, *, rejects_not_finite: bool, most_deviations: float | None) -> None:
        self._rejects_not_finite = rejects_not_finite
        self._most_deviations = most_deviations
        self._good: deque[float] = deque(maxlen=WINDOW)
        self._trouble = 0  # the latest iteration that was rejected and is not past; 0 for none
        self._tries = 0  # how often training went back because of it

    @classmethod
    def of(cls, settings: Settings) -> "Guard | None":
        """Return the guard that the settings ask for; `None` for none."""
        if not settings.is_guarded:
            return None
        return cls(
            rejects_not_finite=settings.on_not_finite == "rewind",
            most_deviations=settings.rewind_on_spike,
        )

    def judge(self, iteration: int, seen: Sequence[Sight]) -> str:
        """Return why the iteration is rejected; count a good one and return an empty text.

        Args:
            iteration: Its number.
            seen: By all ranks, in their order.
        """
        reason = self._fault(seen)
        if not reason:
            self._accept(iteration, seen)
        elif self._trouble and iteration <= self._trouble:
            self._tries += 1
        else:
            self._trouble, self._tries = iteration, 1
        return reason

    def goal(self, iteration: int) -> int:
        """Return the version to go back to after a rejection; below 0 for none."""
        return min(iteration - 1, self._trouble - self._tries)

    def _accept(self, iteration: int, seen: Sequence[Sight]) -> None:
        mean = _mean(seen)
        if mean is not None and isfinite(mean):
            self._good.append(mean)
        if iteration >= self._trouble:
            self._trouble = self._tries = 0

    def _fault(self, seen: Sequence[Sight]) -> str:
        if self._rejects_not_finite:
            for rank, one in enumerate(seen):
                if one.loss is not None and not isfinite(one.loss):
                    return f"the loss of rank {rank} is {one.loss}"
            for rank, one in enumerate(seen):
                if not one.is_finite:
                    return f"the state of rank {rank} holds NaN or infinity"
        mean = _mean(seen)
        if self._most_deviations is None or mean is None or len(self._good) < FEWEST:
            return ""
        usual, deviation = _usual(self._good)
        highest = usual + self._most_deviations * deviation
        if mean > highest:
            return (
                f"the loss is {mean:.6g}, above {highest:.6g} ({self._most_deviations:g} standard "
                f"deviations over {usual:.6g}, the mean of {len(self._good)})"
            )
        return ""

    # -- with each version -----------------------------------------------------------------------

    def to_small(self) -> dict[str, object]:
        """Return the part that a version stores, so that it judges alike after a recovery."""
        return {"good": [*self._good], "trouble": self._trouble, "tries": self._tries}

    def restore(self, small: Mapping[str, Any]) -> None:
        """Restore the state that it had when a recovery's version was made."""
        self.go_back(small)
        self._trouble, self._tries = small["trouble"], small["tries"]

    def go_back(self, small: Mapping[str, Any]) -> None:
        """Forget the losses after a version to which training goes back, but not the reason."""
        self._good = deque(small["good"], maxlen=WINDOW)


def _mean(seen: Iterable[Sight]) -> float | None:
    losses = [one.loss for one in seen if one.loss is not None]
    if not losses:
        return None
    return fsum(losses) / len(losses) if all(map(isfinite, losses)) else sum(losses)


def _usual(losses: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Return mean and standard deviation, to the bit the same on all ranks."""
    mean = fsum(losses) / len(losses)
    return mean, sqrt(fsum((loss - mean) ** 2 for loss in losses) / len(losses))


LOSS = "loss"
"""The value that is looked at. A gradient norm says nothing: fp16 meets infinite ones whenever it
looks for its scale, and makes no update of them."""


class LossWatch:
    """The ranks whose losses are NaN or infinite.

    Args:
        since: As the attribute, as the last root agent knew it; the next loss tells whether it is
            still so.

    Attributes:
        since: The iteration in which that began; `None` while all losses are numbers.
    """

    def __init__(self, since: int | None = None) -> None:
        self.since = since
        self._ranks: set[int] = set()

    def take(self, said: Iteration) -> bool:
        """Note a rank's loss; return whether trouble began with it, or ended for all ranks."""
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
