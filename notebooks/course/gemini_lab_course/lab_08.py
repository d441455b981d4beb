"""Lab 08: the reader's root agent, attacked in simulated labs and then run in a real one."""

from collections.abc import Callable

from gemini_lab import RunReport
from gemini_lab.errors import RunFailedError
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.cells import in_short
from gemini_lab_course.verdict import WrongAnswerError, need, struck

_WORDS = "a function of `state`, `event` and `cluster`"
_withstood: list[object] = []
"""Functions that no attack of this process broke."""


def exercise_1(decide: object, *, within_s: float = 100.0) -> str:
    """Judge what a root agent decides by attacking it.

    Args:
        decide: The student's.
        within_s: When to stop looking.

    Raises:
        WrongAnswerError: It is no function, or there is a counterexample.
    """
    result = withstood(decide, name="decide", stage="root", words=_WORDS, within_s=within_s)
    _withstood.append(decide)
    return f"right: {result.words}\n{compared(result)}"


def exercise_2(
    mine: object,
    *,
    train: Callable[[object], RunReport],
    undisturbed: RunReport,
    failures: int,
    within_s: float = 100.0,
) -> str:
    """Judge what a root agent decides by the log of a real run that loses a worker and its root.

    A function that no attack has tried is attacked first: one run shows few of the moments at which
    it can be wrong.

    Args:
        mine: The student's.
        train: Trains with it and with the failures, and gives the report.
        undisturbed: The same job's without failures.
        failures: How many there are.
        within_s: When to stop attacking.

    Raises:
        WrongAnswerError: It is no function, there is a counterexample, or the run did not come back
            each time from memory.
    """
    if not any(mine is known for known in _withstood):
        withstood(mine, name="mine", stage="root", words=_WORDS, within_s=within_s)
        _withstood.append(mine)
    try:
        report = train(mine)
    except RunFailedError as error:
        raise WrongAnswerError(f"not yet: the run did not finish: {in_short(error)}") from error
    recoveries = struck(report)
    told = len(recoveries)
    need(told >= failures, f"{failures} failures were to strike, and the log has {told}; run again")
    elsewhere = [str(each.tier) for each in recoveries if each.tier != "memory"]
    need(
        not elsewhere, f"not every version came from memory, but also from: {', '.join(elsewhere)}"
    )
    match = report.losses_match(undisturbed)
    need(match, str(match))
    versions = ", ".join(str(each.version) for each in recoveries)
    return f"right: versions {versions} from memory, and {match}"
