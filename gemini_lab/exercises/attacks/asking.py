"""Asking a stage that somebody wrote: with a limit of time, and never with a traceback."""

import inspect
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gemini_lab.exercises.attacks.outcome import Fault
from gemini_lab.exercises.verdict import in_short
from gemini_lab.node.own_root import ONE_S, TooLong, limit

A = TypeVar("A")
Asked = Callable[[Mapping[str, object]], object]
"""Gives an answer for some arguments."""
NOTHING: Final = "there is no answer: it returns nothing"


class NotOneError(Exception):
    """An answer is not of the form that its stage has; the message says what is."""


def by_name(function: Callable[..., object]) -> Asked:
    """A function that is called with those of some arguments that it takes."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins do not say
        return lambda arguments: function(**arguments)
    own = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)

    def call(arguments: Mapping[str, object]) -> object:
        return function(**{n: given for n, given in arguments.items() if takes_all or n in own})

    return call


def ask(
    mine: Asked,
    arguments: Mapping[str, object],
    *,
    read: Callable[[object], A],
    limit_s: float = ONE_S,
) -> tuple[A | None, Fault | None]:
    """The answer as `read` gives it, or what kept it from being one.

    Args:
        mine: What is asked; see `by_name`.
        arguments: What it is asked with.
        read: Brings an answer into the stage's own form; `NotOneError` says that it is none.
        limit_s: For the answer, and for reading it: it may be a generator.
    """
    try:
        with limit(limit_s):
            answer = mine(arguments)
            if answer is None:
                return None, Fault(why=NOTHING)
            return read(answer), None
    except TooLong:
        return None, Fault(why=f"there is no answer after {limit_s:g} s")
    except NotOneError as error:
        return None, Fault(why=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a stage of others raises
        return None, Fault(why=f"it raises {in_short(error)}")
