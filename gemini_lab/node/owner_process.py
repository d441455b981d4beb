"""The owner of a detached lab: a process beside the root agent, and nowhere else."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from gemini_lab.job import python_command
from gemini_lab.node.config import AgentConfig
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.membership import RootRecord

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


class OwnerStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an owner is told at its start, as one line of JSON on its standard input.

    It owns the lab for as long as that stays open, and as `root` is the root agent's record.
    """

    token: str
    etcd: EtcdAddress
    prefix: str
    identity: str
    root: str


async def run_owner(config: AgentConfig, root: RootRecord, note: Callable[[str], None]) -> None:
    """Run the lab's owner until it has ended the lab; one that fails is started again.

    Cancelled, it ends the owner at once: it writes nothing more.
    """
    assert config.detached is not None
    start = OwnerStart(
        token=config.token,
        etcd=config.etcd,
        prefix=config.prefix,
        identity=config.identity,
        root=root.to_text(),
    )
    pause_s = FIRST_PAUSE_S
    while True:
        process = await asyncio.create_subprocess_exec(
            *python_command(config.detached.owner),
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
