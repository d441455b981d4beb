"""How a campaign breaks things, from outside of the run: signals, the tier's files, orders."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

import psutil

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.experiments.chaos.faults import KINDS, Fault
from gemini_lab.experiments.chaos.scene import Scene
from gemini_lab.experiments.chaos.told import Told
from gemini_lab.experiments.chaos.victims import NodeProcesses, etcd_of, marked, nodes_of, send
from gemini_lab.injector.failures import BitFlip, Failure, LinkCut, Where, WrongSums
from gemini_lab.lab.control import ask
from gemini_lab.log.file import LOG_FILE
from gemini_lab.recovery.messages import DrainNode, InjectFailure, ResizeRun

Mend = Callable[[], object]
SPARE_S: Final = 0.2
FEWEST_TO_TELL: Final = 3
SIGNALS: Final = {
    "kill": signal.SIGKILL,
    "hang": signal.SIGSTOP,
    "stop": signal.SIGSTOP,
    "return": signal.SIGSTOP,
}
"""What the second half of a kind's name does to processes."""


class Strikes:
    """Breaks what is to be broken of one run.

    Args:
        mark: Of the run's processes.
        folder: The run's.
        owner: The process that started it.
        told: What its log says.
        scene: What stands around it.
        rack_of: The racks of its nodes, by name.
        nodes: How many it is to have.
    """

    def __init__(
        self,
        *,
        mark: str,
        folder: Path,
        owner: subprocess.Popen[bytes],
        told: Told,
        scene: Scene,
        rack_of: Mapping[str, str] = MappingProxyType({}),
        nodes: int = 0,
    ) -> None:
        self._mark, self._folder, self._owner = mark, folder, owner
        self._told, self._scene, self._rack_of = told, scene, rack_of
        self._nodes = nodes
        self._wrong: set[str] = set()  # the nodes that compute wrong

    def strike(self, fault: Fault) -> tuple[str, Mend | None]:
        """Make a fault happen; what was hit, and what mends it again.

        Raises:
            ConfigError: What it would break is not there now.
        """
        what, _, how = fault.kind.partition("_")
        if what == "tier":
            return self._break_tier(fault, how)
        if fault.kind == "log_full":
            return self._fill_log()
        if KINDS[fault.kind].needs == "network":
            return self._break_link(fault)
        if fault.kind == "clock_step":
            return self._set_clock(fault)
        if fault.kind == "link_cut":
            return self._order(LinkCut(f"rank-{fault.rank}"))
        if fault.kind == "worker_cut":
            other = (fault.rank + 1) % self._nodes
            return self._order(LinkCut(f"rank-{fault.rank}", to=f"rank-{other}"))
        if fault.kind == "bit_flip":
            return self._order(BitFlip(f"rank-{fault.rank}", fault.rank))
        if fault.kind == "node_drain":
            return self._drain(fault)
        if fault.kind == "wrong_sums":
            return self._compute_wrong(fault)
        if fault.kind == "resize":
            return self._resize()
        hit, processes = self._processes(fault, what)
        if not send(processes, SIGNALS[how]):
            raise ConfigError(f"{hit} has no such process now")
        mends = KINDS[fault.kind].lasts_s is not None
        return hit, (lambda: send(processes, signal.SIGCONT)) if mends else None

    def _processes(self, fault: Fault, what: str) -> tuple[str, list[psutil.Process]]:
        """Whose processes get a signal."""
        if what == "etcd":
            return "etcd", etcd_of(self._mark)
        if what == "owner":
            return "the owner", [psutil.Process(self._owner.pid)]
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

    def _order(self, failure: Failure) -> tuple[str, None]:
        """Have the run's owner order it, as `gemini-lab inject` does."""
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
        """Have a node compute wrong for good.

        Raises:
            ConfigError: It cannot be now.
        """
        name, _ = self._agent(fault)
        named, there = self._told.named_wrong, nodes_of(self._mark)
        if reason := why_not_wrong(self._wrong, named=named, there=there, nodes=self._nodes):
            raise ConfigError(reason)
        self._wrong.add(name)
        places = get_args(Where)
        where = places[fault.bit % len(places)]
        ask_for = WrongSums(f"rank-{fault.rank}", where, seed=fault.bit % 2**31)
        hit, _ = self._order(ask_for)
        return f"{hit}, {where}", None

    def _resize(self) -> tuple[str, Mend]:
        """Have the run go on with a node less, and later with as many as before."""
        hit = ask(self._folder, ResizeRun(nodes=self._nodes - 1))

        def back() -> None:
            with suppress(GeminiError):  # it may be over
                ask(self._folder, ResizeRun(nodes=self._nodes))

        return hit or f"{self._nodes - 1} nodes", back

    def _fill_log(self) -> tuple[str, Mend]:
        """Have the owner's files grow no more, as on a full disk."""
        log, owner = self._folder / LOG_FILE, psutil.Process(self._owner.pid)
        _, most_bytes = owner.rlimit(psutil.RLIMIT_FSIZE)
        owner.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size, most_bytes))
        is_over = threading.Event()

        def spare_others() -> None:
            """Nodes that the owner starts meanwhile have disks of their own, and memory."""
            while not is_over.wait(SPARE_S):
                lift([one for one in marked(self._mark) if one.pid != owner.pid])

        watch = threading.Thread(target=spare_others, name="chaos-log-full", daemon=True)
        watch.start()

        def empty() -> None:
            is_over.set()
            watch.join()
            lift([owner, *marked(self._mark)])

        return "the log", empty

    def _agent(self, fault: Fault) -> tuple[str, int]:
        """The node that a fault strikes, and the process that it is known by.

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

    def _break_tier(self, fault: Fault, how: str) -> tuple[str, Mend | None]:
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
    """Why no node may begin to compute wrong now; empty if one may.

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


def lift(processes: Sequence[psutil.Process]) -> None:
    """Let the files of these grow again."""
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):  # it may be over
            now_bytes, most_bytes = process.rlimit(psutil.RLIMIT_FSIZE)
            if now_bytes != most_bytes:
                process.rlimit(psutil.RLIMIT_FSIZE, (most_bytes, most_bytes))


def _part(node: NodeProcesses, what: str) -> list[psutil.Process]:
    """The processes that a kind's first word names; whole nodes by default."""
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


class Mends:
    """What is broken for a while, and when it is mended."""

    def __init__(self) -> None:
        self._due: list[tuple[float, Mend]] = []

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, mend: Mend, *, after_s: float) -> None:
        """Mend this later."""
        self._due.append((time.monotonic() + after_s, mend))

    def do(self, *, all_of_them: bool = False) -> bool:
        """Mend what is due; whether anything was."""
        now = time.monotonic()
        due = [(at_s, mend) for at_s, mend in self._due if all_of_them or at_s <= now]
        self._due = [each for each in self._due if each not in due]
        for _, mend in due:
            mend()
        return bool(due)
