"""Keeps one member of an etcd running: one that dies or hangs is started again on its data.

Run as `python -m gemini_lab.launch.etcd_keeper PREFIX FD MEMBER`, with the prefix of its lab's
keys, the descriptor that holds the folder, and a `Member` as JSON, it keeps etcd as its child, ends
it in the end, and removes its folder. The end comes when standard input closes: that happens when
whoever started it ends, however that is. If it was told of a lab before (`Stay`), it comes as
`LabEnd` says; an agent tells by SIGTERM. If the keeper is killed, etcd lives on, and
`node.orphan_etcd` says who ends it.
"""

import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from gemini_lab.job import python_command
from gemini_lab.launch.etcd_server import Member
from gemini_lab.node.config import LAB_KEY, OVER_KEY
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.freeze_guard import end_stopped
from gemini_lab.node.membership import NODES
from gemini_lab.node.orphan_etcd import LAB
from gemini_lab.node.processes import AGENT, STORE_KEEPER, is_alive, processes_of, reap

KEEPER_LOG: Final = "keeper.log"
"""What a keeper says that fails, in its member's folder."""
LOOK_S: Final = 0.5
HEALTH_S: Final = 3.0
HUNG_S: Final = 30.0  # without an answer for so long, it is started again
AGENTS_LOOK_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0  # between starts of one that ends at once, as one that was replaced


class Stay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a keeper is told: live on as long as a lab.

    Attributes:
        address: The whole etcd's.
        has_begun: Whether the lab's key stands already; else it is to come.
    """

    address: EtcdAddress
    has_begun: bool


def start_keeper(member: Member, prefix: str, held: int) -> subprocess.Popen[bytes]:
    """A keeper of this member, in a session of its own; its input is a pipe.

    Args:
        member: What it keeps.
        prefix: Of its lab's keys.
        held: The descriptor that holds the folder; it is the keeper's from here on.
    """
    folder = Path(member.folder)
    try:
        (folder / LAB).write_text(prefix, encoding="utf-8")
        with (folder / KEEPER_LOG).open("wb") as log:  # a launcher's stderr may be waited for
            return subprocess.Popen(
                python_command(STORE_KEEPER, prefix, held, msgspec.json.encode(member).decode()),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                pass_fds=[held],
            )
    finally:
        os.close(held)


def leave_keeper(keeper: "subprocess.Popen[bytes]", stay: Stay) -> None:
    """Let a keeper outlive this process, for as long as its lab lasts."""
    assert keeper.stdin is not None
    keeper.stdin.write(msgspec.json.encode(stay))
    keeper.stdin.close()
    reap(keeper)  # this process may outlive the lab: a notebook does


def keep(member: Member, prefix: str, hung_s: float = HUNG_S, *, held: Sequence[int] = ()) -> None:
    """Run etcd until standard input closes, or until the lab is over of which that told."""
    told: list[int] = []  # an event's lock would be taken twice where two signals come at once
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    server = _Server(member, hung_s, held)
    said, is_open, lab = b"", True, None
    while is_open or (lab is not None and lab.lasts(is_over=bool(told))):
        server.look()
        if is_open:
            more = _read(0, within_s=LOOK_S)
            said, is_open = said + (more or b""), more != b""
            if said and not is_open:
                lab = _Lab(msgspec.json.decode(said, type=Stay), prefix)
        else:
            time.sleep(LOOK_S)
    server.end()
    shutil.rmtree(member.folder, ignore_errors=True)
    end_stopped(prefix)


class _Server:
    """A member that runs, or is to run again."""

    def __init__(self, member: Member, hung_s: float, held: Sequence[int]) -> None:
        self._member, self._hung_s, self._held = member, hung_s, held
        self._pause_s = 0.0
        self._etcd = member.start(held)
        self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def look(self) -> None:
        """Start it again if it is over, or says nothing for too long."""
        now = time.monotonic()
        if now - self._asked_s > HEALTH_S:
            self._asked_s = now
            self._member.bound_log()
            if self._member.answers():
                self._heard_s, self._pause_s = time.monotonic(), 0.0
        if now - self._heard_s > self._hung_s:
            self._etcd.kill()
        if self._etcd.poll() is not None and now - self._began_s >= self._pause_s:
            self._pause_s = min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
            with suppress(OSError):  # it has no program, disk or memory now, and is tried again
                self._etcd = self._member.start(self._held)
            self._began_s = self._heard_s = self._asked_s = time.monotonic()

    def end(self) -> None:
        self._etcd.kill()
        self._etcd.wait()


class _Lab:
    """A lab, as its agents here and its etcd tell of it."""

    def __init__(self, stay: Stay, prefix: str) -> None:
        self._prefix = prefix
        self._store = EtcdStore(stay.address, prefix)  # each failed call tries the next member
        self._end = LabEnd(time.monotonic(), has_begun=stay.has_begun)
        self._agents: list[psutil.Process] = []
        self._looked_s = -AGENTS_LOOK_S

    def lasts(self, *, is_over: bool) -> bool:
        """Whether the keeper is to stay.

        Args:
            is_over: Whether an agent has said that the lab is over.
        """
        are_here = self._are_agents_here()
        names = None if are_here or is_over else self._names()
        now_s = time.monotonic()
        return not self._end.has_come(now_s, are_agents_here=are_here, is_told=is_over, names=names)

    def _names(self) -> set[str] | None:
        try:
            return self._store.names()
        except StoreUnavailableError:
            return None

    def _are_agents_here(self) -> bool:
        """Whether one of the lab's agents runs on this machine."""
        self._agents = [agent for agent in self._agents if is_alive(agent)]
        if not self._agents and time.monotonic() >= self._looked_s + AGENTS_LOOK_S:
            self._looked_s = time.monotonic()
            self._agents = [one for one in processes_of(AGENT, self._prefix) if is_alive(one)]
        return bool(self._agents)


