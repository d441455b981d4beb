"""Asking a stage that somebody wrote: with a limit of time, and never with a traceback."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gemini_lab.lab.submission import ONE_S, TooLong, limit
from gemini_lab_course.attacks.outcome import StageFault
from gemini_lab_course.cells import in_short

A = TypeVar("A")
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
