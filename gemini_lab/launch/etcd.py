"""An embedded etcd server, for labs that name no etcd of their own.

Run as `python -m gemini_lab.launch.etcd FOLDER CLIENT_URL PEER_URL`, it keeps etcd as its child
and ends it, and removes the folder, when its standard input closes: that happens when the lab ends,
however it ends. If it was told of a detached lab before, it stays until that lab's key is gone.
"""

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gemini_lab.errors import LaunchError
from gemini_lab.launch.certificate import certificate_for
from gemini_lab.launch.programs import find_program
from gemini_lab.node.config import LAB_KEY
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 20.0
LOOK_S: Final = 0.5
COMMAND_S: Final = 20.0
HEALTH_S: Final = 3.0
ASK_S: Final = 2.0  # for an answer to whether it is well
HUNG_S: Final = 30.0  # without one for so long, it is started again
END_S: Final = 10.0  # for all of it to be gone, at the lab's end
LEAVE_S: Final = 3.0
CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"


def find_etcd() -> str:
    """The `etcd` beside this Python, else the one on the PATH.

    Raises:
        LaunchError: There is none.
    """
    return find_program(
        "etcd",
        "install one with `pip install 'gemini-lab[embedded]'`, or name a running one with "
        "--etcd host:port",
    )


def free_port(host: str) -> int:
    """A port of `host` that nobody uses now."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


class Stay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an etcd's keeper is told: live on as long as the lab whose keys are at `prefix`."""

    address: EtcdAddress
    prefix: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """An etcd that this process started.

    Attributes:
        address: Where it is, and its password.
    """

    address: EtcdAddress
    _keeper: subprocess.Popen[bytes]

    def stay_for(self, prefix: str) -> None:
        """Have it outlive this process: it ends with the lab at `prefix`, which is there now."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(msgspec.json.encode(Stay(self.address, prefix)) + b"\n")
        self._keeper.stdin.close()


@contextlib.contextmanager
def start_etcd(host: str = LOOPBACK) -> Iterator[Embedded]:
    """A one-member etcd whose data lives as long as the `with` block, or a lab that it stays for.

    It wants a password: whoever could write to it could have nodes run any script. Beyond loopback
    its clients talk to it by TLS, and know it by a certificate that their address of it has.

    Args:
        host: The address on which agents reach it; loopback unless the lab spans machines.

    Raises:
        LaunchError: There is no etcd, or it does not start.
    """
    binary = find_etcd()
    folder = tempfile.mkdtemp(prefix="gemini_lab-etcd-")
    certificate = None if host == LOOPBACK else certificate_for(host)
    endpoint = f"{host}:{free_port(host)}"
    client = f"{'http' if certificate is None else 'https'}://{endpoint}"
    peer = f"http://{LOOPBACK}:{free_port(LOOPBACK)}"  # it asks for no password, and has no peers
    open_to_all = EtcdAddress(endpoints=(endpoint,))
    if certificate is not None:
        open_to_all = replace(open_to_all, ca_pem=certificate.pem.decode())
        (Path(folder) / CERTIFICATE).write_bytes(certificate.pem)  # the folder is its user's alone
        (Path(folder) / KEY).write_bytes(certificate.key_pem)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "gemini_lab.launch.etcd", binary, folder, client, peer],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a launcher's, which may be waited for until all have closed it
        start_new_session=True,
    )
    assert keeper.stdin is not None
    try:
        _wait_until_ready(keeper, folder, open_to_all)
        address = replace(open_to_all, user="root", password=secrets.token_hex(16))
        _close_to_strangers(binary, client, folder, address)
        yield Embedded(address, keeper)
    finally:
        if not keeper.stdin.closed:
            keeper.stdin.close()  # it ends the server and removes the folder
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(END_S)


def _wait_until_ready(keeper: subprocess.Popen[bytes], folder: str, address: EtcdAddress) -> None:
    store = EtcdStore(address, "gemini_lab/probe")
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            store.items()
        except StoreUnavailableError as error:
            if time.monotonic() > deadline_s or keeper.poll() is not None:
                raise LaunchError(f"etcd in {folder} did not start: {error}") from error
            time.sleep(0.05)
        else:
            store.close()
            return


def _close_to_strangers(binary: str, client: str, folder: str, address: EtcdAddress) -> None:
    """Want the password of `address` from now on."""
    trust = [f"--cacert={folder}/{CERTIFICATE}"] if address.ca_pem is not None else []
    control = Path(binary).with_name("etcdctl")
    for command in (
        ["user", "add", "root", "--interactive=false"],
        ["user", "grant-role", "root", "root"],
        ["auth", "enable"],
    ):
        try:
            done = subprocess.run(
                [str(control), f"--endpoints={client}", *trust, *command],
                text=True,
                input=address.password,
                capture_output=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"etcd took no password within {COMMAND_S:.0f} s") from error
        if done.returncode:
            raise LaunchError(f"etcd refused to take a password: {done.stderr.strip()}")


def keep(binary: str, folder: str, client: str, peer: str, hung_s: float = HUNG_S) -> None:
    """Run etcd until standard input closes; one that dies or hangs is started again on its data."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    etcd = _run(binary, folder, client, peer)
    heard_s = asked_s = time.monotonic()
    said, is_open, lab = b"", True, None
    while is_open or (lab is not None and _is_there(lab)):
        now = time.monotonic()
        if now - asked_s > HEALTH_S:
            asked_s = now
            heard_s = time.monotonic() if answers(client, folder) else heard_s
        if now - heard_s > hung_s:
            etcd.kill()
        if etcd.poll() is not None:
            etcd = _run(binary, folder, client, peer)
            heard_s = time.monotonic()
        if is_open:
            more = _read(0, within_s=LOOK_S)
            said, is_open = said + (more or b""), more != b""
            lab = None if is_open or not said else msgspec.json.decode(said, type=Stay)
        else:
            time.sleep(LOOK_S)
    if lab is not None:
        time.sleep(LEAVE_S)  # for agents to take their keys out of it
    etcd.kill()
    etcd.wait()
    shutil.rmtree(folder, ignore_errors=True)


