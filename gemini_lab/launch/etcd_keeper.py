"""Keeps one member of an etcd running: one that dies or hangs is started again on its data.

Run as `python -m gemini_lab.launch.etcd_keeper PREFIX MEMBER`, with the prefix of its lab's keys
and a `Member` as JSON, it keeps etcd as its child, ends it in the end, and removes its folder. The
end comes when standard input closes: that happens when whoever started it ends, however that is.
If it was told of a lab before (`Stay`), it comes as `etcd_end` says; an agent tells by SIGTERM.
"""

import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import psutil

from gemini_lab.launch.certificate import Certificate
from gemini_lab.launch.etcd_end import LabEnd
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError
from gemini_lab.node.processes import AGENT, STORE_KEEPER, is_alive, processes_of

LOOK_S: Final = 0.5
HEALTH_S: Final = 3.0
ASK_S: Final = 2.0  # for an answer to whether it is well
HUNG_S: Final = 30.0  # without one for so long, it is started again
AGENTS_LOOK_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0  # between starts of one that ends at once, as one that was replaced
LOG: Final = "etcd.log"
LOG_BYTES: Final = 16 * 2**20
AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"


class Stay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a keeper is told: live on as long as a lab.

    Attributes:
        address: The whole etcd's.
        has_begun: Whether the lab's key stands already; else it is to come.
    """

    address: EtcdAddress
    has_begun: bool


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

    def write(self, certificate: Certificate) -> None:
        """Have it prove itself with this certificate."""
        folder = Path(self.folder)
        (folder / AUTHORITY).write_bytes(certificate.authority_pem)
        (folder / CERTIFICATE).write_bytes(certificate.pem)
        (folder / KEY).write_bytes(certificate.key_pem)

    def command(self) -> list[str]:
        """What starts it."""
        known = {
            "--name": self.name,
            "--data-dir": f"{self.folder}/data",
            "--listen-client-urls": self.client,
            "--advertise-client-urls": self.client,
            "--listen-peer-urls": self.peer,
            "--initial-advertise-peer-urls": self.peer,
            "--initial-cluster": self.cluster,
            "--initial-cluster-state": "new" if self.is_first else "existing",
            "--auto-compaction-retention": "5m",
            "--bcrypt-cost": "4",  # the password is random: slow hashing would only cost time
        }
        if self.client.startswith("https:"):
            known |= {
                "--cert-file": f"{self.folder}/{CERTIFICATE}",
                "--key-file": f"{self.folder}/{KEY}",
            }
        if self.peer.startswith("https:"):
            known |= {
                "--peer-cert-file": f"{self.folder}/{CERTIFICATE}",
                "--peer-key-file": f"{self.folder}/{KEY}",
                "--peer-trusted-ca-file": f"{self.folder}/{AUTHORITY}",
            }
        words = [word for pair in known.items() for word in pair]
        words += ["--peer-client-cert-auth"] if self.peer.startswith("https:") else []
        return [self.binary, *words, *([] if self.is_durable else ["--unsafe-no-fsync"])]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it on whatever data there is."""
        with (Path(self.folder) / LOG).open("ab") as log:
            return subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def bound_log(self) -> None:
        """Keep the newest of what it has said: `etcd.log` and, before that, `etcd.log.1`."""
        log = Path(self.folder) / LOG
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES:
                with suppress(OSError):  # a full disk has no room for both
                    shutil.copyfile(log, log.with_name(f"{LOG}.1"))
                os.truncate(log, 0)  # etcd appends, and goes on at its beginning

    def answers(self) -> bool:
        """Whether it says how it is, be that well or ill."""
        return answers(self.client, f"{self.folder}/{AUTHORITY}")


