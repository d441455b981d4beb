"""The acting half: an agent does to its own node what a failure does. Nothing is pretended."""

import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gemini_lab.errors import GeminiError

if TYPE_CHECKING:
    from gemini_lab.node.agent import Agent


async def strike(agent: "Agent", failure: dict[str, Any]) -> None:
    """Make `failure` happen on `agent`'s node.

    Args:
        agent: The agent of the node that is struck.
        failure: `kind` and what it needs: `worker_crash` and `worker_hang` (`rank`, or the node's
            first worker), `node_loss`, `node_freeze`, `link_cut`, `bit_flip` (`shard`, `seed`),
            `store_full`.
    """
    match failure["kind"]:
        case "worker_crash":
            _signal(agent, failure, signal.SIGKILL)
        case "worker_hang":
            _signal(agent, failure, signal.SIGSTOP)
        case "node_loss":
            _said(agent, failure, {})
            if agent.lab is not None:
                await agent.lab.drain()
            agent.host.signal_all(signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case "node_freeze":
            _said(agent, failure, {})
            if agent.lab is not None:
                await agent.lab.drain()
            agent.host.signal_all(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "link_cut":
            agent.cut_root_link()
            _said(agent, failure, {})
        case "bit_flip":
            bit = random.Random(failure.get("seed")).getrandbits(62)
            try:
                hit = agent.keeper.flip_bit(shard=failure.get("shard"), bit=bit)
            except GeminiError as error:
                agent.emit("note", text=f"no bit was flipped: {error}")
            else:
                _said(agent, failure, hit)
        case "store_full":
            agent.store_is_full = True
            _said(agent, failure, {})


def _signal(agent: "Agent", failure: dict[str, Any], signal_number: int) -> None:
    rank = failure.get("rank")
    ranks = sorted(agent.host.workers) if rank is None else [rank]
    pid = agent.host.signal(ranks[0], signal_number) if ranks else None
    if pid is None:
        agent.emit("note", text=f"{failure['kind']}: no such worker runs on {agent.config.name}")
    else:
        _said(agent, failure, {"rank": ranks[0], "pid": pid})


@contextmanager
def full_store(*, is_full: bool) -> Iterator[None]:
    """While it lasts no file of this process can grow: the kernel refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _said(agent: "Agent", failure: dict[str, Any], more: dict[str, Any]) -> None:
    target = {"name": agent.config.name, **more}
    agent.emit("injected", failure=failure, target=target)