def answers(url: str, folder: str) -> bool:
    """Whether the etcd at `url`, whose folder this is, says how it is, be that well or ill."""
    at = urlsplit(url)
    host = str(at.hostname)
    asked = HTTPConnection(host, at.port, timeout=ASK_S)
    if at.scheme == "https":
        trust = ssl.create_default_context(cafile=f"{folder}/{CERTIFICATE}")
        asked = HTTPSConnection(host, at.port, timeout=ASK_S, context=trust)
    try:
        asked.request("GET", "/health")
        asked.getresponse()
    except (OSError, HTTPException):
        return False
    else:
        return True
    finally:
        asked.close()


def _run(binary: str, folder: str, client: str, peer: str) -> subprocess.Popen[bytes]:
    # The password is random: slow hashing would only cost time.
    command = [
        *(binary, "--name", "gemini", "--data-dir", f"{folder}/data"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"gemini={peer}", "--unsafe-no-fsync"),
        *("--auto-compaction-retention", "5m", "--bcrypt-cost", "4"),
    ]
    if client.startswith("https:"):
        files = (f"{folder}/{CERTIFICATE}", f"{folder}/{KEY}")
        command += ["--cert-file", files[0], "--key-file", files[1]]
    with (Path(folder) / "etcd.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _read(fd: int, *, within_s: float) -> bytes | None:
    """What comes through a pipe within a time; `b""`: its other end is closed, `None`: nothing."""
    readable, _, _ = select.select([fd], [], [], within_s)
    if not readable:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


def _is_there(lab: Stay) -> bool:
    """Whether a lab's key stands; while etcd does not answer, it is taken to."""
    store = EtcdStore(lab.address, lab.prefix)
    try:
        return LAB_KEY in store.items()
    except StoreUnavailableError:
        return True
    finally:
        store.close()


if __name__ == "__main__":
    keep(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4])
