"""The processes of a run, found from outside by a mark in their environment."""

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "GEMINI_LAB_CHAOS"
"""The variable in the environment of all that a campaign starts."""


@dataclass(slots=True, kw_only=True)
class NodeProcesses:
    """The processes of one node."""

    agent: psutil.Process  # owns the node's memory, and the session of all the others
    # The parent from which workers are forked.
    warm: list[psutil.Process] = field(default_factory=list)
    workers: list[psutil.Process] = field(default_factory=list)  # those that train
    bulk: list[psutil.Process] = field(default_factory=list)  # those that touch every byte

    @property
    def all(self) -> list[psutil.Process]:
        return [self.agent, *self.warm, *self.workers, *self.bulk]


def marked(mark: str) -> list[psutil.Process]:
    """Return all living processes with this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def nodes_of(mark: str) -> dict[str, NodeProcesses]:
    """Return the nodes that have an agent, by name."""
    sessions: dict[int, list[psutil.Process]] = {}
    for process in marked(mark):
        with contextlib.suppress(OSError):
            sessions.setdefault(os.getsid(process.pid), []).append(process)
    found = {}
    for leader, processes in sessions.items():
        with contextlib.suppress(OSError, psutil.Error):
            if (agent := next((p for p in processes if p.pid == leader), None)) is None:
                continue
            if "gemini_lab.node.agent" in agent.cmdline():
                # What an agent says goes to a file of its own, which has its name.
                name = Path(f"/proc/{agent.pid}/fd/2").readlink().stem
                found[name] = _sorted(agent, processes)
    return found


def etcd_of(mark: str) -> list[psutil.Process]:
    """Return the etcd server, without the process that keeps it."""
    return [process for process in marked(mark) if _name(process) == "etcd"]


def send(processes: Iterable[psutil.Process], signal_number: signal.Signals) -> int:
    """Send a signal to those that still live; how many those were."""
    count = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal_number)
            count += 1
    return count


def _sorted(agent: psutil.Process, processes: list[psutil.Process]) -> NodeProcesses:
    node = NodeProcesses(agent=agent)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "gemini_lab.node.bulk_process" in command:
                node.bulk.append(process)
            elif "gemini_lab.node.warm" in command and process.ppid() == agent.pid:
                node.warm.append(process)
            elif process.pid != agent.pid:
                node.workers.append(process)
    return node


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