def _read(fd: int, *, within_s: float) -> bytes | None:
    """What comes through a pipe within a time; `b""`: its other end is closed, `None`: nothing."""
    readable, _, _ = select.select([fd], [], [], within_s)
    if not readable:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


DEAF_S: Final = 30.0
FORSAKEN_S: Final = 3600.0  # nobody can go on with a detached run whose nodes are all lost
BEGIN_S: Final = 120.0  # for a lab to write its key
LEAVE_S: Final = (
    3.0  # for the others, which look as often, to see the end too, and to take keys out
)
AGENTS_END_S: Final = 30.0  # for agents here to end, when one of them says that the lab is over


class LabEnd:
    """What a keeper knows of its lab, told a few times a second.

    Args:
        now_s: Of a clock that nobody sets, as all its times.
        has_begun: Whether the lab's key stands already; else it is to come.
    """

    def __init__(self, now_s: float, *, has_begun: bool) -> None:
        self._has_begun = has_begun
        self._seen_s = self._nodes_s = now_s
        self._over_s = math.inf

    def has_come(
        self,
        now_s: float,
        *,
        are_agents_here: bool,
        is_told: bool = False,
        names: AbstractSet[str] | None = None,
    ) -> bool:
        """Whether the keeper is to end.

        Args:
            now_s: The time.
            are_agents_here: Whether an agent of the lab runs on this machine.
            is_told: Whether an agent has said that the lab is over.
            names: What the lab's part of the store has; `None`: it was not asked, or is away.
        """
        if is_told or (not are_agents_here and names is not None and self._is_over(now_s, names)):
            self._over_s = min(self._over_s, now_s)
        if now_s >= self._over_s:
            return now_s >= self._over_s + (AGENTS_END_S if are_agents_here else LEAVE_S)
        if are_agents_here:
            self._seen_s = self._nodes_s = now_s
            self._has_begun = True
        return now_s >= self._seen_s + (DEAF_S if self._has_begun else BEGIN_S)

    def _is_over(self, now_s: float, names: AbstractSet[str]) -> bool:
        """Whether the store says so; else what it says is noted."""
        if any(key.startswith(NODES) for key in names):
            self._nodes_s = now_s
        if LAB_KEY in names and now_s < self._nodes_s + FORSAKEN_S:
            self._seen_s, self._has_begun = now_s, True
            return OVER_KEY in names
        return self._has_begun or OVER_KEY in names


if __name__ == "__main__":
    keep(msgspec.json.decode(sys.argv[3], type=Member), prefix=sys.argv[1], held=[int(sys.argv[2])])
