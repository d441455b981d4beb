"""The operator brings machines (the paper's cloud operator, section 6.2)."""

import contextlib
import os
import secrets
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from gemini_lab.errors import CapacityError, GeminiError
from gemini_lab.launch.etcd_members import Members
from gemini_lab.launch.join import say
from gemini_lab.launch.mpi import Hosts, launch_agents
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.processes import AGENT, processes_of
from gemini_lab.node.start_config import AgentConfig, AgentUp, LabRecord
from gemini_lab.seats import node_name, node_number


class Operator(Protocol):
    """A source of machines: `mpiexec`, or a lab's name in the store, under which they join."""

    token: str  # the secret with which its agents were started

    @property
    def is_local(self) -> bool:
        """Whether all its agents are on this machine, and see its folders."""

    def bring(self, count: int) -> list[AgentUp]:
        """Start agents on `count` machines: `name`, `address` and `pid` of each.

        Raises:
            ConfigError: Two hosts are one machine.
            CapacityError: No machine is left.
            LaunchError: They could not be started.
        """

    def clear(self) -> None:
        """End what is left of its agents, because the lab is closed."""


@dataclass(slots=True, kw_only=True)
class MpiOperator:
    """Brings machines with `mpiexec`: this one, or hosts of a hostfile or allocation in turn.

    A host is used once: one whose node was lost may be broken.
    """

    etcd: EtcdAddress | Members  # the store, or the members of one, of which lost ones are replaced
    prefix: str
    lab: LabRecord
    log_folder: Path
    hosts: Hosts = field(default_factory=Hosts)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    _started: int = 0
    _taken: dict[str, str] = field(default_factory=dict)  # machine: its host, as it was called
    _local_agents: list[psutil.Process] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def bring(self, count: int) -> list[AgentUp]:
        """Start agents on this machine, or on the next `count` hosts."""
        with self._lock:
            first, names = self._started, self.hosts.names
            if names and len(names) < first + count:
                raise CapacityError(
                    f"{count} more nodes were asked for, but of {len(names)} hosts "
                    f"{len(names) - first} are unused; add hosts to the hostfile or allocation"
                )
            self._started += count
        configs = [
            AgentConfig(
                name=node_name(number),
                token=self.token,
                etcd=self.etcd.address if isinstance(self.etcd, Members) else self.etcd,
                prefix=self.prefix,
                lab=self.lab,
            )
            for number in range(first, first + count)
        ]
        hosts = names[first : first + count]
        agents = launch_agents(configs, hosts=hosts, taken=self._taken, log_folder=self.log_folder)
        for agent, host in zip(agents, sorted(hosts, key=hosts.index), strict=False):
            self._taken.setdefault(agent.machine, host)
        if not hosts:
            for agent in agents:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._local_agents.append(psutil.Process(agent.pid))
        elif first and isinstance(self.etcd, Members):
            self._mend(self.etcd, hosts)
        return agents

    def _mend(self, members: Members, hosts: Sequence[str]) -> None:
        """Put the members of lost machines on new ones; agents on them are up in any case."""
        try:
            members.mend(hosts)
        except GeminiError as error:
            say(f"etcd has a member less than it should: {error}")

    def know(self, names: Collection[str]) -> None:
        """Note nodes that were brought before, by another owner of the lab."""
        with self._lock:
            self._started = max([self._started, *(node_number(name) + 1 for name in names)])

    @property
    def is_local(self) -> bool:
        """Whether all its agents are on this machine, and see its folders."""
        return not self.hosts.names

    def clear(self) -> None:
        """Kill what is left in the sessions of agents on this machine, such as frozen ones.

        The session of this very process is left alone: an owner that runs beside an agent ends
        with it.
        """
        if not self.is_local:
            return
        # The kernel gives a number to no other process while anything is left in its session.
        numbers = ((agent.pid, agent.is_running()) for agent in self._local_agents)
        sessions = {pid for pid, runs in numbers if runs or not psutil.pid_exists(pid)}
        if self.lab.detached is not None:  # other owners may have brought some
            sessions |= {agent.pid for agent in processes_of(AGENT, self.lab.detached.identity)}
        sessions -= {os.getsid(0)}
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) in sessions:
                    process.kill()
