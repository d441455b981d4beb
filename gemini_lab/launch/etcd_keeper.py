"""A member of a lab's own etcd, and the keeper that starts it again when it dies or hangs.

Run as `python -m gemini_lab.launch.etcd_keeper PREFIX FD MEMBER`, with the prefix of the lab's
keys, the descriptor that holds the folder, and a `MemberProcess` as JSON. The keeper has etcd as a
child, ends it in the end, and removes its folder. It ends when its standard input closes, which
happens when its starter ends, in whatever way. If it was given a lab before (`Stay`), it ends as
`LabEnd` says, or on SIGTERM from an agent. If the keeper is killed, etcd lives on, and
`node.orphan_etcd` says which process ends it.
"""

import math
import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import psutil

from gemini_lab.job import python_command
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress, OwnCertificates
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.freeze_guard import end_stopped
from gemini_lab.node.membership import NODES
from gemini_lab.node.orphan_etcd import CLIENTS_AT, DATA, LAB
from gemini_lab.node.processes import AGENT, STORE_KEEPER, is_alive, processes_of, reap
from gemini_lab.node.start_config import LAB_KEY, OVER_KEY

ASK_S: Final = 2.0  # for an answer to whether it is well
LOG: Final = "etcd.log"
LOG_BYTES: Final = 16 * 2**20
AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
PEERS_AT: Final = "--listen-peer-urls"
_LAST_WORDS: Final = frozenset({"panic", "fatal"})


class _LogLine(msgspec.Struct, frozen=True):
    """A line of etcd's log."""

    level: str
    msg: str
    error: str = ""


class MemberProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member of an etcd, as its keeper starts it."""

    binary: str  # the program
    folder: str  # for data, log and certificates; its user's alone
    client: str  # the URL for clients
    peer: str  # the URL for other members
    name: str  # its own, in `cluster`
    cluster: str  # `name=peer URL` of each member, separated by commas
    is_first: bool = True  # whether the etcd begins with it, and with those in `cluster`
    # Whether data outlives the machine's power; an only member ends with its lab.
    is_durable: bool = False

    def write(self, certificate: OwnCertificates) -> None:
        """Write the certificate that it shows, and that of the authority which it trusts."""
        folder = Path(self.folder)
        (folder / AUTHORITY).write_text(certificate.authority_pem)
        (folder / CERTIFICATE).write_text(certificate.pem)
        (folder / KEY).touch(mode=0o600)  # before the key is in it
        (folder / KEY).write_text(certificate.key_pem)

    def command(self) -> list[str]:
        """Return the command that starts it."""
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
        """Start it on the data that there are.

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
        """Return its last words if it ended by itself; else an empty text."""
        last = ""
        with suppress(OSError), (Path(self.folder) / LOG).open("rb") as log:
            for line in log:
                with suppress(msgspec.MsgspecError):
                    said = msgspec.json.decode(line, type=_LogLine)
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


# -- one member ------------------------------------------------------------------------------------


KEEPER_LOG: Final = "keeper.log"
"""What a keeper says that fails, in its member's folder."""
LOOK_S: Final = 0.5
HEALTH_S: Final = 3.0
HUNG_S: Final = 30.0  # without an answer for so long, it is started again
AGENTS_LOOK_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0  # between starts of one that ends at once, as one that was replaced


