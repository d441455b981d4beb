"""One member of an etcd: what starts it, what it says, and whether it answers."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gemini_lab.node.etcd_address import OwnCertificates
from gemini_lab.node.orphan_etcd import CLIENTS_AT, DATA

ASK_S: Final = 2.0  # for an answer to whether it is well
LOG: Final = "etcd.log"
LOG_BYTES: Final = 16 * 2**20
AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
PEERS_AT: Final = "--listen-peer-urls"
_LAST_WORDS: Final = frozenset({"panic", "fatal"})


class _Said(msgspec.Struct, frozen=True):
    """A line of etcd's log."""

    level: str
    msg: str
    error: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member of an etcd, as its keeper starts it.

    Attributes:
        binary: The program.
        folder: For data, log and certificates; its user's alone.
        client: The URL for clients.
        peer: The URL for other members.
        name: Its own, in `cluster`.
        cluster: `name=peer URL` of each member, separated by commas.
        is_first: Whether the etcd begins with it, and with those in `cluster`.
        is_durable: Whether data outlives the machine's power; an only member ends with its lab.
    """

    binary: str
    folder: str
    client: str
    peer: str
    name: str
    cluster: str
    is_first: bool = True
    is_durable: bool = False

    def write(self, certificate: OwnCertificates) -> None:
        """Write the certificate that it shows, and that of the authority which it trusts."""
        folder = Path(self.folder)
        (folder / AUTHORITY).write_text(certificate.authority_pem)
        (folder / CERTIFICATE).write_text(certificate.pem)
        (folder / KEY).touch(mode=0o600)  # before the key is in it
        (folder / KEY).write_text(certificate.key_pem)

    def command(self) -> list[str]:
        """What starts it."""
        known = {
            "--name": self.name,
            "--data-dir": f"{self.folder}/{DATA}",
            CLIENTS_AT: self.client,
            "--advertise-client-urls": self.client,
            PEERS_AT: self.peer,
            "--initial-advertise-peer-urls": self.peer,
            "--initial-cluster": self.cluster,
            "--initial-cluster-state": "new" if self.is_first else "existing",
            "--auto-compaction-retention": "5m",
        }
        # An entry that a stranger gives to the port for peers is applied past all passwords, and
        # what a password is to guard is open before it is set: so both ports want a certificate.
        for door in ("--", "--peer-"):
            known |= {
                f"{door}cert-file": f"{self.folder}/{CERTIFICATE}",
                f"{door}key-file": f"{self.folder}/{KEY}",
                f"{door}trusted-ca-file": f"{self.folder}/{AUTHORITY}",
            }
        words = [word for pair in known.items() for word in pair]
        words += ["--client-cert-auth", "--peer-client-cert-auth"]
        return [self.binary, *words, *([] if self.is_durable else ["--unsafe-no-fsync"])]

    def start(self, held: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        """Start it on whatever data there is.

        Args:
            held: The descriptor that holds the folder: it is in use as long as it runs.
        """
        with (Path(self.folder) / LOG).open("ab") as log:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: text for name, text in os.environ.items() if not _leads_astray(name)},
                pass_fds=held,
            )

    def bound_log(self) -> None:
        """Keep the newest of what it has said: `etcd.log` and, before that, `etcd.log.1`."""
        log = Path(self.folder) / LOG
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES:
                with suppress(OSError):  # a full disk has no room for both
                    shutil.copyfile(log, log.with_name(f"{LOG}.1"))
                os.truncate(log, 0)  # etcd appends, and goes on at its beginning

    def trouble(self) -> str:
        """What it said last as it ended by itself; empty if it did not."""
        last = ""
        with suppress(OSError), (Path(self.folder) / LOG).open("rb") as log:
            for line in log:
                with suppress(msgspec.MsgspecError):
                    said = msgspec.json.decode(line, type=_Said)
                    last = f"{said.msg}: {said.error}" if said.level in _LAST_WORDS else last
        return last

    def answers(self) -> bool:
        """Return whether it says how it is, be that well or ill."""
        at, folder = urlsplit(self.client), Path(self.folder)
        try:
            trust = ssl.create_default_context(cafile=folder / AUTHORITY)
            trust.load_cert_chain(folder / CERTIFICATE, folder / KEY)
            asked = HTTPSConnection(str(at.hostname), at.port, timeout=ASK_S, context=trust)
            with closing(asked):
                asked.request("GET", "/health")
                asked.getresponse()
        except (OSError, HTTPException):
            return False
        return True


def _leads_astray(variable: str) -> bool:
    """Return whether etcd would heed a user's variable: as a proxy, or as an option of its own."""
    is_proxy = variable.lower() in {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy"}
    return is_proxy or (variable.startswith("ETCD_") and variable != "ETCD_UNSUPPORTED_ARCH")
