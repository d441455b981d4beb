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


class Tell(Protocol):
    """Receives what a watch reports."""

    def __call__(self, *, has_ended: bool) -> None:
        """Note a change, or the watch's end, after which it reports nothing more."""


class ControlStore(Protocol):
    """What gemini_lab asks of a store. Every call may raise `StoreUnavailableError`."""

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease: its keys vanish if it is not kept alive for `ttl_s`."""

    async def keep_alive(self, lease: int) -> bool:
        """Renew a lease; return `False` if it has already run out."""

    async def revoke(self, lease: int) -> None:
        """End a lease and drop its keys."""

    async def put(self, key: str, value: str, *, lease: int | None = None) -> None:
        """Set a key."""

    async def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        """Set a key if it does not exist; return whether it was set."""

    async def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        """Set keys, all or none, while the key `guard` still has the value `held`: fenced."""

    async def delete_if(self, key: str, held: str) -> bool:
        """Delete `key` only while it still has the value `held`."""

    async def delete(self, key: str) -> None:
        """Delete a key if it exists."""

    async def items(self) -> dict[str, str]:
        """Return all keys of this lab with their values, read at one revision."""

    async def names(self) -> set[str]:
        """Return the names of all keys of this lab, whatever their values are."""

    async def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Return those of these keys that exist, with their values, read at one revision."""

    async def watch(self, keys: Sequence[str] | None, tell: Tell) -> None:
        """Call `tell` whenever one of these keys changes (`None`: any key).

        It replaces the watch before. It ends with the connection, and reports its end; a change
        may be reported more than once.
        """

    async def close(self) -> None:
        """Drop the connection, and with it the watch."""


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
