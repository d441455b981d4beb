"""How a campaign breaks things, from outside of the run: signals, the tier's files, orders."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.lab.control import ask
from gemini_lab.log.file import LOG_FILE
from gemini_lab.recovery.messages import InjectFailure
from gemini_lab.recovery.requests import DrainNode, ResizeRun, RewindRun
from gemini_lab_bench.chaos.faults import Fault
from gemini_lab_bench.chaos.hands import Hands
from gemini_lab_bench.chaos.kinds import KINDS
from gemini_lab_bench.chaos.scene import EDITED, OWN_PART, Scene
from gemini_lab_bench.chaos.sockets import flap, refuse
from gemini_lab_bench.chaos.told import LogSoFar
from gemini_lab_bench.chaos.victims import NodeProcesses, etcd_of, marked, nodes_of, send

Mend = Callable[[], object]
Way = Callable[[Fault], tuple[str, Mend | None]]
FEWEST_TO_TELL: Final = 3
SIGNALS: Final = {
    "kill": signal.SIGKILL,
    "crash": signal.SIGKILL,
    "loss": signal.SIGKILL,
    "hang": signal.SIGSTOP,
    "stop": signal.SIGSTOP,
    "return": signal.SIGSTOP,
}
"""What the last word of a kind's name does to processes."""
LIMITS: Final = ("files", "memory", "shm")
"""What of an agent can be exhausted, by that word."""


