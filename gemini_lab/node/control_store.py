"""The small consistent store behind membership, election and recovery state.

A few operations and leases are all that gemini_lab asks of a store; anything that offers
`ControlStore` can stand in for etcd. Values are text. Nothing on the training path calls it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

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


class ControlStore(Protocol):
    """What gemini_lab asks of a store. Every call may raise `StoreUnavailableError`."""

    def grant(self, ttl_s: int) -> int:
        """A new lease: its keys vanish when it is not kept alive for `ttl_s`."""

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; `False` when it has already run out."""

    def revoke(self, lease: int) -> None:
        """End a lease and drop its keys."""

    def put(self, key: str, value: str, *, lease: int | None = None) -> None:
        """Set a key."""

    def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        """Set a key if it does not exist; says whether it was set."""

    def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        """Set keys, all or none, while the key `guard` still has the value `held`: fenced."""

    def delete_if(self, key: str, held: str) -> bool:
        """Delete `key` only while it still has the value `held`."""

    def delete(self, key: str) -> None:
        """Delete a key if it exists."""

    def items(self) -> dict[str, str]:
        """All keys of this lab with their values, read at one revision."""

    def names(self) -> set[str]:
        """Return the names of all keys of this lab, whatever their values are."""

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Those of these keys that exist, with their values, read at one revision."""

    def close(self) -> None:
        """Drop the connection."""


def patiently(
    act: Callable[[], Result],
    *,
    patience_s: float = PATIENCE_S,
    tell: Callable[[str], object] = lambda _: None,
) -> Result:
    """Call `act` again and again while the store is too busy to answer, as at a lab's start.

    Args:
        act: What is to be done.
        patience_s: For how long.
        tell: Called once, with what is waited for.

    Raises:
        StoreUnavailableError: It did not answer in all that time, or somebody else wrote there.
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
