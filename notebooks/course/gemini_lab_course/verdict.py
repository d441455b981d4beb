"""How every check talks: one card below its cell, green or amber, with one sentence."""

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, suppress
from html import escape
from numbers import Real
from types import TracebackType
from typing import Final, TypeVar

from gemini_lab.display import NO_FORMULAS, picture, show_below_cell, tell
from gemini_lab.errors import ConfigError, in_lines, kind_of
from gemini_lab.report import RunReport
from gemini_lab.report.recovery import Recovery
from gemini_lab_course import cells
from gemini_lab_course.cells import in_short

Kind = TypeVar("Kind")
NOT_YET: Final = "not right yet"
"""The error's text if the card is already shown."""
READER: Final = "JPY_SESSION_NAME"
"""The variable of a kernel that a notebook server started for an open page."""
GRADES: Final = "GEMINI_LAB_GRADES"
"""The variable of nbgrader's kernels, also if it was started from a notebook's cell."""
_HEADS: Final = {"right": "✓ Right", "no answer yet": "No answer yet", "not yet": "Not yet"}
_GREEN: Final = "#2e8540"
_AMBER: Final = "#c77700"
_AGAIN: Final = "Change your answer above, run its cell, and then this one again."


class WrongAnswerError(Exception):
    """There is no answer, or it is not right; the message says what about it is not.

    Attributes:
        hint: What to think about; shown when the reader asks.
        shows: What is drawn in the card, such as a counterexample.
        is_shown: Whether the card stands below the cell already.
    """

    is_shown, is_verdict = False, True

    def __init__(self, message: str, *, hint: str = "", shows: object = None) -> None:
        super().__init__(message)
        self.hint, self.shows = hint, shows

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows for a traceback: IPython asks for it by this name."""
        return [NOT_YET if self.is_shown else in_lines(str(self))]


class Card:
    """A verdict as a cell shows it.

    Args:
        words: How it is, a colon, and a sentence; lines below it are a table, and stay lines.
        hint: Shown folded.
        shows: Drawn below the sentence.
    """

    def __init__(self, words: str, *, hint: str = "", shows: object = None) -> None:
        self._sentence, _, self._table = words.partition("\n")
        self._hint, self._shows = hint, shows

    def __repr__(self) -> str:
        return "\n".join(filter(None, (in_lines(self._sentence), self._table)))

    def _repr_html_(self) -> str:
        how, colon, rest = self._sentence.partition(": ")
        is_right = how == "right"
        head, said = (_HEADS[how], rest) if colon and how in _HEADS else ("Not yet", self._sentence)
        said = said[:1].upper() + said[1:] if not said.startswith("`") else said
        parts = [f'<p style="margin:0;font-weight:600">{head}</p>', _paragraph(_set(said))]
        if self._table:
            parts.append(f'<pre style="white-space:pre">{escape(self._table)}</pre>')
        if self._shows is not None:
            with suppress(ConfigError, TypeError):  # there is nothing that draws it
                parts.append(picture(self._shows).html())
        if self._hint:
            parts.append(f"<details><summary>A hint</summary>{_set(self._hint)}</details>")
        if not is_right:
            parts.append(_paragraph(_AGAIN, "opacity:.75"))
        colour = _GREEN if is_right else _AMBER
        style = (
            f"border-left:5px solid {colour};padding:.6em 1em;margin:.4em 0;"
            f"background:color-mix(in srgb, {colour} 9%, transparent);overflow-wrap:anywhere"
        )
        return f'<div class="{NO_FORMULAS}" role="status" style="{style}">{"".join(parts)}</div>'


def _paragraph(html: str, style: str = "") -> str:
    return f'<p style="margin:.4em 0;{style}">{html}</p>'


def _set(text: str) -> str:
    """Return a text as HTML; backticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def say(words: str) -> None:
    """Show a verdict below the cell; print it outside of a notebook."""
    if not show_below_cell(Card(words)):
        tell(repr(Card(words)) if sys.stdout.isatty() else words)


class Verdict(AbstractContextManager[Callable[[str], None]]):
    """Gives what shows why an answer is right; what goes wrong becomes a `WrongAnswerError`.

    A reader gets a card in its place. If the notebook may be graded, the error stays, because
    nbgrader gives a point to every check that does not raise.
    """

    def __enter__(self) -> Callable[[str], None]:
        _drop_failed_answer()
        return say

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        verdict = _as_verdict(error, trace)
        card = Card(str(verdict), hint=verdict.hint, shows=verdict.shows)
        verdict.is_shown = show_below_cell(card)
        if verdict.is_shown and READER in os.environ and GRADES not in os.environ:
            return True
        raise verdict from None


def _drop_failed_answer() -> None:
    """Delete an answer whose newest cell raised: an older value is neither tried nor judged."""
    running = cells.shell()
    if running is None:
        return
    for name in re.findall(r"exercise_\d+\((\w+)", running.user_ns.get("In", [""])[-1]):
        if cells.has_failed(name):
            running.user_ns.pop(name, None)


# -- verdicts --------------------------------------------------------------------------------------


def _as_verdict(error: BaseException, trace: TracebackType | None) -> WrongAnswerError:
    if isinstance(error, WrongAnswerError):
        return error
    if isinstance(error, NameError) and trace is not None and trace.tb_next is None:
        return WrongAnswerError(
            f"no answer yet: there is no `{error.name}`; "
            f"{cells.why_missing(error.name or '') or 'run the cells above'}, then this one"
        )
    return WrongAnswerError(f"this answer could not be tried: {in_short(error)}")


def given(answer: object, kind: type[Kind], *, name: str, words: str) -> Kind:
    """Return the answer, once it is known to be of the right kind.

    Args:
        answer: What the student's variable holds.
        kind: What it has to be.
        name: The variable.
        words: What it has to be, such as `"a Placement"`.

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


def struck(report: RunReport) -> list[Recovery]:
    """Return the recoveries from injected failures: a busy machine may add others."""
    return [recovery for recovery in report.recoveries if recovery.injections]


def need(condition: object, sentence: str, *, hint: str = "", shows: object = None) -> None:
    """Go on if `condition` holds.

    Raises:
        WrongAnswerError: It does not; `sentence` says why, and the card draws `shows`.
    """
    if not condition:
        raise WrongAnswerError(f"not yet: {sentence}", hint=hint, shows=shows)