class Strikes:
    """Breaks what is to be broken of one run."""

    def __init__(
        self,
        *,
        mark: str,  # of the run's processes
        folder: Path,  # the run's
        owner: subprocess.Popen[bytes],  # the process that started it
        told: LogSoFar,  # what its log says
        scene: Scene,  # what stands around it
        rack_of: Mapping[str, str] = MappingProxyType({}),  # the racks of its nodes, by name
        nodes: int = 0,  # how many it is to have
    ) -> None:
        self._mark, self._folder = mark, folder
        self._told, self._scene, self._rack_of = told, scene, rack_of
        self._nodes = nodes
        self._owner = psutil.Process(owner.pid)
        self._hands = Hands(folder, self._owner, os.environ)
        self.edits: list[list[float]] = []  # from when to when the script was another one
        self._wrong: set[str] = set()  # the nodes that compute wrong
        self._ways: dict[str, Way] = {
            "tier": self._break_tier,
            "log_full": self._fill_log,
            "clock_step": self._set_clock,
            "link_cut": self._order,
            "worker_cut": self._order,
            "link_flap": self._break_sockets,
            "port_refuse": self._break_sockets,
            "bit_flip": self._order,
            "node_drain": self._drain,
            "wrong_sums": self._compute_wrong,
            "resize": self._resize,
            "rewind": self._rewind,
            "hands": self._ask,
            "script_edit": self._edit,
        }

    def strike(self, fault: Fault) -> tuple[str, Mend | None]:
        """Make a fault happen; what was hit, and what mends it again.

        Raises:
            ConfigError: What it would break is not there now.
        """
        what, _, how = fault.kind.partition("_")
        if (way := self._ways.get(fault.kind) or self._ways.get(what)) is not None:
            return way(fault)
        if how in LIMITS:
            return self._exhaust(fault, how)
        if KINDS[fault.kind].needs == "network":
            return self._break_link(fault)
        hit, processes = self._processes(fault, what)
        if not send(processes, SIGNALS[how.rpartition("_")[2]]):
            raise ConfigError(f"{hit} has no such process now")
        mends = KINDS[fault.kind].lasts_s is not None
        return hit, (lambda: send(processes, signal.SIGCONT)) if mends else None

    def rest(self) -> None:
        """Wait for what people typed, and take it that the script is no other one any more."""
        self._hands.rest()
        for edit in self.edits:
            edit[1] = min(edit[1], time.time())

    @property
    def said(self) -> list[str]:
        return self._hands.found

    def _all(self) -> list[psutil.Process]:
        return marked(self._mark)

    def _processes(self, fault: Fault, what: str) -> tuple[str, list[psutil.Process]]:
        """Return the name of what is hit, and the processes that get a signal."""
        if what == "etcd":
            return "etcd", etcd_of(self._mark)
        if what == "owner":
            return "the owner", [self._owner]
        nodes = nodes_of(self._mark)
        names = self._names(fault, nodes)
        found = [nodes[name] for name in names if name in nodes]
        hit = " and ".join(names) or "nobody"
        return hit, [process for node in found for process in _part(node, what)]

    def _names(self, fault: Fault, there: Collection[str]) -> list[str]:
        names: Sequence[str | None]
        match fault.place:
            case "root":
                names = [self._told.root]
            case "standby":
                names = [name for name in self._told.standbys if name in there][:1]
            case "pair":
                names = self._told.keepers_of(fault.rank)
            case "rack":
                rack = self._rack_of.get(self._told.node_of(fault.rank) or "", "")
                names = [name for name in there if rack and self._rack_of.get(name) == rack]
            case "all":
                names = [*there]
            case _:
                names = [self._told.node_of(fault.rank)]
        return [name for name in names if name]

    def _order(self, fault: Fault) -> tuple[str, None]:
        failure = fault.failure(ranks=self._nodes)
        return ask(self._folder, InjectFailure(failure=failure.to_json())), None

    def _drain(self, fault: Fault) -> tuple[str, Mend]:
        """Give a node notice, and take its machine when that is over."""
        name, _ = self._agent(fault)
        ask(self._folder, DrainNode(node=name))

        def take() -> None:
            if (node := nodes_of(self._mark).get(name)) is not None:
                send(node.all, signal.SIGKILL)

        return name, take

    def _compute_wrong(self, fault: Fault) -> tuple[str, None]:
        """Make a node compute wrong for good.

        Raises:
            ConfigError: It cannot be now.
        """
        name, _ = self._agent(fault)
        named, there = self._told.named_wrong, nodes_of(self._mark)
        if reason := why_not_wrong(self._wrong, named=named, there=there, nodes=self._nodes):
            raise ConfigError(reason)
        self._wrong.add(name)
        return self._order(fault)

    def _rewind(self, fault: Fault) -> tuple[str, None]:
        steps = 1 + fault.bit % 2  # memory has two versions
        return ask(self._folder, RewindRun(steps=steps, skip=False)) or f"{steps} iterations", None

    def _ask(self, fault: Fault) -> tuple[str, Mend]:
        return self._hands.ask(fault.bit), lambda: None

    def _fill_log(self, _fault: Fault) -> tuple[str, Mend]:
        """Keep the owner's files from growing, as on a full disk."""
        return "the log", fill_log(self._owner, self._folder / LOG_FILE, self._all)

    def _resize(self, _fault: Fault) -> tuple[str, Mend]:
        """Ask for a node less, and later for as many as before."""
        hit = ask(self._folder, ResizeRun(nodes=self._nodes - 1))

        def back() -> None:
            with suppress(GeminiError):  # it may be over
                ask(self._folder, ResizeRun(nodes=self._nodes))

        return hit or f"{self._nodes - 1} nodes", back

    def _edit(self, _fault: Fault) -> tuple[str, Mend]:
        """Replace the script's own module by another one, which computes the same."""
        self._scene.edit(EDITED)
        edit = [time.time(), inf]
        self.edits.append(edit)

        def back() -> None:
            edit[1] = time.time()
            self._scene.edit(OWN_PART)

        return "the script's own part", back

    def _exhaust(self, fault: Fault, how: str) -> tuple[str, Mend]:
        names = self._names(fault, nodes := nodes_of(self._mark))
        if not names or names[0] not in nodes:
            raise ConfigError(f"{names[0] if names else 'nobody'} has no such process now")
        return names[0], exhaust(nodes[names[0]].agent, how, self._all)

    def _break_sockets(self, fault: Fault) -> tuple[str, Mend]:
        name, pid = self._agent(fault)
        if fault.kind == "port_refuse":
            return name, refuse(pid)

        def others() -> list[int]:
            agents = [node.agent.pid for node in nodes_of(self._mark).values()]
            return [agent for agent in agents if agent != pid]

        return name, flap(pid, others)

    def _agent(self, fault: Fault) -> tuple[str, int]:
        """Return the node that a fault strikes, and the process that it is known by.

        Raises:
            ConfigError: It is not there now.
        """
        name, nodes = self._told.node_of(fault.rank), nodes_of(self._mark)
        if name not in nodes:
            raise ConfigError(f"{name or 'nobody'} has no such process now")
        return name, nodes[name].agent.pid

    def _break_link(self, fault: Fault) -> tuple[str, Mend]:
        if self._scene.hosts is None:
            raise ConfigError("the nodes of this run have no networks of their own")
        hosts, (name, pid) = self._scene.hosts, self._agent(fault)
        host = hosts.strike(fault, pid)
        return name, lambda: hosts.mend(host)

    def _set_clock(self, fault: Fault) -> tuple[str, None]:
        if self._scene.clocks is None:
            raise ConfigError("the nodes of this run have no clocks of their own")
        name, pid = self._agent(fault)
        self._scene.clocks.step(pid, fault.step_s)
        return f"{name}, by {fault.step_s:+} s", None

    def _break_tier(self, fault: Fault) -> tuple[str, Mend | None]:
        how = fault.kind.removeprefix("tier_")
        if KINDS[fault.kind].needs == "store":
            if (store := self._scene.store) is None:
                raise ConfigError("no store that can be broken stands before the tier of this run")
            store.strike(how, fault.bit)
            return "the store", lambda: store.mend(how)
        match how:
            case "away":
                self._scene.tier.go_away()
                return "the tier", self._scene.tier.come_back
            case "full":
                self._scene.tier.fill()
                return "the tier", self._scene.tier.empty
            case "hang" | "slow":
                return "the tier", self._scene.tier.freeze(now_and_then=how == "slow")
            case "flip":
                return self._scene.tier.flip(fault.bit), None
            case _:
                return self._scene.tier.tear(), None


