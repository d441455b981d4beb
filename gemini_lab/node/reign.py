"""A node's time as root agent: the root's shell, and the owner of a detached lab beside it."""

import asyncio
from collections.abc import Callable

from gemini_lab.node.config import AgentConfig
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.lab_link import LabLink
from gemini_lab.node.membership import Membership, RootRecord
from gemini_lab.node.owner_process import run_owner
from gemini_lab.node.root_shell import RootShell
from gemini_lab.node.tasks import Tasks
from gemini_lab.recovery.messages import NeedNodes


class Reign:
    """Whether this node is the root agent, and all that runs only while it is.

    Args:
        config: The agent's.
        lab: The way to the log, and to who brings machines.
        tasks: Where it runs.
        on_change: Called when it begins and ends: what is read of the store differs.
    """

    def __init__(
        self, *, config: AgentConfig, lab: LabLink, tasks: Tasks, on_change: Callable[[], None]
    ) -> None:
        self.shell: RootShell | None = None
        self._config, self._lab, self._tasks = config, lab, tasks
        self._on_change = on_change
        self._shell_task: asyncio.Task[None] | None = None
        self._owner_task: asyncio.Task[None] | None = None

    def begin(self, membership: Membership, record: RootRecord) -> None:
        """Act as root agent from now on; `record` stands in the store."""
        lab = self._lab
        self.shell = RootShell(
            membership=membership,
            record=record,
            token=self._config.token,
            emit=lambda event: lab.emit(event, term=record.term),
            request_nodes=lambda wanted, reason: lab.say(NeedNodes(wanted=wanted, reason=reason)),
        )
        self._shell_task = self._tasks.begin(self._act(self.shell))
        if self._config.detached is not None:
            self._owner_task = self._tasks.begin(run_owner(self._config, record, note=lab.note))
        self._on_change()

    def resign(self) -> None:
        """Be root agent no more."""
        if self._shell_task is not None:
            self._shell_task.cancel()
        self.shell = self._shell_task = None
        self._end_owner()

    async def _act(self, shell: RootShell) -> None:
        try:
            await shell.run()
        except StoreUnavailableError:
            pass  # another poll finds out who is root
        finally:
            # A shell that was replaced meanwhile must not end its successor.
            if self.shell is shell:
                self.shell = None
                self._end_owner()
                self._on_change()

    def _end_owner(self) -> None:
        if self._owner_task is not None:
            self._owner_task.cancel()
        self._owner_task = None
