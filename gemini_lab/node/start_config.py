"""The messages between an agent and its starter."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.limits import read_bytes
from gemini_lab.node.etcd_address import EtcdAddress


class Detached(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lab that has no owner elsewhere: one runs beside its root agent, wherever that is."""

    owner: str  # the module that is run there with `python -m`
    folder: str  # the run's, on a file system that every node sees: the log there outlives any node
    identity: str  # random; it stands in the folder, too


class LabRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lab's description in the store, under the key `lab`, which stands as long as the lab.

    Agents that join by themselves read it there; others get it with their configuration. No secret
    is in it.
    """

    identity: str  # random: by it an owner knows its own record, and what is stored is of this lab
    machines: int  # nodes and standbys that the lab begins with
    lease_s: float  # A node that gives no sign of life for this long counts as lost
    warm: bool  # whether workers are forked from a parent that has imported everything
    threads: int | None  # for each worker's computations; `None` leaves it to the environment
    # How the lab lives without an owner elsewhere; `None`: it ends with its owner.
    detached: Detached | None = None


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's configuration, sent to it as one line of JSON."""

    name: str  # the node's
    token: str  # the lab's secret, by which its processes know one another
    etcd: EtcdAddress  # where the lab's store is
    prefix: str  # of all the lab's keys there
    lab: LabRecord  # the lab's description
    # How long the agent stays after SIGTERM, unless its ranks have moved or the lab ends before.
    notice_s: float = 0.0


LAB_KEY: Final = "lab"
OVER_KEY: Final = "over"
"""That the lab is over, which is said to etcd's keepers alone."""
NONE_COME_KEY: Final = "none_come"
LAB_FILE: Final = "lab-identity"
"""In a detached run's folder: the run's random identity, which shows who sees this very folder."""


def why_blind(detached: Detached | None) -> str | None:
    """Return why this machine cannot keep the log of a detached lab; `None` if it can."""
    if detached is None:
        return None
    with suppress(OSError):
        if read_bytes(Path(detached.folder) / LAB_FILE) == detached.identity.encode():
            return None
    return (
        f"{socket.gethostname()} does not see the run's folder {detached.folder}: the log of a "
        "detached run has to outlive any machine; name a folder that all of them share (--folder)"
    )


class AgentUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="up"):
    """An agent's answer: it listens on `address`, on the machine of this identity."""

    name: str
    address: str
    pid: int
    machine: str = ""


class AgentDown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="down"):
    """A starter's report on an agent that did not come up."""

    error: str


class SharedMachine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="shared"
):
    """No agent was started: these hosts are one machine."""

    hosts: list[str]


class BootOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order to the start-up program: an agent for each of its ranks."""

    agents: list[AgentConfig]  # their configurations; none where nothing is to be started
    log_folder: str  # where their logs go
    hosts: list[str] = []  # the host of each rank, as it was called; none on this machine alone
    # The machines that have an agent already, and how their hosts were called.
    taken: dict[str, str] = {}


class OwnerStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An owner's configuration, sent to it as one line of JSON on its standard input.

    It owns the lab for as long as that stays open, and as `root` is the root agent's record.
    """

    token: str
    etcd: EtcdAddress
    prefix: str
    identity: str
    root: str
