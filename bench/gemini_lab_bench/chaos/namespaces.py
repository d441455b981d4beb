"""Nodes with addresses and kernel-shaped links of their own, on one Linux machine.

Each node is a network namespace, joined to the others by a bridge. The kernel's token bucket
filter (`tc tbf`) shapes both directions of each node's link. It needs root, or a user namespace in
which one is root: `unprivileged(...)` gives the command for that.

No namespace has a name that would outlive its processes: each is held by one that waits for the end
of a pipe from this program, so that all of it is gone when this program is, however it ends.
"""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError, LaunchError, MissingError

# `ip` and `tc`, not pyroute2: it speaks to a namespace by its process too, but what is said with it
# is as long, and `unshare` and `nsenter` would stay: a holder without a name, and programs inside.
_TOOLS: Final = ("ip", "tc", "unshare", "nsenter")
_HOLD: Final = 'hostname "$0" && ip link set lo up && echo made && exec cat'
_NOBODY: Final = "02:00:00:00:00:99"
"""An address of an interface that none has."""
_BUCKET_S: Final = 0.004
"""How much time's worth of bytes may leave at once: one tick of a slow kernel timer."""


def why_not() -> str | None:
    """Return why this process cannot make namespaces, or `None` if it can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}; pace the link instead"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; install iproute2 and util-linux"
    made = subprocess.run(
        ["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return (
            f"`unshare --net` failed ({made.stderr.strip()}); run as root or, where user "
            f"namespaces are allowed, begin the command with: {shlex.join(unprivileged([]))}"
        )
    return None


def unprivileged(command: Sequence[str]) -> list[str]:
    """Return `command`, run as root of user and network namespaces of its own.

    For a user without privileges, where the kernel allows it. All that the command does to
    interfaces ends with it.
    """
    return ["unshare", "-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]


class Namespace:
    """A network of its own, with a hostname, for as long as the `with` block lasts.

    Raises:
        LaunchError: On entering, if it cannot be made.
    """

    def __init__(self, hostname: str) -> None:
        self.hostname = hostname

    def command(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--", *command]

    def do(self, command: str) -> None:
        """Run a command inside.

        Raises:
            LaunchError: It failed.
        """
        _do(self.command(command.split()))

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", _HOLD, self.hostname],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for the program, which takes things down in order
        )
        self.pid = self._holder.pid
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline().strip()
        if said != "made":
            self._holder.communicate()
            raise LaunchError(f"`unshare --net` failed: {said}")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate()


class NodeNetwork:
    """A network of nodes, from entering the `with` block to leaving it.

    Raises:
        ConfigError: There are more.
        MissingError: On entering, if namespaces cannot be made here; the message says why.
    """

    def __init__(self, nodes: int, *, subnet: str = "10.77.0") -> None:
        if not 1 <= nodes <= 250:
            raise ConfigError(f"a network of {nodes} nodes cannot be made; choose 1 to 250")
        self._nodes = nodes
        self._subnet = subnet
        # Names of interfaces have at most 15 characters, and other labs may run beside this one.
        self._prefix = f"gl{os.getpid() % 0xFFFFF:05x}"
        self._members: list[Namespace] = []
        self._switch: Namespace
        self._made = ExitStack()

    @property
    def interface(self) -> str:
        """The interface's name in every node, as GLOO_SOCKET_IFNAME wants it."""
        return "eth0"

    def address(self, node: int) -> str:
        """Return the address of node number `node`, counted from 0."""
        return f"{self._subnet}.{node + 1}"

    def hostname(self, node: int) -> str:
        """Return the hostname that commands on the node see: launchers tell nodes apart by it."""
        return f"{self._prefix}-{node}"

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """Return `command`, to be run on node number `node`."""
        return self._members[node].command(command)

    def node_of(self, pid: int) -> int | None:
        """Return the number of the node on which a process runs; `None` if it is on none."""
        pids = [member.pid for member in self._members]
        where = [Path(f"/proc/{each}/ns/net").readlink() for each in (*pids, pid)]
        number = where.index(where[-1])
        return number if number < len(pids) else None

    def cut(self, node: int, *, sent: bool, received: bool) -> None:
        """Lose all that a node sends, or all that is sent to it, without a word to anybody."""
        self._handle(node, "blackhole" if sent else None, "blackhole" if received else None)

    def part(self, node: int, other: int) -> None:
        """Lose all that two nodes send each other; what others send to them, and they, arrives."""
        for one, peer in ((node, other), (other, node)):
            there = f"{self.address(peer)} lladdr {_NOBODY} dev {self.interface}"
            self._members[one].do(f"ip neigh replace {there} nud permanent")

    def slow(self, node: int, *, bytes_per_s: float) -> None:
        self._handle(node, shaping(bytes_per_s), shaping(bytes_per_s))

    def mend(self, node: int) -> None:
        self._handle(node, None, None)

    def _handle(self, node: int, sent: str | None, received: str | None) -> None:
        """Make `tc` handle what a node sends and receives; `None` removes that."""
        member = self._members[node]
        ends = ((member, self.interface, sent), (self._switch, _port(member.pid), received))
        for namespace, interface, words in ends:
            _try(namespace.command(f"tc qdisc del dev {interface} root".split()))
            if words is not None:
                namespace.do(f"tc qdisc add dev {interface} root {words}")

    def __enter__(self) -> Self:
        reason = why_not()
        if reason:
            raise MissingError(f"cannot give the nodes networks of their own: {reason}")
        with ExitStack() as made:
            switch = made.enter_context(Namespace(f"{self._prefix}-switch"))
            switch.do("ip link add bridge type bridge")
            switch.do("ip link set bridge up")
            self._switch = switch
            self._join(switch, os.getpid(), self._prefix)
            # It would go with its namespace as well, but the kernel takes its time over those.
            made.callback(_try, f"ip link delete {self._prefix}".split())
            _do(f"ip addr add {self._subnet}.254/24 dev {self._prefix}".split())
            _do(f"ip link set {self._prefix} up".split())
            for node in range(self._nodes):
                member = made.enter_context(Namespace(self.hostname(node)))
                self._add(member, switch, self.address(node))
                self._members.append(member)
            self._made = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything down, but for what commands that still run on a node are using."""
        self._made.close()
        self._members.clear()

    def _join(self, switch: Namespace, pid: int, interface: str) -> None:
        """Join the namespace of process `pid` to the switch."""
        port = _port(pid)
        switch.do(f"ip link add {port} type veth peer name {interface} netns {pid}")
        switch.do(f"ip link set {port} master bridge up")

    def _add(self, member: Namespace, switch: Namespace, address: str) -> None:
        self._join(switch, member.pid, self.interface)
        member.do(f"ip addr add {address}/24 dev {self.interface}")
        member.do(f"ip link set {self.interface} up")


def shaping(bytes_per_s: float) -> str:
    """Return the `tc` words that shape one direction of a link."""
    bucket_bytes = max(64 * 1024, math.ceil(bytes_per_s * _BUCKET_S))
    return f"tbf rate {round(bytes_per_s * 8)}bit burst {bucket_bytes} latency 100ms"


def _port(pid: int) -> str:
    """Return the switch's port to the namespace of process `pid`."""
    return f"port{pid}"


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _try(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)
