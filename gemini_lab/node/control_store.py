"""The small consistent store behind membership, election and recovery state.

A few operations and leases are all that gemini_lab asks of a store; anything that offers
`ControlStore` can stand in for etcd. Values are text. Nothing on the training path calls it.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.node.own_stores import lack_of_room

Result = TypeVar("Result")


class StoreUnavailableError(GeminiError):
    """The store did not answer in time; the same call may succeed later."""

    may_pass = True


class StoreFullError(StoreUnavailableError):
    """The store answers, and takes nothing more."""


PATIENCE_S: Final = 15.0
QUOTA_REACHED: Final = "database space exceeded"
"""The end of what etcd answers then to whoever would write."""


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
        StoreUnavailableError: It did not answer in all that time.
    """
    give_up_s = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return act()
        except StoreUnavailableError:
            if time.monotonic() > give_up_s:
                raise
            if not is_told:
                is_told = True
                tell(f"waiting up to {patience_s:.0f} s for the store to answer")
            time.sleep(0.1)


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

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Those of these keys that exist, with their values, read at one revision."""

    def close(self) -> None:
        """Drop the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """Where etcd is and how to log in.

    Attributes:
        endpoints: `host:port` of each member.
        user: User name, or `None` without authentication.
        password: That user's password.
        ca_cert: File with the certificate authority; given, connections use TLS.
        ca_pem: The certificate authority itself, of an etcd that a lab has started.
        cert: Client certificate file, where the server wants one.
        key: Client key file.
        is_followed: Whether its members may change: any of them says who the others are.
    """

    endpoints: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_cert: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    cert: str | None = None
    key: str | None = None
    is_followed: bool = False

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("no etcd endpoint was given; write host:port[,host:port...]")
        for endpoint in self.endpoints:
            _host_and_port(endpoint)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> "EtcdAddress":
        """The address in `text` (`host:port,...`), with the variables that etcdctl reads too.

        `ETCDCTL_USER` (`name:password`, or with `ETCDCTL_PASSWORD`), `ETCDCTL_CACERT`,
        `ETCDCTL_CERT` and `ETCDCTL_KEY` keep secrets off the command line.
        """
        names = ("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY")
        files = {name: environment.get(name) for name in names}
        for name, file in files.items():
            _require_file(name, file)
        user, _, password = environment.get("ETCDCTL_USER", "").partition(":")
        return cls(
            endpoints=tuple(part.strip() for part in text.split(",") if part.strip()),
            user=user or None,
            password=(environment.get("ETCDCTL_PASSWORD") or password or None) if user else None,
            ca_cert=files["ETCDCTL_CACERT"],
            cert=files["ETCDCTL_CERT"],
            key=files["ETCDCTL_KEY"],
        )


def _require_file(name: str, file: str | None) -> None:
    """Refuse a certificate that cannot be read: of etcd that would be said to be away.

    Raises:
        ConfigError: It cannot.
    """
    try:
        if file is not None:
            Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{name} names {file}, which cannot be read: {error.strerror}; correct it there"
        ) from error


def tls_credentials(address: EtcdAddress) -> Any:
    """What gRPC wants for TLS, or `None` where connections are in clear."""
    import grpc  # noqa: PLC0415  (its threads start with its import)

    def read(file: str | None) -> bytes | None:
        return None if file is None else Path(file).read_bytes()

    authority = address.ca_pem.encode() if address.ca_pem is not None else read(address.ca_cert)
    if authority is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=authority,
        private_key=read(address.key),
        certificate_chain=read(address.cert),
    )


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
        f"{said} ({reason}); check that it runs, that its disk has room, and that this machine "
        "reaches it"
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


def _host_and_port(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ConfigError(f"cannot read {endpoint!r} as an etcd endpoint; write host:port")
    return parts.hostname, port


class Endpoints:
    """The members of an etcd, in turn."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known: set[str] = set()
        self.learn(known)

    def next(self) -> str:
        """The one to try now."""
        return next(self._turn)

    def learn(self, told: Sequence[str]) -> None:
        """These are the members now, as one of them says."""
        if told and set(told) != self._known:
            self._known, self._turn = set(told), itertools.cycle(tuple(told))


def client_endpoints(urls: Iterable[Sequence[str]]) -> list[str]:
    """`host:port` of each member that has started, from its URLs for clients."""
    return [urlsplit(one[0]).netloc for one in urls if one]


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
        self._call(lambda etcd: etcd.put(self.prefix + key, value, lease=lease))

    def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        full = self.prefix + key
        return bool(self._call(lambda etcd: etcd.put_if_not_exists(full, value, lease=lease)))

    def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        full = {self.prefix + key: value for key, value in values.items()}
        return self._guarded(
            self.prefix + guard,
            held,
            lambda etcd: [etcd.transactions.put(key, value) for key, value in full.items()],
        )

    def delete_if(self, key: str, held: str) -> bool:
        full = self.prefix + key
        return self._guarded(full, held, lambda etcd: [etcd.transactions.delete(full)])

    def delete(self, key: str) -> None:
        self._call(lambda etcd: etcd.delete(self.prefix + key))

    def items(self) -> dict[str, str]:
        found = self._call(lambda etcd: list(etcd.get_prefix(self.prefix)))
        return self._by_key(found)

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        def transaction(etcd: Any) -> list[Any]:
            wanted = [etcd.transactions.get(self.prefix + key) for key in keys]
            _, found = etcd.transaction(compare=[], success=wanted, failure=[])
            return [pair for pairs in found for pair in pairs]

        return self._by_key(self._call(transaction))

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _guarded(self, key: str, held: str, act: Callable[[Any], Any]) -> bool:
        def transaction(etcd: Any) -> bool:
            compare = [etcd.transactions.value(key) == held]
            done, _ = etcd.transaction(compare=compare, success=act(etcd), failure=[])
            return bool(done)

        return self._call(transaction)

    def _by_key(self, found: Sequence[tuple[bytes, Any]]) -> dict[str, str]:
        return {
            meta.key.decode().removeprefix(self.prefix): value.decode() for value, meta in found
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

        host, port = _host_and_port(endpoint)
        credentials = tls_credentials(self.address)
        member = etcd3.Endpoint(host, port, secure=credentials is not None, creds=credentials)
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
