"""The acting half of the injector: an agent does to its own node what a failure does.

Nothing is pretended: a crash is a SIGKILL, a hang a SIGSTOP, a flipped bit is flipped, a link that
is cut is a socket that is shut.
"""

import os
import random
import signal
from typing import Protocol

from gemini_lab.errors import GeminiError
from gemini_lab.injector.orders import Action
from gemini_lab.log.events import Injected
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.freeze_guard import stand_guard
from gemini_lab.node.host import WorkerHost
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.memory_manager import MemoryManager, ShardWriter
from gemini_lab.node.start_config import AgentConfig
from gemini_lab.recovery.messages import CutLinks, Flawed


class Victim(Protocol):
    """The part of a node that can be struck; an agent's supervisor is one."""

    name: str
    lab: LabLink
    host: WorkerHost
    bulk: BulkProcesses
    memory: MemoryManager
    writer: ShardWriter
    root: RootLink

    def flaw(self, order: Flawed) -> list[int]:
        """Make its workers compute wrong; return their ranks."""


async def strike(node: Victim, action: Action, config: AgentConfig) -> None:
    """Do `action` to `node`, and say so; what cannot be done is a note.

    Args:
        node: Its own.
        action: What is to be done.
        config: Of the node's agent.
    """
    match action.kind:
        case "worker_crash":
            _signal_worker(node, action, signal.SIGKILL)
        case "worker_hang":
            _signal_worker(node, action, signal.SIGSTOP)
        case "node_loss":
            await _signal_node(node, action, signal.SIGKILL)
        case "node_freeze":
            stand_guard(os.getpid(), config.prefix, config.etcd)
            await _signal_node(node, action, signal.SIGSTOP)
        case "link_cut" if action.others:
            _cut_workers(node, action)
        case "link_cut":
            node.root.cut()
            _said(node, action)
        case "bit_flip":
            await _flip_bit(node, action)
        case "wrong_sums":
            _compute_wrong(node, action)
        case "store_full":
            node.writer.is_full = True
            _said(node, action)


async def _signal_node(node: Victim, action: Action, signal_number: int) -> None:
    # The agent comes last: it is what says so, and a stopped one sends no more signals.
    _said(node, action)
    await node.lab.drain()
    node.bulk.signal_all(signal_number)
    node.host.signal_all(signal_number)
    os.kill(os.getpid(), signal_number)


def _signal_worker(node: Victim, action: Action, signal_number: int) -> None:
    ranks = sorted(node.host.workers) if action.rank is None else [action.rank]
    pid = node.host.signal(ranks[0], signal_number) if ranks else None
    if pid is None:
        node.lab.note(f"{action.kind}: no such worker runs on {node.name}")
    else:
        _said(node, action, rank=ranks[0], pid=pid)


async def _flip_bit(node: Victim, action: Action) -> None:
    bit = random.Random(action.seed).getrandbits(52)
    try:
        hit = await node.memory.flip_bit(shard=action.shard, bit=bit)
    except GeminiError as error:
        node.lab.note(f"no bit was flipped: {error}")
    else:
        _said(node, action, shard=hit.shard, version=hit.version, byte=hit.byte)


def _compute_wrong(node: Victim, action: Action) -> None:
    if action.where is None:
        return
    ranks = node.flaw(Flawed(where=action.where, is_lasting=action.lasts, seed=action.seed))
    if ranks:
        _said(node, action, rank=ranks[0])
    else:
        node.lab.note(f"{action.kind}: no worker runs on {node.name}")


def _cut_workers(node: Victim, action: Action) -> None:
    order = CutLinks(ranks=[*action.others])
    told = [worker.channel.send(order) for worker in node.host.workers.values()]
    if any(told):
        _said(node, action)
    else:
        node.lab.note(f"{action.kind}: no worker runs on {node.name}")


def _said(node: Victim, action: Action, **more: int) -> None:
    node.lab.emit(Injected(failure=action.kind, **more))
