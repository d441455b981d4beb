"""A node's time as root agent: the root's shell, and the owner of a detached lab beside it."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from gemini_lab.job import python_command
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.lab_link import LabLink
from gemini_lab.node.membership import Membership, RootRecord
from gemini_lab.node.root_shell import RootShell
from gemini_lab.node.start_config import AgentConfig, OwnerStart
from gemini_lab.node.tasks import Tasks
from gemini_lab.recovery.messages import NeedNodes

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


class RootRole:
    """Whether this node is the root agent, and all that runs only while it is."""

    def __init__(
        self,
        *,
        config: AgentConfig,  # the agent's
        lab: LabLink,  # the way to the log, and to who brings machines
        tasks: Tasks,  # where it runs
        machine: AgentMachine,  # where its agent runs
        # Called when it begins and ends: what is read of the store differs.
        on_change: Callable[[], None],
    ) -> None:
        self.shell: RootShell | None = None
        self._config, self._lab, self._tasks = config, lab, tasks
        self._machine, self._on_change = machine, on_change
        self._shell_task: asyncio.Task[None] | None = None
        self._owner_task: asyncio.Task[None] | None = None

    def begin(self, membership: Membership, record: RootRecord) -> None:
        """Act as root agent from now on; `record` stands in the store."""
        lab = self._lab
        self.shell = RootShell(
            membership=membership,
            record=record,
            token=self._config.token,
            machine=self._machine,
            emit=lambda event: lab.emit(event, term=record.term),
            request_nodes=lambda wanted, reason: lab.say(NeedNodes(wanted=wanted, reason=reason)),
        )
        self._shell_task = self._tasks.begin(self._act(self.shell))
        if self._config.lab.detached is not None:
            self._owner_task = self._tasks.begin(run_owner(self._config, record, note=lab.note))
        self._on_change()

    def resign(self) -> None:
        """Resign as root agent."""
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


async def run_owner(config: AgentConfig, root: RootRecord, note: Callable[[str], None]) -> None:
    """Run the lab's owner until it has ended the lab; one that fails is started again.

    Cancelled, it ends the owner at once: it writes nothing more.
    """
    assert config.lab.detached is not None
    start = OwnerStart(
        token=config.token,
        etcd=config.etcd,
        prefix=config.prefix,
        identity=config.lab.identity,
        root=root.to_text(),
    )
    pause_s = FIRST_PAUSE_S
    while True:
        process = await asyncio.create_subprocess_exec(
            *python_command(config.lab.detached.owner),
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if code == 0:
            return
        note(f"the lab's owner on {root.name} ended (exit code {code}) and is started again")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
