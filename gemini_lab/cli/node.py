"""`gemini-lab node`: make this machine a node of a lab, for as long as the lab lasts."""

import argparse
import asyncio
import os
import re
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, MissingError, shown
from gemini_lab.launch.boot import agent_environment
from gemini_lab.launch.join import (
    WAIT_S,
    check_name,
    find_lab,
    find_token,
    prefix_of,
    say,
    take_name,
)
from gemini_lab.launch.provider import TOKEN_VARIABLE
from gemini_lab.limits import require_text, seconds
from gemini_lab.node.agent import run_agent
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import AgentConfig, AgentUp, why_blind

LONGEST_MACHINE: Final = 200
"""Characters of a machine's id."""
DESCRIPTION = f"""Make this machine a node of a lab, for as long as the lab lasts. Whatever starts
one process a machine starts it: srun, a pod, a launch template, ssh. The lab's token comes from
{TOKEN_VARIABLE} or a file; etcd's user, password and TLS files from the variables that etcdctl
reads."""


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab node`."""
    options = argparse.ArgumentParser(prog="gemini-lab node", description=DESCRIPTION)
    options.add_argument("--etcd", required=True, metavar="HOST:PORT[,...]", help="the lab's etcd")
    options.add_argument(
        "--lab", required=True, help="the lab's name, as in `gemini-lab run --join LAB`"
    )
    options.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the lab's token, mode 600 (default: the variable GEMINI_LAB_TOKEN)",
    )
    options.add_argument(
        "--machine",
        default=os.environ.get("SLURM_JOB_ID", ""),
        metavar="ID",
        help="this machine's id at its provider, such as an EC2 instance's (default: the Slurm "
        "job's)",
    )
    options.add_argument(
        "--wait",
        type=seconds,
        default=WAIT_S,
        metavar="S",
        help="seconds to wait for the lab (default: %(default).0f)",
    )
    options.add_argument(
        "--notice",
        type=seconds,
        default=0.0,
        metavar="S",
        help="seconds to stay on SIGTERM, while this node's ranks move to another machine "
        "(default: %(default).0f)",
    )
    return options


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab node` until the lab ends."""
    options = parser().parse_args(arguments)
    check_name(options.lab)
    require_text("--machine", options.machine, most=LONGEST_MACHINE)
    first = place_from(os.environ.get("SLURM_PROCID", "0"))
    token = find_token(options.token_file)
    address = EtcdAddress.parse(options.etcd)
    store = SealedStore(address, prefix_of(options.lab), token=token)
    record = find_lab(store, options.lab, wait_s=options.wait, tell=say)
    if (reason := why_blind(record.detached)) is not None:
        raise MissingError(reason)
    store.identity = record.identity
    name = take_name(store, socket.gethostname(), machine=options.machine, first=first)
    store.close()
    config = AgentConfig(
        name=name,
        token=token,
        etcd=address,
        prefix=prefix_of(options.lab),
        lab=record,
        notice_s=options.notice,
    )
    _adopt_environment(record.threads)
    is_over = asyncio.run(run_agent(config, partial(_is_up, lab=options.lab)))
    lab = f"the lab {options.lab!r}"
    say(f"{lab} has ended" if is_over else f"{name} has left {lab}, which goes on without it")
    return 0


def place_from(text: str) -> int:
    """Return the number that Slurm gives this process, by which nodes are named.

    Raises:
        ConfigError: It is none.
    """
    if not re.fullmatch("[0-9]{1,6}", text):
        raise ConfigError(f"SLURM_PROCID is {shown(text)}, and not a process's number; unset it")
    return int(text)


def _is_up(up: AgentUp, *, lab: str) -> None:
    say(f"{up.name} of the lab {lab!r} listens on {up.address}")


def _adopt_environment(threads: int | None) -> None:
    """Remove the launcher's variables, and the token, before workers inherit them."""
    clean = agent_environment(threads)
    clean.pop(TOKEN_VARIABLE, None)
    os.environ.clear()
    os.environ.update(clean)
