"""The search for the smallest counterexample: by trying all small cases, the smallest first."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from gemini_lab.lab.submission import ONE_S, TooLong, limit
from gemini_lab.placement.own import by_name, takes
from gemini_lab_course.attacks.outcome import (
    BesideOurs,
    Case,
    Counterexample,
    StageFault,
    Withstood,
)
from gemini_lab_course.cells import in_short

C = TypeVar("C", bound=Case)
A = TypeVar("A")
BUSY: Final = 5.0
"""How many times longer a search may take when other programs use the processor."""
FICKLE: Final = "asked the same again, it answers something else"

Asked = Callable[[Mapping[str, object]], object]
"""Gives an answer for some arguments."""
NOTHING: Final = "there is no answer: it returns nothing"


class NotOneError(Exception):
    """An answer is not of the form that its stage has; the message says what is."""


def ask(
    mine: Asked,
    arguments: Mapping[str, object],
    *,
    read: Callable[[object], A],
    limit_s: float = ONE_S,
) -> tuple[A | None, StageFault | None]:
    """Return the answer as `read` gives it, or what kept it from being one.

    Args:
        mine: What is asked; see `gemini_lab.placement.own.by_name`.
        arguments: What it is asked with.
        read: Brings an answer into the stage's own form; `NotOneError` says that it is none.
        limit_s: For the answer, and for reading it: it may be a generator.
    """
    try:
        with limit(limit_s):
            answer = mine(arguments)
            if answer is None:
                return None, StageFault(why=NOTHING)
            return read(answer), None
    except TooLong:
        return None, StageFault(why=f"there is no answer after {limit_s:g} s")
    except NotOneError as error:
        return None, StageFault(why=str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a stage of others raises
        return None, StageFault(why=f"it raises {in_short(error)}")


class Patience:
    """How long to look: so many seconds of work, which a busy machine makes no less.

    Args:
        within_s: Of this process's own work, and several times that on the clock.
    """

    def __init__(self, within_s: float) -> None:
        self._begun_s = time.monotonic()
        self._work_s = time.process_time() + within_s
        self._clock_s = time.monotonic() + BUSY * within_s

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return time.process_time() > self._work_s or time.monotonic() > self._clock_s

    def each_s(self, tried: int) -> float:
        """Return what each of `tried` cases took, on average."""
        return (time.monotonic() - self._begun_s) / max(1, tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked(Generic[C, A]):
    """A stage as it is attacked: what it is asked, and what is wrong with an answer.

    Attributes:
        name: The stage's name.
        scope: How large its cases are, in words.
        read: Brings an answer into the stage's own form, or raises `NotOneError`.
        fault: What is wrong with an answer; `None` if nothing is.
        figures: How good a stage that has no fault is, given what it answers to a case: `None`
            where that is wrong.
    """

    name: str
    scope: str
    read: Callable[[object], A]
    fault: Callable[[C, A], StageFault | None]
    figures: Callable[[Callable[[C], A | None]], tuple[BesideOurs, ...]]

    def judge(self, case: C, mine: Asked, *, tried: int) -> Counterexample | None:
        """Ask `mine` a case twice, and return what is wrong; `None` if nothing is."""
        answer, fault = self._asked(case, mine)
        if fault is None:
            second, fault = self._asked(case, mine)
            if fault is not None:
                fault = replace(fault, why=f"asked the same again: {fault.why}")
            elif second != answer:
                fault = StageFault(why=FICKLE)
            answer = second
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
        """Return the first of `cases` that breaks `mine`; or what it is worth if none does.

        Args:
            mine: What is attacked.
            cases: The smallest first.
            within_s: When to stop looking; see `Patience`.
        """
        patience = Patience(within_s)
        tried, left, asked = 0, 0, by_name(mine)
        given: Mapping[str, object] = {}
        for case in (in_order := iter(cases)):
            if patience.is_over:
                left = 1 + sum(1 for _ in in_order)
                break
            found = self.judge(case, asked, tried=tried)
            if found is not None:
                return found
            tried += 1
            given = case.arguments
        return Withstood(
            stage=self.name,
            tried=tried,
            left=left,
            case_s=patience.each_s(tried),
            figures=self.figures(lambda case: self._right(case, asked)),
            scope=self.scope,
            never_given=tuple(name for name in takes(mine) if name not in given),
        )

    def _right(self, case: C, mine: Asked) -> A | None:
        answer, fault = self._asked(case, mine)
        return None if fault else answer

    def _asked(self, case: C, mine: Asked) -> tuple[A | None, StageFault | None]:
        """Return what `mine` answers, and what is wrong with that."""
        answer, fault = ask(mine, case.arguments, read=self.read)
        return answer, fault if answer is None else self.fault(case, answer)