def start_keeper(member: Member, prefix: str) -> subprocess.Popen[bytes]:
    """A keeper of this member, in a session of its own; its input is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", STORE_KEEPER, prefix, msgspec.json.encode(member)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a launcher's, which may be waited for until all have closed it
        start_new_session=True,
    )


def keep(member: Member, prefix: str, hung_s: float = HUNG_S) -> None:
    """Run etcd until standard input closes, or until the lab is over of which that told."""
    told: list[int] = []  # an event's lock would be taken twice where two signals come at once
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    server = _Server(member, hung_s)
    said, is_open, lab = b"", True, None
    while is_open or (lab is not None and lab.lasts(is_over=bool(told))):
        server.look()
        if is_open:
            more = _read(0, within_s=LOOK_S)
            said, is_open = said + (more or b""), more != b""
            if said and not is_open:
                lab = _Lab(msgspec.json.decode(said, type=Stay), prefix)
        else:
            time.sleep(LOOK_S)
    server.end()
    shutil.rmtree(member.folder, ignore_errors=True)


class _Server:
    """A member that runs, or is to run again."""

    def __init__(self, member: Member, hung_s: float) -> None:
        self._member, self._hung_s = member, hung_s
        self._pause_s = 0.0
        self._etcd = member.start()
        self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def look(self) -> None:
        """Start it again if it is over, or says nothing for too long."""
        now = time.monotonic()
        if now - self._asked_s > HEALTH_S:
            self._asked_s = now
            self._member.bound_log()
            if self._member.answers():
                self._heard_s, self._pause_s = time.monotonic(), 0.0
        if now - self._heard_s > self._hung_s:
            self._etcd.kill()
        if self._etcd.poll() is not None and now - self._began_s >= self._pause_s:
            self._pause_s = min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
            self._etcd = self._member.start()
            self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def end(self) -> None:
        self._etcd.kill()
        self._etcd.wait()


class _Lab:
    """A lab, as its agents here and its etcd tell of it."""

    def __init__(self, stay: Stay, prefix: str) -> None:
        self._prefix = prefix
        self._store = EtcdStore(stay.address, prefix)  # each failed call tries the next member
        self._end = LabEnd(time.monotonic(), has_begun=stay.has_begun)
        self._agents: list[psutil.Process] = []
        self._looked_s = -AGENTS_LOOK_S

    def lasts(self, *, is_over: bool) -> bool:
        """Whether the keeper is to stay.

        Args:
            is_over: Whether an agent has said that the lab is over.
        """
        are_here = self._are_agents_here()
        items = None if are_here or is_over else self._items()
        now_s = time.monotonic()
        return not self._end.has_come(now_s, are_agents_here=are_here, is_told=is_over, items=items)

    def _items(self) -> dict[str, str] | None:
        try:
            return self._store.items()
        except StoreUnavailableError:
            return None

    def _are_agents_here(self) -> bool:
        """Whether one of the lab's agents runs on this machine."""
        self._agents = [agent for agent in self._agents if is_alive(agent)]
        if not self._agents and time.monotonic() >= self._looked_s + AGENTS_LOOK_S:
            self._looked_s = time.monotonic()
            self._agents = [one for one in processes_of(AGENT, self._prefix) if is_alive(one)]
        return bool(self._agents)


def answers(url: str, authority: str) -> bool:
    """Whether the etcd at `url` says how it is; by TLS, if it has a certificate of `authority`."""
    at = urlsplit(url)
    host = str(at.hostname)
    asked = HTTPConnection(host, at.port, timeout=ASK_S)
    try:
        if at.scheme == "https":
            trust = ssl.create_default_context(cafile=authority)
            asked = HTTPSConnection(host, at.port, timeout=ASK_S, context=trust)
        asked.request("GET", "/health")
        asked.getresponse()
    except (OSError, HTTPException):
        return False
    else:
        return True
    finally:
        asked.close()


def _read(fd: int, *, within_s: float) -> bytes | None:
    """What comes through a pipe within a time; `b""`: its other end is closed, `None`: nothing."""
    readable, _, _ = select.select([fd], [], [], within_s)
    if not readable:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


if __name__ == "__main__":
    keep(msgspec.json.decode(sys.argv[2], type=Member), prefix=sys.argv[1])
