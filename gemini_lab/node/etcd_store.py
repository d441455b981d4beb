"""The store on etcd: one connection, dropped with whatever fails on it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from gemini_lab.node.control_store import StoreFullError, StoreUnavailableError
from gemini_lab.node.etcd_address import (
    DIRECT,
    Endpoints,
    EtcdAddress,
    client_endpoints,
    host_and_port,
    tls_credentials,
)
from gemini_lab.node.orphan_etcd import lack_of_room

Result = TypeVar("Result")
QUOTA_REACHED: Final = "database space exceeded"
"""The end of what etcd answers then to whoever would write."""


class EtcdStore:
    """`ControlStore` on etcd v3; every key lies under `prefix`.

    A failed call drops the connection, and the next one tries the next endpoint: a client that
    waits in gRPC's back-off would miss its lease.
    """

    def __init__(self, address: EtcdAddress, prefix: str, *, timeout_s: float = 1.0) -> None:
        self.address = address
        self.prefix = prefix.rstrip("/") + "/"
        self.timeout_s = timeout_s
        self._endpoints = Endpoints(address.endpoints)
        self._client: Any = None
        self._lock = threading.Lock()

    def grant(self, ttl_s: int) -> int:
        return int(self._call(lambda etcd: etcd.lease(ttl_s).id))

    def keep_alive(self, lease: int) -> bool:
        answers = self._call(lambda etcd: list(etcd.refresh_lease(lease)))
        return bool(answers) and answers[0].TTL > 0

    def revoke(self, lease: int) -> None:
        self._call(lambda etcd: etcd.revoke_lease(lease))

    def put(self, key: str, value: str, *, lease: int | None = None) -> None:
        full, text = self.prefix + key, self._written(key, value)
        self._call(lambda etcd: etcd.put(full, text, lease=lease))

    def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        full, text = self.prefix + key, self._written(key, value)
        return bool(self._call(lambda etcd: etcd.put_if_not_exists(full, text, lease=lease)))

    def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        full = {self.prefix + key: self._written(key, value) for key, value in values.items()}
        return self._guarded(
            guard,
            held,
            lambda etcd: [etcd.transactions.put(key, text) for key, text in full.items()],
        )

    def delete_if(self, key: str, held: str) -> bool:
        full = self.prefix + key
        return self._guarded(key, held, lambda etcd: [etcd.transactions.delete(full)])

    def delete(self, key: str) -> None:
        self._call(lambda etcd: etcd.delete(self.prefix + key))

    def items(self) -> dict[str, str]:
        found = self._call(lambda etcd: list(etcd.get_prefix(self.prefix)))
        return self._read(self._by_key(found))

    def names(self) -> set[str]:
        found = self._call(lambda etcd: list(etcd.get_prefix(self.prefix, keys_only=True)))
        return set(self._by_key(found))

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        def transaction(etcd: Any) -> list[Any]:
            wanted = [etcd.transactions.get(self.prefix + key) for key in keys]
            _, found = etcd.transaction(compare=[], success=wanted, failure=[])
            return [pair for pairs in found for pair in pairs]

        return self._read(self._by_key(self._call(transaction)))

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _guarded(self, key: str, held: str, act: Callable[[Any], Any]) -> bool:
        full, text = self.prefix + key, self._written(key, held)

        def transaction(etcd: Any) -> bool:
            compare = [etcd.transactions.value(full) == text]
            done, _ = etcd.transaction(compare=compare, success=act(etcd), failure=[])
            return bool(done)

        return self._call(transaction)

    def _written(self, key: str, value: str) -> str:  # noqa: ARG002 - who seals values needs it
        """Return what stands in etcd for a value of this key."""
        return value

    def _read(self, found: Mapping[str, bytes]) -> dict[str, str]:
        """Return the values for which these stand in etcd; whoever may write there wrote them."""
        return {key: value.decode(errors="replace") for key, value in found.items()}

    def _by_key(self, found: Sequence[tuple[bytes, Any]]) -> dict[str, bytes]:
        return {
            meta.key.decode(errors="replace").removeprefix(self.prefix): value
            for value, meta in found
        }

    def _call(self, act: Callable[[Any], Result]) -> Result:
        with self._lock:
            try:
                if self._client is None:
                    self._client = self._connect(self._endpoints.next())
                return act(self._client)
            except Exception as error:
                self._drop()
                raise no_answer(self.address, self.timeout_s, error) from error

    def _connect(self, endpoint: str) -> Any:
        import etcd3  # noqa: PLC0415  (gRPC's threads start with its import)

        host, port = host_and_port(endpoint)
        credentials = tls_credentials(self.address)
        secure = credentials is not None
        member = etcd3.Endpoint(host, port, secure=secure, creds=credentials, opts=DIRECT)
        client = etcd3.MultiEndpointEtcd3Client(
            endpoints=[member],
            timeout=self.timeout_s,
            user=self.address.user,
            password=self.address.password,
        )
        # The token goes along as metadata too. gRPC refuses the other form without TLS, and with it
        # a channel's end has waited for ever for calls to a member that was killed.
        client.call_credentials = None
        if self.address.is_followed:
            self._endpoints.learn(client_endpoints(one.client_urls for one in client.members))
        return client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def no_answer(
    address: EtcdAddress, timeout_s: float, error: BaseException
) -> StoreUnavailableError:
    """What is said of an etcd that did not answer, or that takes nothing more."""
    where, reason = ", ".join(address.endpoints), why(error)
    if reason == QUOTA_REACHED:
        return StoreFullError(
            f"etcd at {where} takes nothing more: its database has reached its quota and raised "
            "the alarm NOSPACE; compact and defragment it (etcdctl compact, etcdctl defrag), or "
            "raise --quota-backend-bytes, and then lift it with `etcdctl alarm disarm`"
        )
    said = f"etcd at {where} did not answer within {timeout_s:g} s"
    if lack := lack_of_room(address.endpoints):
        return StoreUnavailableError(f"{said}: {lack}; free space there, and it starts again")
    return StoreUnavailableError(
        f"{said} ({reason}); `etcdctl --endpoints={','.join(address.endpoints)} endpoint health` "
        "asks it by hand"
    )


def why(error: BaseException) -> str:
    """In a few words, why etcd did not do what it was asked.

    gRPC's own errors print a page, of which the end of one line tells; etcd's client raises others
    in their place that tell nothing.
    """
    for one in (error, error.__context__):
        details = getattr(one, "details", None)
        if callable(details) and (text := str(details() or "").strip()):
            return text.splitlines()[0].rpartition(": ")[2].rstrip("]")
    told = str(error).strip()
    return told.splitlines()[0] if told else type(error).__name__
