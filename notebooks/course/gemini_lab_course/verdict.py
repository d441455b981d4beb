"""How every check talks: one sentence about the answer that it was given."""

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from numbers import Real
from types import TracebackType
from typing import Final, TypeVar

from gemini_lab.display import Said, say, show_below_cell
from gemini_lab.errors import GeminiError, in_lines, kind_of

Kind = TypeVar("Kind")
NOT_YET: Final = "not right yet"
"""What is left to say for a cell that failed where the verdict stands above."""


class WrongAnswerError(Exception):
    """There is no answer, or it is not right; the message says what about it is not.

    Attributes:
        is_shown: Whether it stands below the cell already.
    """

    is_shown = False

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows for a traceback: IPython asks for it by this name."""
        return [NOT_YET if self.is_shown else in_lines(str(self))]


class Verdict(AbstractContextManager[Callable[[str], None]]):
    """Gives what shows why an answer is right; what goes wrong becomes a `WrongAnswerError`."""

    def __enter__(self) -> Callable[[str], None]:
        return say

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        verdict = _as_verdict(error, trace)
        verdict.is_shown = show_below_cell(Said(str(verdict)))
        raise verdict from None


def _as_verdict(error: BaseException, trace: TracebackType | None) -> WrongAnswerError:
    if isinstance(error, WrongAnswerError):
        return error
    if isinstance(error, NameError) and trace is not None and trace.tb_next is None:
        return WrongAnswerError(
            f"no answer yet: there is no `{error.name}`; run the cells above, then this one"
        )
    return WrongAnswerError(f"this answer could not be tried: {in_short(error)}")


def given(answer: object, kind: type[Kind], *, name: str, words: str) -> Kind:
    """Return the answer, once it is known to be of the right kind.

    Args:
        answer: What the student's variable holds.
        kind: What it has to be.
        name: The variable.
        words: What it has to be, for people, such as `"a Placement"`.

    Raises:
        WrongAnswerError: There is none, or it is something else.
    """
    if not isinstance(answer, kind):
        raise another_kind(answer, name=name, words=words)
    return answer


def another_kind(answer: object, *, name: str, words: str) -> WrongAnswerError:
    """Return what to say of no answer, and of one that is not what `words` ask for."""
    if answer is None:
        return WrongAnswerError(f"no answer yet: make `{name}` {words} in the cell above")
    return WrongAnswerError(f"`{name}` has to be {words}, and yours is {kind_of(answer)}")


def number(answer: object, *, name: str, words: str) -> float:
    """Return the answer as a finite number.

    Raises:
        WrongAnswerError: It is none.
    """
    if isinstance(answer, bool) or not isinstance(answer, (int, float, Real)):
        raise another_kind(answer, name=name, words=words)
    try:
        value = float(answer)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise WrongAnswerError(f"`{name}` has to be {words}, and yours is {value}")
    return value


def whole_number(answer: object, *, name: str) -> int:
    """Return the answer as an integer; 12.0 is one.

    Raises:
        WrongAnswerError: It is none.
    """
    value = number(answer, name=name, words="a whole number")
    if not value.is_integer():
        raise WrongAnswerError(f"`{name}` has to be a whole number, and yours is {value:g}")
    return int(value)


def as_list(answer: object) -> list[object] | None:
    """Return the items of a tuple, an array or a generator; `None` if they have no order."""
    has_no_order = isinstance(answer, (str, bytes, Mapping, AbstractSet))
    return list(answer) if isinstance(answer, Iterable) and not has_no_order else None


def called(function: Callable[..., object], *arguments: float, name: str) -> object:
    """Return what the student's function gives.

    Raises:
        WrongAnswerError: It raises.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        call = f"{name}({', '.join(f'{each:g}' for each in arguments)})"
        raise WrongAnswerError(f"`{call}` raised {in_short(error)}") from error


def need(condition: object, sentence: str) -> None:
    """Go on where `condition` holds.

    Raises:
        WrongAnswerError: It does not; `sentence` says what is not right.
    """
    if not condition:
        raise WrongAnswerError(f"not yet: {sentence}")


def in_short(error: BaseException) -> str:
    """Return one line of an error; its name too, unless gemini_lab's own message says enough."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, GeminiError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