class Stay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order to a keeper to live as long as a lab."""

    address: EtcdAddress  # the whole etcd's
    has_begun: bool  # whether the lab's key stands already; else it is to come


def start_keeper(member: MemberProcess, prefix: str, held: int) -> subprocess.Popen[bytes]:
    """Start a keeper of this member, in a session of its own; its input is a pipe.

    The descriptor `held`, which holds the folder, is the keeper's from here on.
    """
    folder = Path(member.folder)
    try:
        (folder / LAB).write_text(prefix, encoding="utf-8")
        with (folder / KEEPER_LOG).open("wb") as log:  # a launcher's stderr may be waited for
            return subprocess.Popen(
                python_command(STORE_KEEPER, prefix, held, msgspec.json.encode(member).decode()),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                pass_fds=[held],
            )
    finally:
        os.close(held)


def leave_keeper(keeper: "subprocess.Popen[bytes]", stay: Stay) -> None:
    """Leave a keeper running after this process, for as long as its lab lasts."""
    assert keeper.stdin is not None
    keeper.stdin.write(msgspec.json.encode(stay))
    keeper.stdin.close()
    reap(keeper)  # this process may outlive the lab: a notebook does


def keep(
    member: MemberProcess, prefix: str, hung_s: float = HUNG_S, *, held: Sequence[int] = ()
) -> None:
    """Run etcd until standard input closes, or, if a lab was named there, until that is over."""
    told: list[int] = []  # not an Event: a second signal would take its lock twice, and hang
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    server = _Server(member, hung_s, held)
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
    end_stopped(prefix)


class _Server:
    """A member that runs, or is to run again."""

    def __init__(self, member: MemberProcess, hung_s: float, held: Sequence[int]) -> None:
        self._member, self._hung_s, self._held = member, hung_s, held
        self._pause_s = 0.0
        self._etcd = member.start(held)
        self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def look(self) -> None:
        """Start it again if it has ended, or does not answer for too long."""
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
            with suppress(OSError):  # it has no program, disk or memory now, and is tried again
                self._etcd = self._member.start(self._held)
            self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def end(self) -> None:
        self._etcd.kill()
        self._etcd.wait()


class _Lab:
    """A lab, as seen by its agents on this machine and by its etcd."""

    def __init__(self, stay: Stay, prefix: str) -> None:
        self._prefix = prefix
        self._store = EtcdStore(stay.address, prefix)  # each failed call tries the next member
        self._end = LabEnd(time.monotonic(), has_begun=stay.has_begun)
        self._agents: list[psutil.Process] = []
        self._looked_s = -AGENTS_LOOK_S

    def lasts(self, *, is_over: bool) -> bool:
        """Return whether the keeper is to stay."""
        are_here = self._are_agents_here()
        names = None if are_here or is_over else self._names()
        now_s = time.monotonic()
        return not self._end.has_come(now_s, are_agents_here=are_here, is_told=is_over, names=names)

    def _names(self) -> set[str] | None:
        try:
            return self._store.names()
        except StoreUnavailableError:
            return None

    def _are_agents_here(self) -> bool:
        """Return whether one of the lab's agents runs on this machine."""
        self._agents = [agent for agent in self._agents if is_alive(agent)]
        if not self._agents and time.monotonic() >= self._looked_s + AGENTS_LOOK_S:
            self._looked_s = time.monotonic()
            self._agents = [one for one in processes_of(AGENT, self._prefix) if is_alive(one)]
        return bool(self._agents)


def _read(fd: int, *, within_s: float) -> bytes | None:
    """Read a pipe for up to `within_s`; return `b""` at its end, `None` if nothing came."""
    readable, _, _ = select.select([fd], [], [], within_s)
    if not readable:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


DEAF_S: Final = 30.0
FORSAKEN_S: Final = 3600.0  # no process goes on with a detached run whose nodes are all lost
BEGIN_S: Final = 120.0  # for a lab to write its key
LEAVE_S: Final = (
    3.0  # for the others, which look as often, to see the end too, and to take keys out
)
AGENTS_END_S: Final = 30.0  # for agents here to end, when one of them says that the lab is over


class LabEnd:
    """A keeper's decision when to end, by what it hears of its lab a few times a second.

    Args:
        has_begun: Whether the lab's key stands already; else it is to come.
    """

    def __init__(self, now_s: float, *, has_begun: bool) -> None:
        self._has_begun = has_begun
        self._seen_s = self._nodes_s = now_s
        self._over_s = math.inf

    def has_come(
        self,
        now_s: float,  # the time
        *,
        are_agents_here: bool,  # whether an agent of the lab runs on this machine
        is_told: bool = False,  # whether an agent has said that the lab is over
        # What the lab's part of the store has; `None`: it was not asked, or is away.
        names: AbstractSet[str] | None = None,
    ) -> bool:
        """Return whether the keeper is to end."""
        if is_told or (not are_agents_here and names is not None and self._is_over(now_s, names)):
            self._over_s = min(self._over_s, now_s)
        if now_s >= self._over_s:
            return now_s >= self._over_s + (AGENTS_END_S if are_agents_here else LEAVE_S)
        if are_agents_here:
            self._seen_s = self._nodes_s = now_s
            self._has_begun = True
        return now_s >= self._seen_s + (DEAF_S if self._has_begun else BEGIN_S)

    def _is_over(self, now_s: float, names: AbstractSet[str]) -> bool:
        """Return whether the store says so; else remember what it says."""
        if any(key.startswith(NODES) for key in names):
            self._nodes_s = now_s
        if LAB_KEY in names and now_s < self._nodes_s + FORSAKEN_S:
            self._seen_s, self._has_begun = now_s, True
            return OVER_KEY in names
        return self._has_begun or OVER_KEY in names


if __name__ == "__main__":
    keep(
        msgspec.json.decode(sys.argv[3], type=MemberProcess),
        prefix=sys.argv[1],
        held=[int(sys.argv[2])],
    )