def why_not_wrong(
    struck: Collection[str], *, named: Collection[str], there: Collection[str], nodes: int
) -> str:
    """Return why no node may begin to compute wrong now; empty if one may.

    Two of a few at once cannot be told from the others, and a run ends for that: so the next one
    comes when the last one was named, or is gone.

    Args:
        struck: Those that were made to so far.
        named: Those that the run knows of.
        there: Those that live.
        nodes: Of the run.
    """
    if waiting := [one for one in struck if one in there and one not in named]:
        return f"{waiting[0]} computes wrong already, and was not named yet"
    if nodes < FEWEST_TO_TELL:
        return f"of {nodes} nodes nobody can tell which one computes wrong"
    return ""


def _part(node: NodeProcesses, what: str) -> list[psutil.Process]:
    """Return the processes that a kind's first word names; whole nodes by default."""
    match what:
        case "agent":
            return [node.agent]
        case "warm":
            return node.warm
        case "bulk":
            return node.bulk
        case "worker":
            return node.workers
    return node.all


# -- limits of the kernel's, set from outside and taken back ---------------------------------------


SPARE_S: Final = 0.2
FILE_BYTES: Final = 1 << 20
"""Of a process whose memory files cannot grow: its log can for a while."""


def exhaust(
    process: psutil.Process, how: str, others: Callable[[], Iterable[psutil.Process]]
) -> Callable[[], None]:
    """Limit a process, and what it starts meanwhile, to what it has of something.

    Args:
        process: Which.
        how: Of `"files"`: descriptors; `"memory"`: address space; `"shm"`: memory files.
        others: Those of the run, some of which it may have started; asked when it is mended.

    Returns:
        What mends it.

    Raises:
        ConfigError: It is gone.
    """
    try:
        match how:
            case "files":
                resource, most = psutil.RLIMIT_NOFILE, process.num_fds()
            case "memory":
                resource, most = psutil.RLIMIT_AS, process.memory_info().vms
            case _:
                resource, most = psutil.RLIMIT_FSIZE, FILE_BYTES
        usual, hard = process.rlimit(resource)
        process.rlimit(resource, (most, hard))
    except (psutil.Error, ProcessLookupError) as error:
        raise ConfigError(f"process {process.pid} is gone") from error
    return lambda: lift([process, *others()], resource, most, usual)


def fill_log(
    owner: psutil.Process, log: Path, others: Callable[[], Iterable[psutil.Process]]
) -> Callable[[], None]:
    """Keep a run's owner from writing to its log, as on a full disk; return what mends it.

    Args:
        owner: Its process.
        log: The file.
        others: The run's processes: those that it starts have disks of their own, and memory.
    """
    usual, hard = owner.rlimit(psutil.RLIMIT_FSIZE)
    most = log.stat().st_size
    owner.rlimit(psutil.RLIMIT_FSIZE, (most, hard))
    is_over = threading.Event()

    def spare_others() -> None:
        while not is_over.wait(SPARE_S):
            started = [one for one in others() if one.pid != owner.pid]
            lift(started, psutil.RLIMIT_FSIZE, most, usual)

    watch = threading.Thread(target=spare_others, name="chaos-log-full", daemon=True)
    watch.start()

    def empty() -> None:
        is_over.set()
        watch.join()
        lift([owner, *others()], psutil.RLIMIT_FSIZE, most, usual)

    return empty


def lift(processes: Iterable[psutil.Process], resource: int, most: int, usual: int) -> None:
    """Give those of these that may have `most` of something as much as is usual again."""
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):  # it may be over
            now, hard = process.rlimit(resource)
            if now == most:
                process.rlimit(resource, (usual, hard))
