"""Nodes with addresses and kernel-shaped links of their own, on one Linux machine.

Each node is a network namespace, joined to the others by a bridge. The kernel's token bucket
filter (`tc tbf`) shapes both directions of each node's link. It needs root, or a user namespace in
which one is root: `unprivileged(...)` gives the command for that.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Self

from gemini_lab.errors import LaunchError

_PROBE: Final = "gemini-lab-probe"
_BUCKET_S: Final = 0.004
"""How much time's worth of bytes may leave at once: one tick of a slow kernel timer."""


def why_not() -> str | None:
    """Why this process cannot make namespaces, or `None` if it can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}; pace the link instead"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; install iproute2 and util-linux"
    name = f"{_PROBE}-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return (
            f"`ip netns add` failed ({made.stderr.strip()}); run as root, or start the program by "
            "gemini_lab.emulation.namespaces.unprivileged"
        )
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


def unprivileged(command: Sequence[str]) -> list[str]:
    """`command`, run as root of user, network and mount namespaces of its own.

    For a user without privileges, where the kernel allows it. All that the command does to
    interfaces ends with it.
    """
    enter = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'
    return ["unshare", "-Urnm", "sh", "-c", enter, "sh", *command]


class NodeNetwork:
    """A network of nodes, from entering the `with` block to leaving it.

    Args:
        nodes: How many, at most 250.
        bytes_per_s: The rate of each node's link, each way; `None` leaves links unshaped.
        subnet: The first three numbers of the nodes' addresses.

    Raises:
        LaunchError: On entering, if namespaces cannot be made here; the message says why.
    """

    def __init__(
        self, nodes: int, *, bytes_per_s: float | None = None, subnet: str = "10.77.0"
    ) -> None:
        if not 1 <= nodes <= 250:
            raise LaunchError(f"a network of {nodes} nodes cannot be made; choose 1 to 250")
        self._nodes = nodes
        self._bytes_per_s = bytes_per_s
        self._subnet = subnet
        # Names of interfaces have at most 15 characters, and other labs may run beside this one.
        self._prefix = f"gl{os.getpid() % 0xFFFFF:05x}"

    @property
    def interface(self) -> str:
        """The interface's name in every node, as GLOO_SOCKET_IFNAME wants it."""
        return "eth0"

    def address(self, node: int) -> str:
        """The address of node number `node`, counted from 0."""
        return f"{self._subnet}.{node + 1}"

    def hostname(self, node: int) -> str:
        """The hostname that commands on the node see: launchers tell nodes apart by it."""
        return f"{self._prefix}-{node}"

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """`command`, to be run on node number `node`."""
        name = self.hostname(node)
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *command]
        return ["ip", "netns", "exec", name, *inside]

    def __enter__(self) -> Self:
        reason = why_not()
        if reason:
            raise LaunchError(f"cannot give the nodes networks of their own: {reason}")
        try:
            bridge = f"{self._prefix}br"
            _do(f"ip link add {bridge} type bridge")
            _do(f"ip addr add {self._subnet}.254/24 dev {bridge}")
            _do(f"ip link set {bridge} up")
            for node in range(self._nodes):
                self._add(node, bridge)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down; what still runs on a node has no network from here on."""
        for node in range(self._nodes):
            _try(f"ip netns delete {self.hostname(node)}")
            _try(f"ip link delete {self._prefix}v{node}")
        _try(f"ip link delete {self._prefix}br")

    def _add(self, node: int, bridge: str) -> None:
        name, outside = self.hostname(node), f"{self._prefix}v{node}"
        _do(f"ip netns add {name}")
        _do(f"ip link add {outside} type veth peer name {self.interface} netns {name}")
        _do(f"ip link set {outside} master {bridge} up")
        _do(f"ip -n {name} addr add {self.address(node)}/24 dev {self.interface}")
        _do(f"ip -n {name} link set {self.interface} up")
        _do(f"ip -n {name} link set lo up")
        if self._bytes_per_s is not None:
            _do(f"tc -n {name} qdisc add dev {self.interface} root {shaping(self._bytes_per_s)}")
            _do(f"tc qdisc add dev {outside} root {shaping(self._bytes_per_s)}")


def shaping(bytes_per_s: float) -> str:
    """The `tc` words that shape one direction of a link."""
    bucket_bytes = max(64 * 1024, math.ceil(bytes_per_s * _BUCKET_S))
    return f"tbf rate {round(bytes_per_s * 8)}bit burst {bucket_bytes} latency 100ms"


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"`{command}` failed: {done.stderr.strip()}")


def _try(command: str) -> None:
    """Run a command that may find nothing to do."""
    subprocess.run(command.split(), capture_output=True, check=False)
