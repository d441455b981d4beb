"""The machine of an agent: whatever the agent uses of it, but for what its event loop gives.

Timers, sleep, connections and listening come from the event loop. So an agent runs anywhere if it
gets another loop and another machine.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final, Protocol

from gemini_lab.log.events import Network
from gemini_lab.memory.free import FreeMemory, free_memory, kernel_kills
from gemini_lab.node import processes, this_machine
from gemini_lab.node.build_locks import BuildLocks
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdClient, Values
from gemini_lab.node.freeze_guard import end_stopped
from gemini_lab.node.health import MachineHealth
from gemini_lab.node.host import WorkerHost
from gemini_lab.node.link_speed import link_fault
from gemini_lab.node.orphan_etcd import end_left_stores
from gemini_lab.recovery.ailments import MachineFault
from gemini_lab.recovery.messages import MeasureLink
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState

OWN_ROOTS: Final = "gemini_lab.course"
"""The entry points among which `root_agent` makes a root agent of the user's own."""


class MakeRoot(Protocol):
    """Makes a root agent of the user's own; `None` if this installation cannot."""

    def __call__(self, packed: str, *, state: RootState, at_s: float) -> RootAgent | None: ...


class AgentMachine:
    """The machine on which this process runs."""

    def __init__(
        self,
        *,
        host: Callable[..., WorkerHost] = WorkerHost,  # starts and ends the node's workers
        # Does the agent's bulk work; by default processes of its own.
        bulk: BulkProcesses | None = None,
        # As the attribute; by default this machine's own.
        faults: Callable[[], list[MachineFault]] | None = None,
    ) -> None:
        self.host = host
        self.bulk = bulk or BulkProcesses()
        # Draws pauses and orders, so that many agents do not act at the same moment.
        self.random = random.Random()
        # Returns what was seen of the machine's faults since the last call.
        self.faults = faults or MachineHealth().news

    @staticmethod
    def steady_s() -> float:
        """Return the seconds of a clock that nobody sets; it is the event loop's, too."""
        return time.monotonic()

    @staticmethod
    def wall_s() -> float:
        """Return the seconds since the epoch, by a clock that somebody may set."""
        return time.time()

    def address_towards(self, endpoint: str) -> str:
        """Return this machine's address on the way to `endpoint` (`host:port`)."""
        return this_machine.address_towards(endpoint)

    def open_port(self, ip: str, *, waiting: int) -> socket.socket:
        """Return a socket that listens on a free port, with room for so many openers.

        Raises:
            OSError: None could be opened.
        """
        return socket.create_server((ip, 0), backlog=waiting)

    def network_of(self, ip: str) -> Network:
        """Return the interface that has this address, and faster ones."""
        return this_machine.network_of(ip)

    def identity(self) -> str:
        """Return the machine's name, the same for all its processes."""
        return this_machine.machine_identity()

    def store(
        self,
        address: EtcdAddress,
        prefix: str,
        *,
        timeout_s: float = 1.0,
        values: Values | None = None,
    ) -> EtcdClient:
        """Return a client of the lab's store."""
        return EtcdClient(address, prefix, timeout_s=timeout_s, values=values)

    @staticmethod
    def own_root(packed: str, *, state: RootState, at_s: float) -> RootAgent | None:
        """Return the root agent that the user's function guides; the package that packed it has it.

        The result is `None` if this installation lacks that package.
        """
        for found in entry_points(group=OWN_ROOTS, name="root_agent"):
            try:
                make: MakeRoot = found.load()
            except (ImportError, AttributeError):  # the installation is not whole
                break
            return make(packed, state=state, at_s=at_s)
        return None

    async def link_fault(self, peer: MeasureLink, *, token: str, name: str) -> MachineFault | None:
        """Return the fault of the link to an agent, if it is far too slow."""
        return await link_fault(peer, token=token, name=name)

    # -- memory and processes --------------------------------------------------------------------

    def free_memory(self) -> FreeMemory:
        """Return how much memory can be taken."""
        return free_memory()

    def kernel_kills(self) -> int:
        """Return how many processes the kernel has ended for want of memory."""
        return kernel_kills()

    def held_bytes(self, pid: int | None) -> int:
        """Return how much memory a process has; 0 if that cannot be seen."""
        return processes.held_bytes(pid)

    def is_stopped(self, pid: int) -> bool:
        """Return whether a signal or a debugger holds this process."""
        return processes.is_process_stopped(pid)

    def has_ended(self, process: str) -> bool:
        """Return whether a process of this machine is gone for certain."""
        return this_machine.has_ended(process)

    def own_pid(self) -> int:
        """Return the number of the agent's process."""
        return os.getpid()

    def build_locks(self, node: str, *, say: Callable[[str], object]) -> BuildLocks | None:
        """Return the locks of compilations that killed workers may leave."""
        return BuildLocks.here(node, say=say)

    async def end_left(
        self, prefix: str, *, is_over: bool, has_store: bool, within_s: float
    ) -> None:
        """End what a lab has left on this machine, because this agent's life in it is over.

        Args:
            prefix: The lab's.
            is_over: Whether the lab is over for certain; else others here may still be in it.
            has_store: Whether a member of the lab's own store may run here.
            within_s: For others to leave a store whose keeper was killed.
        """
        if is_over:
            await asyncio.to_thread(end_stopped, prefix)
            if has_store:
                processes.release_store(prefix)
        await asyncio.to_thread(end_left_stores, within_s, prefix if is_over else "")
