"""A lab's part of a store, in which nothing counts but what was written with the lab's token.

A stranger who can write to the store could make nodes run any script otherwise.
So each value bears a seal, which fits this key of this lab alone: a value cannot be changed, moved
to another key, or brought over from another lab, also from one of the same name and token. What
was true of this lab once can be written again; its reader looks at its number or epoch.

Agents and owners take a store that was forged for one that is away: training goes on, and no more
is done. So a stranger who writes to a store may stop a lab, and cannot make it run anything.
"""

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gemini_lab.node.control_store import StoreForgedError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.start_config import LAB_KEY, OVER_KEY

SHOWN_CHARACTERS: Final = 80
SEAL_CHARACTERS: Final = 2 * hashlib.sha256().digest_size


class Sealed:
    """`Values` of a lab, which its token proves.

    The value of `LAB_KEY` tells the lab's identity, and so it is sealed without it. `OVER_KEY` is
    for etcd's keepers, which have no token: it is left out of what is read.

    Args:
        address: Where the store is.
        prefix: Of all the lab's keys.
        token: The lab's secret.
        identity: The lab's, as in its `LabRecord`; it may be set once that was read.
    """

    def __init__(self, address: EtcdAddress, prefix: str, *, token: str, identity: str) -> None:
        self.identity = identity
        self._where, self._prefix = ", ".join(address.endpoints), prefix.rstrip("/") + "/"
        self._key = key_of(token, prefix)
        self._proved_last: dict[str, tuple[str, bytes, str]] = {}  # most are read again unchanged

    def written(self, key: str, value: str) -> str:
        return seal(self._key, self._identity_in(key), key, value) + value

    def read(self, found: Mapping[str, bytes]) -> dict[str, str]:
        return {key: self._proved(key, found[key]) for key in found if key != OVER_KEY}

    def _proved(self, key: str, stored: bytes) -> str:
        """Return the value of a key.

        Raises:
            StoreForgedError: It does not bear the seal of this key.
        """
        identity = self._identity_in(key)
        *last, value = self._proved_last.get(key, ("", b"", ""))
        if last == [identity, stored]:
            return value
        said = stored[:SEAL_CHARACTERS]
        value = stored[SEAL_CHARACTERS:].decode(errors="replace")
        wanted = seal(self._key, identity, key, value)
        if hmac.compare_digest(said, wanted.encode()):
            self._proved_last[key] = identity, stored, value
            return value
        name = repr(self._prefix + key[:SHOWN_CHARACTERS])  # a stranger may have chosen it
        raise StoreForgedError(
            f"{name} in the store at {self._where} was not "
            "written with this lab's token, or not for this key of it; nothing of it is believed. "
            "If the token is right, find out who else writes there, and take the key out "
            f"(etcdctl del {name})"
        )

    def _identity_in(self, key: str) -> str:
        return "" if key == LAB_KEY else self.identity


class SealedStore(EtcdStore):
    """An `EtcdStore` of `Sealed` values."""

    def __init__(
        self, address: EtcdAddress, prefix: str, *, token: str, identity: str = ""
    ) -> None:
        self.sealed = Sealed(address, prefix, token=token, identity=identity)
        super().__init__(address, prefix, values=self.sealed)

    @property
    def identity(self) -> str:
        """The lab's, by which its values are proved."""
        return self.sealed.identity

    @identity.setter
    def identity(self, identity: str) -> None:
        self.sealed.identity = identity


def seal(secret: bytes, identity: str, key: str, value: str) -> str:
    """Return what proves a value of one key of one lab."""
    said = f"{len(identity)} {len(key)} {identity}{key}{value}".encode()
    return hmac.digest(secret, said, "sha256").hex()


@lru_cache(maxsize=16)
def key_of(token: str, prefix: str) -> bytes:
    """Return what seals a lab's values.

    To find a token by a value takes 50 ms a guess, which a random one outlasts.
    """
    # n=2**14, r=8: 16 MiB and some 50 ms, which a process spends once.
    salt = prefix.rstrip("/").encode()
    return hashlib.scrypt(token.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)


def unproved(text: str) -> str:
    """Return what a value of any lab says, for a user to read: nothing proves it."""
    return text[SEAL_CHARACTERS:]
