"""The address of an etcd, and what logs a client in there."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gemini_lab.errors import ConfigError
from gemini_lab.limits import read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCertificates:
    """A certificate by which a client and a member of a lab's own etcd know one another."""

    authority_pem: str  # signs the certificates of both
    pem: str  # the certificate of one of them
    key_pem: str  # its key


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """The address of an etcd and how to log in."""

    endpoints: tuple[str, ...]  # `host:port` of each member
    user: str | None = None  # user name, or `None` without authentication
    password: str | None = field(default=None, repr=False)  # that user's password
    ca_cert: str | None = None  # file with the certificate authority; given, connections use TLS
    cert: str | None = None  # client certificate file, where the server wants one
    key: str | None = None  # client key file
    # What opens an etcd that a lab has started, in the place of these files.
    own: OwnCertificates | None = field(default=None, repr=False)
    is_followed: bool = False  # whether its members may change: any of them says who the others are

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("no etcd endpoint was given; write host:port[,host:port...]")
        for endpoint in self.endpoints:
            host_and_port(endpoint)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> "EtcdAddress":
        """Return the address in `text` (`host:port,...`), with the variables of etcdctl.

        `ETCDCTL_USER` (`name:password`, or with `ETCDCTL_PASSWORD`), `ETCDCTL_CACERT`,
        `ETCDCTL_CERT` and `ETCDCTL_KEY` keep secrets off the command line.

        Raises:
            ConfigError: It is none, no machine has any of its names, or a file cannot be read.
        """
        names = ("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY")
        files = {name: environment.get(name) for name in names}
        for name, file in files.items():
            _require_file(name, file)
        user, _, password = environment.get("ETCDCTL_USER", "").partition(":")
        endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
        _require_known(endpoints)
        return cls(
            endpoints=endpoints,
            user=user or None,
            password=(environment.get("ETCDCTL_PASSWORD") or password or None) if user else None,
            ca_cert=files["ETCDCTL_CACERT"],
            cert=files["ETCDCTL_CERT"],
            key=files["ETCDCTL_KEY"],
        )


def _require_known(endpoints: Sequence[str]) -> None:
    """Refuse names that no machine has; one that is known will do, as others may be replaced.

    Raises:
        ConfigError: The name service answers that there is none of them.
    """
    hosts = list(dict.fromkeys(host_and_port(endpoint)[0] for endpoint in endpoints))
    if hosts and not any(map(_may_be_known, hosts)):
        raise ConfigError(
            f"no machine is called {' or '.join(hosts)}, as the name service says; name the etcd's "
            "as host:port[,host:port...]"
        )


def _may_be_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)}
    except UnicodeError:  # a label that is empty, or too long
        return False
    return True


def _require_file(name: str, file: str | None) -> None:
    """Refuse a certificate that cannot be read: of etcd that would be said to be away.

    Raises:
        ConfigError: It cannot.
    """
    try:
        if file is not None:
            read_bytes(Path(file))
    except OSError as error:
        raise ConfigError(
            f"{name} names {file}, which cannot be read: {error.strerror}; correct it there"
        ) from error


DIRECT: Final = (("grpc.enable_http_proxy", 0),)
"""Options of a connection to etcd: it never goes through a proxy, whatever the variables say."""


def tls_credentials(address: EtcdAddress) -> Any:
    """Return gRPC's credentials for TLS, or `None` if connections are in clear."""
    import grpc  # noqa: PLC0415  (its threads start with its import)

    def read(file: str | None) -> bytes | None:
        return None if file is None else read_bytes(Path(file))

    if (own := address.own) is not None:
        return grpc.ssl_channel_credentials(
            root_certificates=own.authority_pem.encode(),
            private_key=own.key_pem.encode(),
            certificate_chain=own.pem.encode(),
        )
    if (authority := read(address.ca_cert)) is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=authority,
        private_key=read(address.key),
        certificate_chain=read(address.cert),
    )


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return a member's host and port, as etcd's client takes them.

    Raises:
        ConfigError: `endpoint` cannot be read as such.
    """
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ConfigError(f"cannot read {endpoint!r} as an etcd endpoint; write host:port")
    return parts.hostname, port
