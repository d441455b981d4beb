"""Which network carries what: a node's whole traffic takes the address by which it reaches etcd.

Agents listen there, workers rendezvous there, and collectives and replicas take the interface that
has it, unless GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME name another one.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

import psutil

from gemini_lab.log.events import Network
from gemini_lab.units import format_bytes

BITS: Final = 8
MEGA: Final = 10**6


def network_of(host: str) -> Network:
    """What carries the traffic of this machine's address `host`."""
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
    """What is likely wrong with the networks of these nodes, for people, with the way out."""
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
