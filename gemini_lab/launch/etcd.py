"""An embedded etcd server, for labs that name no etcd of their own.

Run as `python -m gemini_lab.launch.etcd FOLDER CLIENT_URL PEER_URL`, it keeps etcd as its child
and ends it, and removes the folder, when its standard input closes: that happens when the lab ends,
however it ends.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from gemini_lab.errors import LaunchError
from gemini_lab.launch.programs import find_program
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError

START_S: Final = 20.0


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


class EmbeddedEtcd:
    """A one-member etcd whose data lives as long as the lab.

    Args:
        host: The address on which agents reach it; loopback unless the lab spans machines.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        binary = find_etcd()
        folder = tempfile.mkdtemp(prefix="gemini_lab-etcd-")
        client, peer = (f"http://{host}:{free_port(host)}" for _ in range(2))
        endpoint = client.removeprefix("http://")
        open_to_all = EtcdAddress(endpoints=(endpoint,))
        self.address = EtcdAddress(
            endpoints=(endpoint,), user="root", password=secrets.token_hex(16)
        )
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "gemini_lab.launch.etcd", binary, folder, client, peer],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self._wait_until_ready(folder, open_to_all)
            self._close_to_strangers(binary)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server and remove its data."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()

    def _close_to_strangers(self, binary: str) -> None:
        """Want a password: whoever could write here could have nodes run any script."""
        control = Path(binary).with_name("etcdctl")
        endpoint = f"--endpoints={self.address.endpoints[0]}"
        for command in (
            ["user", "add", "root", "--interactive=false"],
            ["user", "grant-role", "root", "root"],
            ["auth", "enable"],
        ):
            done = subprocess.run(
                [str(control), endpoint, *command], input=self.address.password, text=True,
                capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise LaunchError(f"etcd refused to take a password: {done.stderr.strip()}")

    def _wait_until_ready(self, folder: str, address: EtcdAddress) -> None:
        store = EtcdStore(address, "gemini_lab/probe")
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                store.items()
            except StoreUnavailableError as error:
                if time.monotonic() > deadline_s or self._keeper.poll() is not None:
                    raise LaunchError(f"etcd in {folder} did not start: {error}") from error
                time.sleep(0.05)
            else:
                store.close()
                return


def keep(binary: str, folder: str, client: str, peer: str) -> None:
    """Run etcd until standard input closes."""
    with (Path(folder) / "etcd.log").open("wb") as log:
        etcd = subprocess.Popen(
            [binary, "--name", "gemini", "--data-dir", f"{folder}/data",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"gemini={peer}", "--unsafe-no-fsync",
             "--auto-compaction-retention", "5m",
             "--bcrypt-cost", "4"],  # the password is random: slow hashing would only cost time
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    etcd.kill()
    etcd.wait()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(*sys.argv[1:])
