"""Which machine this is, and which process: what two names of one have in common."""

import ipaddress
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.log.events import Network
from gemini_lab.units import format_bytes

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")
_PIDS: Final = Path("/proc/self/ns/pid")
_STATE, _STARTED = 0, 19  # places in /proc/PID/stat, after the program's name


def address_towards(endpoint: str) -> str:
    """Return this machine's address on the way to `endpoint` (`host:port`); nothing is sent."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def machine_identity() -> str:
    """Return what names this machine until it starts again: the same for all its processes.

    Containers with a network of their own have one each: they are hosts to all the others, and who
    starts several on one machine knows.
    """
    if _BOOT.exists() and _NETWORK.exists():
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"
    return f"{uuid.getnode():x} {socket.gethostname()}"  # no Linux


def process_identity() -> str:
    """Return what names this process, for `has_ended` on its machine; empty without Linux."""
    if not _PIDS.exists():
        return ""
    # With its start, in clock ticks since the boot: the kernel gives a number again.
    return f"{_place()} {os.getpid()} {_stat(os.getpid())[_STARTED]}"


def has_ended(identity: str) -> bool:
    """Return whether a process is gone for certain; of another machine's that is not known.

    Args:
        identity: Its own word, of `process_identity`.
    """
    try:
        place, pid, started = identity.rsplit(" ", 2)
        if place != _place():
            return False
        stat = _stat(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (ValueError, OSError):
        return False
    return stat[_STARTED] != started or stat[_STATE] in {"Z", "X"}


def _place() -> str:
    """Return a name for this machine and its process numbers: each container has its own."""
    return f"{machine_identity()} {_PIDS.readlink()}"


def _stat(pid: int) -> list[str]:
    """Return the kernel's words on a process, from its state on: its name may have any letters."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


BITS: Final = 8
MEGA: Final = 10**6


def network_of(host: str) -> Network:
    """Return the interface that has this machine's address `host`, and faster ones."""
    addresses = psutil.net_if_addrs()
    speeds = {
        name: seen.speed * MEGA / BITS
        for name, seen in psutil.net_if_stats().items()
        if seen.isup and name in addresses
    }
    found = [name for name, has in addresses.items() if host in (one.address for one in has)]
    if not found:
        return Network(address=host)
    speed = speeds.get(found[0], 0.0)
    faster = tuple(name for name, other in speeds.items() if other > speed > 0)
    return Network(address=host, interface=found[0], bytes_per_s=speed, faster=faster)


def remarks_on(networks: Mapping[str, Network]) -> Iterator[str]:
    """Yield what is likely wrong with the networks of these nodes, with the way out."""
    hosts = {network.address for network in networks.values()}
    for node, network in networks.items():
        if len(hosts) > 1 and _is_loopback(network.address):
            yield (
                f"{node} listens on {network.address}, which no other machine reaches: name the "
                "etcd by an address that all hosts reach (--etcd), not by localhost"
            )
        for other in network.faster:
            yield (
                f"{node}: {network.interface} ({format_bytes(network.bytes_per_s)}/s) carries "
                f"training and checkpoints, though {other} is faster; name the etcd by an address "
                f"in that network, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to {other}"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
