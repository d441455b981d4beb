"""The ways in which a call to the store fails, and how long a caller tries again."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from gemini_lab.errors import GeminiError

Result = TypeVar("Result")
PATIENCE_S: Final = 15.0


class StoreUnavailableError(GeminiError):
    """The store did not answer in time; the same call may succeed later."""

    may_pass = True


class StoreFullError(StoreUnavailableError):
    """The store answers, and takes nothing more."""


class StoreForgedError(StoreUnavailableError):
    """A value in the store was not written with the lab's token: none of them is acted on."""

    may_pass = False


def patiently(
    act: Callable[[], Result],
    *,
    patience_s: float = PATIENCE_S,
    tell: Callable[[str], object] = lambda _: None,
) -> Result:
    """Call `act` until the store is not too busy to answer, as it is when many nodes start.

    Args:
        act: The call.
        patience_s: How long it is tried again.
        tell: Receives a line about the wait, once.

    Raises:
        StoreUnavailableError: The store did not answer in time, or it was forged.
    """
    give_up_s = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return act()
        except StoreUnavailableError as error:
            if isinstance(error, StoreForgedError) or time.monotonic() > give_up_s:
                raise
            if not is_told:
                is_told = True
                tell(f"waiting up to {patience_s:.0f} s for the store to answer")
            time.sleep(0.1)
