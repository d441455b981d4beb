"""The search for the smallest counterexample: by trying all small cases, the smallest first."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gemini_lab.exercises.attacks.asking import Asked, ask
from gemini_lab.exercises.attacks.outcome import Beside, Case, Counterexample, Fault, Withstood
from gemini_lab.placement.own import by_name

C = TypeVar("C", bound=Case)
A = TypeVar("A")
BUSY: Final = 5.0
"""How much longer a search may take where others have the processor, too."""


class Patience:
    """How long to look: so many seconds of work, which a busy machine makes no less.

    Args:
        within_s: Of this process's own work, and several times that on the clock.
    """

    def __init__(self, within_s: float) -> None:
        self._work_s = time.process_time() + within_s
        self._clock_s = time.monotonic() + BUSY * within_s

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return time.process_time() > self._work_s or time.monotonic() > self._clock_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked(Generic[C, A]):
    """A stage as it is attacked: what it is asked, and what is wrong with an answer.

    Attributes:
        name: The stage's name.
        read: Brings an answer into the stage's own form, or raises `NotOneError`.
        fault: What is wrong with an answer; `None` if nothing is.
        figures: How good a stage that has no fault is, given what it answers to a case: `None`
            where that is wrong.
    """

    name: str
    read: Callable[[object], A]
    fault: Callable[[C, A], Fault | None]
    figures: Callable[[Callable[[C], A | None]], tuple[Beside, ...]]

    def judge(self, case: C, mine: Asked, *, tried: int) -> Counterexample | None:
        """What `mine` makes of a case, where that is wrong."""
        answer, fault = ask(mine, case.arguments, read=self.read)
        if answer is not None:
            fault = self.fault(case, answer)
        if fault is None:
            return None

        def again(other: Callable[..., object]) -> Counterexample | None:
            return self.judge(case, by_name(other), tried=tried)

        return Counterexample(
            stage=self.name, case=case, answer=answer, fault=fault, tried=tried, judge=again
        )

    def attack(
        self, mine: Callable[..., object], cases: Iterable[C], *, within_s: float
    ) -> Counterexample | Withstood:
        """The first of `cases` that breaks `mine`; or what it is worth if none does.

        Args:
            mine: What is attacked.
            cases: The smallest first.
            within_s: When to stop looking; see `Patience`.
        """
        patience = Patience(within_s)
        tried, is_complete, asked = 0, True, by_name(mine)
        for case in cases:
            if patience.is_over:
                is_complete = False
                break
            found = self.judge(case, asked, tried=tried)
            if found is not None:
                return found
            tried += 1
        figures = self.figures(lambda case: self._answer(case, asked))
        return Withstood(stage=self.name, tried=tried, is_complete=is_complete, figures=figures)

    def _answer(self, case: C, mine: Asked) -> A | None:
        """What `mine` answers, if that is right."""
        answer, _ = ask(mine, case.arguments, read=self.read)
        return None if answer is None or self.fault(case, answer) else answer
