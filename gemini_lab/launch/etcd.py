"""An embedded etcd of one member, for labs that name no etcd of their own; and what any needs."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.display import last_lines
from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd_keeper import (
    KEEPER_LOG,
    LOG,
    MemberProcess,
    Stay,
    leave_keeper,
    start_keeper,
)
from gemini_lab.launch.mpi import find_program
from gemini_lab.limits import read_end
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress, OwnCertificates
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.locked_tempdir import hold
from gemini_lab.node.orphan_etcd import FOLDER, SEGMENT_BYTES, end_left_stores, end_store
from gemini_lab.node.processes import reap
from gemini_lab.units import format_bytes

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 20.0
LOOK_S: Final = 0.05
END_S: Final = 10.0  # for all of it to be gone, at the lab's end
DATA_BYTES: Final = 2 * SEGMENT_BYTES
"""What an etcd takes on disk at first: two files of its log, and what is kept."""


def find_etcd() -> str:
    """Return the `etcd` beside this Python, else the one on the PATH.

    Raises:
        MissingError: There is none.
    """
    return find_program(
        "etcd",
        "install one with `pip install 'gemini-lab[embedded]'`, or name a running one with "
        "--etcd host:port",
    )


@contextlib.contextmanager
def held_port(host: str) -> Iterator[int]:
    """Give a free port of `host`; the system gives it to no other program in the block.

    A program takes a while until it listens; on Linux it may do so beside the holder of its port.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        port = int(held.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        yield port


def free_port(host: str) -> int:
    """Return a port of `host` that is free now."""
    with held_port(host) as port:
        return port


class Authority(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The authority of a lab's etcd; the holder of its key can be a member or a client.

    Its certificates do not run out, as a run may last for years: their keys end with the lab.
    """

    pem: str  # its certificate: what members and clients trust
    key_pem: str  # its key

    @classmethod
    def make(cls) -> "Authority":
        """Return a new one (ECDSA, P-256)."""
        import trustme  # noqa: PLC0415  (only the starter of an etcd needs it)

        made = trustme.CA(organization_name="gemini_lab", path_length=0)
        return cls(
            pem=made.cert_pem.bytes().decode(), key_pem=made.private_key_pem.bytes().decode()
        )

    def certify(self, name: str = "client") -> OwnCertificates:
        """Return a new certificate of a client, or of a server at the IP address `name`."""
        import trustme  # noqa: PLC0415

        authority = trustme.CA.from_pem(self.pem.encode(), self.key_pem.encode())
        made = authority.issue_cert(name, organization_name="gemini_lab etcd")
        return OwnCertificates(
            authority_pem=self.pem,
            pem=made.cert_chain_pems[0].bytes().decode(),
            key_pem=made.private_key_pem.bytes().decode(),
        )


def start_member(
    authority: Authority,  # signs its certificate
    prefix: str,  # of its lab's keys
    *,
    endpoint: str,  # `host:port` for clients
    peer: str,  # the URL for other members
    name: str,  # its own, in `cluster`
    cluster: str,  # `name=peer URL` of each member, separated by commas
    is_first: bool = True,  # whether the etcd begins with it
    is_durable: bool = False,  # whether data outlives the machine's power
) -> tuple[MemberProcess, subprocess.Popen[bytes]]:
    """Start a member of an etcd, and its keeper in a session of its own."""
    binary = find_etcd()
    end_left_stores()
    host, _, port = endpoint.rpartition(":")
    folder, held = hold(f"{FOLDER}{port}-")
    member = MemberProcess(
        binary=binary,
        folder=str(folder),
        client=f"https://{endpoint}",
        peer=peer,
        name=name,
        cluster=cluster,
        is_first=is_first,
        is_durable=is_durable,
    )
    member.write(authority.certify(host))
    return member, start_keeper(member, prefix, held)


@dataclass(frozen=True, slots=True)
class Embedded:
    """An etcd that this process started."""

    address: EtcdAddress  # where it is, and what opens it
    _keeper: subprocess.Popen[bytes]

    def stay(self) -> None:
        """Leave it running after this process: it ends with its lab, which is there now."""
        leave_keeper(self._keeper, Stay(self.address, has_begun=True))


@contextlib.contextmanager
def start_etcd(host: str = LOOPBACK, prefix: str = "") -> Iterator[Embedded]:
    """Give a one-member etcd that lives as long as the block, or as its lab if it is to stay.

    From its first moment on, it refuses all clients without a certificate of its authority, and all
    peers, of which it has none.

    Agents reach it at `host`: loopback, unless the lab spans machines.

    Raises:
        LaunchError: There is no etcd, or it does not start.
    """
    with held_port(host) as port, held_port(LOOPBACK) as peer_port:
        authority, endpoint = Authority.make(), f"{host}:{port}"
        peer = f"https://{LOOPBACK}:{peer_port}"
        member, keeper = start_member(
            authority, prefix, endpoint=endpoint, peer=peer, name="gemini", cluster=f"gemini={peer}"
        )
        address = own_address([endpoint], authority)
        assert keeper.stdin is not None
        try:
            _wait_for(member, address, keeper)
            yield Embedded(address, keeper)
        finally:
            if not keeper.stdin.closed:
                keeper.stdin.close()  # it ends the server and removes the folder
                with contextlib.suppress(subprocess.TimeoutExpired):
                    keeper.wait(END_S)
                reap(keeper)
            if keeper.poll() not in {None, 0}:
                end_store(member.folder)


def _wait_for(member: MemberProcess, address: EtcdAddress, keeper: subprocess.Popen[bytes]) -> None:
    """Wait until the only member answers.

    Raises:
        LaunchError: It does not; says why, as far as it said so itself.
    """
    what = f"etcd in {member.folder}"
    try:
        wait_until_ready(address, what, lambda: keeper.poll() is None and not member.trouble())
    except LaunchError as error:
        if not (trouble := member.trouble() or _trouble_of(keeper, member)):
            raise
        way_out = "mend that, or name a running one with --etcd host:port"
        if "no space" in trouble:
            way_out = f"free {format_bytes(DATA_BYTES)} there, or name another folder with TMPDIR"
        raise LaunchError(f"{what} did not start: {trouble}; {way_out}") from error


def _trouble_of(keeper: subprocess.Popen[bytes], member: MemberProcess) -> str:
    """Return what a member's keeper and program printed beside a log, and how the keeper ended."""
    printed: list[str] = []
    for name in (KEEPER_LOG, LOG):
        with contextlib.suppress(OSError):
            text = read_end(Path(member.folder) / name)
            printed += [line for line in text.splitlines() if not line.startswith("{")]
    code = keeper.poll()
    ended = "" if code is None else f"the process that keeps it ended with exit status {code}"
    said = "".join(f"\n  | {line}" for line in last_lines(printed))
    return ended + (f"{ended and '; '}it printed:{said}\n" if said else "")


def wait_until_ready(
    address: EtcdAddress, what: str, may_come: Callable[[], bool] = lambda: True
) -> None:
    """Wait until an etcd answers.

    Raises:
        LaunchError: It did not answer in time, or is not to come any more.
    """
    store = EtcdStore(address, "gemini_lab/probe")
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            store.items()
        except StoreUnavailableError as error:
            if time.monotonic() > deadline_s or not may_come():
                raise LaunchError(f"{what} did not start: {error}") from error
            time.sleep(LOOK_S)
        else:
            store.close()
            return


def own_address(
    endpoints: Sequence[str], authority: Authority, *, is_followed: bool = False
) -> EtcdAddress:
    """Return how agents reach an etcd of a lab's own: its endpoints, and a certificate for them.

    If `is_followed`, its members may change.
    """
    return EtcdAddress(endpoints=tuple(endpoints), own=authority.certify(), is_followed=is_followed)
