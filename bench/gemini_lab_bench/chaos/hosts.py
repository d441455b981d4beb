"""Nodes with networks of their own, for faults of the network between them."""

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab.lab.namespaces import NodeNetwork
from gemini_lab_bench.chaos.faults import Fault

SLOW_BYTES_PER_S: Final = 64 * 1024
SSH: Final = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
address="$1"; shift
case "$address" in
{enters}
esac
"""


class Hosts:
    """Emulated machines, each a network namespace, that `mpiexec` reaches as if by ssh.

    Args:
        folder: For the program that stands in for ssh.
        count: How many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._ssh = folder / "ssh"
        self._count = count
        pid = os.getpid()  # other campaigns may run beside this one
        self._subnet = f"10.{128 + pid % 100}.{pid // 100 % 250}"
        self._network = NodeNetwork(self._count, subnet=self._subnet)

    @property
    def names(self) -> list[str]:
        """Their addresses, which the run is told."""
        return [self._network.address(number) for number in range(self._count)]

    @property
    def campaign(self) -> str:
        """The address that the campaign's own machine has for them."""
        return f"{self._subnet}.254"

    @property
    def environment(self) -> dict[str, str]:
        """MPI's settings: how to reach them, and through which network."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self._ssh),
            "PRTE_MCA_prte_if_include": f"{self._subnet}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{self._subnet}.0/24",
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_pml": "ob1",
        }

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """`command`, to be run on a host."""
        return self._network.command(host, command)

    def strike(self, fault: Fault, pid: int) -> int:
        """Break the link of the host on which a process runs; the host's number.

        Raises:
            ConfigError: The process is on none of the hosts.
        """
        host = self._network.node_of(pid)
        if host is None:
            raise ConfigError(f"process {pid} is on no host with a network of its own")
        match fault.kind:
            case "link_slow":
                self._network.slow(host, bytes_per_s=SLOW_BYTES_PER_S)
            case "partition_out":
                self._network.cut(host, sent=True, received=False)
            case "partition_in":
                self._network.cut(host, sent=False, received=True)
            case _:
                self._network.cut(host, sent=True, received=True)
        return host

    def mend(self, host: int) -> None:
        """Restore a host's link."""
        self._network.mend(host)

    def __enter__(self) -> Self:
        self._network.__enter__()
        ways = "\n".join(self._way(number) for number in range(self._count))
        self._ssh.write_text(SSH.format(enters=ways), encoding="utf-8")
        self._ssh.chmod(self._ssh.stat().st_mode | stat.S_IXUSR)
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()

    def _way(self, number: int) -> str:
        """Return the branch of the program that runs its arguments on a host."""
        words = shlex.join(self.command(number, ["bash", "-c"]))
        return f'  {self._network.address(number)}) exec {words} "$*" ;;'
