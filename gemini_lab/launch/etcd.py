"""An embedded etcd of one member, for labs that name no etcd of their own; and what any needs."""

import contextlib
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from gemini_lab.errors import LaunchError
from gemini_lab.launch.certificate import Authority
from gemini_lab.launch.etcd_keeper import KEEPER_LOG, Stay, start_keeper
from gemini_lab.launch.etcd_server import LOG, Member
from gemini_lab.launch.programs import find_program
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import DIRECT, EtcdAddress, tls_credentials
from gemini_lab.node.etcd_store import EtcdStore
from gemini_lab.node.held_folder import hold
from gemini_lab.node.own_stores import FOLDER, SEGMENT_BYTES, end_left_stores, end_store
from gemini_lab.report.output import last_lines
from gemini_lab.units import format_bytes

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 20.0
COMMAND_S: Final = 20.0
LOOK_S: Final = 0.05
END_S: Final = 10.0  # for all of it to be gone, at the lab's end
USER: Final = "root"
DATA_BYTES: Final = 2 * SEGMENT_BYTES
"""What an etcd takes on disk at first: two files of its log, and what is kept."""


def find_etcd() -> str:
    """The `etcd` beside this Python, else the one on the PATH.

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
    """A port of `host` that is free, and is given to nobody in the block who does not ask for it.

    A program takes a while until it listens; on Linux it may do so beside whoever holds its port.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        port = int(held.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        yield port


def free_port(host: str) -> int:
    """A port of `host` that nobody uses now."""
    with held_port(host) as port:
        return port


@dataclass(frozen=True, slots=True)
class Embedded:
    """An etcd that this process started.

    Attributes:
        address: Where it is, and its password.
    """

    address: EtcdAddress
    _keeper: subprocess.Popen[bytes]

    def stay(self) -> None:
        """Have it outlive this process: it ends with its lab, which is there now."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(msgspec.json.encode(Stay(self.address, has_begun=True)))
        self._keeper.stdin.close()


@contextlib.contextmanager
def start_etcd(host: str = LOOPBACK, prefix: str = "") -> Iterator[Embedded]:
    """A one-member etcd whose data lives as long as the `with` block, or its lab if it is to stay.

    It wants a password: whoever could write to it could have nodes run any script. Beyond loopback
    its clients talk to it by TLS, and know it by an authority that their address of it has.

    Args:
        host: The address on which agents reach it; loopback unless the lab spans machines.
        prefix: Of its lab's keys.

    Raises:
        LaunchError: There is no etcd, or it does not start.
    """
    with held_port(host) as port, held_port(LOOPBACK) as peer_port:
        authority = None if host == LOOPBACK else Authority.make()
        endpoint = f"{host}:{port}"
        peer = f"http://{LOOPBACK}:{peer_port}"  # it asks for no password, and has no peers
        binary = find_etcd()
        end_left_stores()
        folder, held = hold(f"{FOLDER}{port}-")
        member = Member(
            binary=binary,
            folder=str(folder),
            client=f"{'http' if authority is None else 'https'}://{endpoint}",
            peer=peer,
            name="gemini",
            cluster=f"gemini={peer}",
        )
        if authority is not None:
            member.write(authority.certify(host))
        open_to_all = EtcdAddress(
            endpoints=(endpoint,), ca_pem=None if authority is None else authority.pem
        )
        keeper = start_keeper(member, prefix, held)
        assert keeper.stdin is not None
        try:
            _wait_for(member, open_to_all, keeper)
            yield Embedded(with_password(open_to_all, secrets.token_hex(16)), keeper)
        finally:
            if not keeper.stdin.closed:
                keeper.stdin.close()  # it ends the server and removes the folder
                with contextlib.suppress(subprocess.TimeoutExpired):
                    keeper.wait(END_S)
            if keeper.poll() not in {None, 0}:
                end_store(member.folder)


def _wait_for(member: Member, address: EtcdAddress, keeper: subprocess.Popen[bytes]) -> None:
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


def _trouble_of(keeper: subprocess.Popen[bytes], member: Member) -> str:
    """What a member's keeper and program printed beside a log, and how the keeper ended."""
    printed: list[str] = []
    for name in (KEEPER_LOG, LOG):
        with contextlib.suppress(OSError):
            text = (Path(member.folder) / name).read_text(encoding="utf-8", errors="replace")
            printed += [line for line in text.splitlines() if not line.startswith("{")]
    code = keeper.poll()
    ended = "" if code is None else f"the process that keeps it ended with exit status {code}"
    said = "".join(f"\n  | {line}" for line in last_lines(printed))
    return ended + (f"{ended and '; '}it printed:{said}\n" if said else "")


def wait_until_ready(
    address: EtcdAddress, what: str, may_come: Callable[[], bool] = lambda: True
) -> None:
    """Wait until an etcd answers.

    Args:
        address: Where it is to be.
        what: It, in words.
        may_come: Whether it is worth waiting.

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


def with_password(address: EtcdAddress, password: str) -> EtcdAddress:
    """Have this etcd, which is open to all, want a password from now on; so does the answer.

    Raises:
        LaunchError: It does not take one.
    """
    import grpc  # noqa: PLC0415  (its threads start with its import)
    from etcd3 import etcdrpc  # noqa: PLC0415

    orders = (
        ("UserAdd", etcdrpc.AuthUserAddRequest(name=USER, password=password)),
        ("UserGrantRole", etcdrpc.AuthUserGrantRoleRequest(user=USER, role=USER)),
        ("AuthEnable", etcdrpc.AuthEnableRequest()),
    )
    channel = _channel_to(address)
    try:
        stub = etcdrpc.AuthStub(channel)
        for name, order in orders:
            getattr(stub, name)(order, timeout=COMMAND_S, wait_for_ready=True)
    except grpc.RpcError as error:
        raise LaunchError(f"etcd took no password: {error.code()}: {error.details()}") from error
    finally:
        channel.close()
    return replace(address, user=USER, password=password)


def _channel_to(address: EtcdAddress) -> Any:
    import grpc  # noqa: PLC0415

    credentials = tls_credentials(address)
    if credentials is None:
        return grpc.insecure_channel(address.endpoints[0], options=DIRECT)
    return grpc.secure_channel(address.endpoints[0], credentials, options=DIRECT)
