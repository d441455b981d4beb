"""The ways in which a call to the store fails, and how long a caller tries again."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from gemini_lab.errors import GeminiError
from gemini_lab.node.etcd_address import EtcdAddress

Result = TypeVar("Result")
PATIENCE_S: Final = 15.0
QUOTA_REACHED: Final = "database space exceeded"
"""The end of etcd's answer to a write when its database is full."""


class StoreUnavailableError(GeminiError):
    """The store did not answer in time; the same call may succeed later."""

    may_pass = True


class StoreFullError(StoreUnavailableError):
    """The store answers, and takes nothing more."""


class StoreForgedError(StoreUnavailableError):
    """A value in the store was not written with the lab's token: none of them is acted on."""

    may_pass = False


def patiently(
    act: Callable[[], Result],  # the call
    *,
    patience_s: float = PATIENCE_S,  # how long it is tried again
    tell: Callable[[str], object] = lambda _: None,  # receives a line about the wait, once
) -> Result:
    """Call `act` until the store is not too busy to answer, as it is when many nodes start.

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


def no_answer(
    address: EtcdAddress, timeout_s: float, error: BaseException, *, lack: str = ""
) -> StoreUnavailableError:
    """Return the error for an etcd that did not answer, or that takes nothing more.

    Args:
        address: Its own.
        timeout_s: How long it was waited for.
        error: What came instead of an answer.
        lack: Says that it has no room, if that is known.
    """
    where, reason = ", ".join(address.endpoints), why(error)
    if reason == QUOTA_REACHED:
        return StoreFullError(
            f"etcd at {where} takes nothing more: its database has reached its quota and raised "
            "the alarm NOSPACE; compact and defragment it (etcdctl compact, etcdctl defrag), or "
            "raise --quota-backend-bytes, and then lift it with `etcdctl alarm disarm`"
        )
    said = f"etcd at {where} did not answer within {timeout_s:g} s"
    if lack:
        return StoreUnavailableError(f"{said}: {lack}; free space there, and it starts again")
    return StoreUnavailableError(
        f"{said} ({reason}); `etcdctl --endpoints={','.join(address.endpoints)} endpoint health` "
        "asks it by hand"
    )


def why(error: BaseException) -> str:
    """Return in a few words why etcd did not answer.

    gRPC's errors print a page, and the end of one of its lines has the reason.
    """
    details = getattr(error, "details", None)
    if callable(details) and (text := str(details() or "").strip()):
        return text.splitlines()[0].rpartition(": ")[2].rstrip("]")
    told = str(error).strip()
    return told.splitlines()[0] if told else type(error).__name__
