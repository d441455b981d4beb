"""A lab's key in the store, which stands as long as the lab: its agents end without it."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError
from gemini_lab.launch.join import say
from gemini_lab.node.control_store import StoreForgedError, StoreUnavailableError, patiently
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import LAB_KEY, LabRecord

LEASE_S: Final = 15


class Announcement:
    """The lab's key."""

    def __init__(self, store: SealedStore, record: LabRecord) -> None:
        self._store = store
        self._record = msgspec.json.encode(record).decode()
        self._lease: int | None = None

    def make(self) -> None:
        """Tell agents that their lab lives.

        Raises:
            ConfigError: Another lab of this name is under way.
            StoreUnavailableError: The store does not answer.
        """
        patiently(lambda: clear_left(self._store), tell=say)
        self._lease = patiently(self._announce, tell=say)

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 5)
            with suppress(StoreUnavailableError):
                assert self._lease is not None
                if not await asyncio.to_thread(self._store.keep_alive, self._lease):
                    self._lease = await asyncio.to_thread(self._announce)

    def withdraw(self, *, spare: Collection[str]) -> None:
        """Take it, and all of the lab's keys but these, out of the store.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        if self._lease is not None:
            self._store.revoke(self._lease)
        remove_keys(self._store, spare=spare)

    def _announce(self) -> int:
        """Return the lease for as long as which the key is there."""
        lease = self._store.grant(LEASE_S)
        if self._store.create(LAB_KEY, self._record, lease=lease):
            return lease
        if is_own(self._store, self._record):  # made before; the answer was lost
            self._store.put(LAB_KEY, self._record, lease=lease)
            return lease
        self._store.revoke(lease)
        raise ConfigError(
            f"a lab is under way at {self._store.prefix} in the store; give this one another "
            f"name, or wait {LEASE_S} s if that one has just been killed"
        )


def clear_left(store: SealedStore) -> None:
    """Take out what a lab of this name that is gone has left behind: it is not this lab's."""
    if LAB_KEY not in store.names():
        remove_keys(store)


def remove_keys(store: SealedStore, *, spare: Collection[str] = ()) -> None:
    """Delete a lab's keys but these: without them agents that are up end."""
    for key in store.names() - {*spare}:
        store.delete(key)


def is_own(store: SealedStore, record: str) -> bool:
    """Return whether the lab's key has this record; another lab's may have another token."""
    try:
        return store.get([LAB_KEY]).get(LAB_KEY) == record
    except StoreForgedError:
        return False
