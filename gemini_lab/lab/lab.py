"""`Lab`: the handle that a notebook, or the command line, holds on a cluster."""

import concurrent.futures.thread  # noqa: F401 - its own ending is to come after this one
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final, Self, Unpack

from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.errors import ConfigError, RunFailedError, shown
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job, job_of
from gemini_lab.lab import pages
from gemini_lab.lab.control import ControlServer
from gemini_lab.lab.lab_config import LabConfig, NodeOptions, config_of
from gemini_lab.lab.lab_runs import (
    Runs,
    begun,
    fresh_folder,
    lab_started,
    require_folder,
    run_started,
)
from gemini_lab.lab.loop import LoopThread
from gemini_lab.lab.node_contracts import Starter
from gemini_lab.lab.pages import Decide
from gemini_lab.lab.roster import why_not_ready
from gemini_lab.lab.run import Run, RunOrigin
from gemini_lab.lab.starting import start_cluster
from gemini_lab.lab.submission import Submission, default_name
from gemini_lab.log.events import Profiled
from gemini_lab.placement import Placement
from gemini_lab.placement.own import Planner
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import SettingValue

TICK_S: Final = 0.1
"""Between two looks for a failure whose time has come."""


class Lab:
    """A cluster of nodes that train, and survive failures.

    Args:
        nodes: Machines that train.
        standbys: Machines that wait to take a lost one's place.
        workers_per_node: Training processes on each: one per GPU.
        hosts: Host names, or the path of an MPI hostfile; without, every node is a process group
            on this machine. Hosts beyond `nodes + standbys` are spare ones.
        etcd: `host:port[,host:port...]` of a running etcd; without, one is started, with three
            members on three hosts or more.
        folder: Where runs keep their logs.
        lease_s: A node that gives no sign of life for this long counts as lost.
        warm: Fork workers from a parent that has imported everything.
        racks: The rack of each node, in their order, standbys included: replicas are spread over
            racks, and a rack can be lost at once.
        join: A name under which agents join that were started by themselves, by `gemini-lab node`:
            nothing is started then, and they are waited for. Needs `etcd`.
        provider: Starts those that join, and others for lost ones: `Slurm`, `AutoScaling`, one of
            your own, or words such as `"slurm --partition=gpu"`.
        token: The secret that they were given; by default that in `GEMINI_LAB_TOKEN`.
        wait_s: How long they are waited for.
        start: Starts the nodes; by default with MPI and etcd.
        **options: All of the above after `standbys`.

    Raises:
        ConfigError: A number is impossible, or there are fewer hosts than nodes.
        LaunchError: MPI, etcd or an agent could not be started.
    """

    def __init__(
        self,
        nodes: int = LabConfig.nodes,
        standbys: int = LabConfig.standbys,
        *,
        start: Starter = start_cluster,
        **options: Unpack[NodeOptions],
    ) -> None:
        self.config = config_of({"nodes": nodes, "standbys": standbys, **options})
        require_folder(self.config.folder)
        self._dashboard: pages.DashboardHandle | None = None
        self._is_closed = False
        with ExitStack() as undo:  # what was started is ended again if the rest does not start
            loop = undo.enter_context(LoopThread())
            self._runs = Runs()
            self._control = undo.enter_context(
                ControlServer(loop, self._runs.act, lambda: self._runs.newest)
            )
            self._cluster = start(self.config, loop, self._runs)
            undo.callback(self._cluster.close)
            self._undo = undo.pop_all()
        loop.call_every(TICK_S, self._runs.strike)
        close_at_end(self.close)

    def train(
        self,
        job: Job | str | Path,
        *,
        scenario: Scenario | None = None,
        name: str | None = None,
        resume: bool = False,
        placement: Placement | Planner | None = None,
        root: Decide | None = None,
        hold_at: int | Sequence[int] = (),
        **settings: SettingValue,
    ) -> Run:
        """Start a job on the nodes; returns at once.

        Args:
            job: What to run: a `Job`, or the path of a script.
            scenario: Failures to inject on the way.
            name: The run's folder below the lab's; by default the time and the job's name.
            resume: Go on from what another run left in the persistent tier. Without, a tier that
                holds another run's versions is refused.
            placement: Who keeps whose replica, or a function of `nodes` and `replicas` that says
                so, as `gemini_lab.attack` takes it; by default what `replicas` and `strategy` ask
                for.
            root: Decides what is done after a failure, as `decide(state, event, cluster)`; see
                `gemini_lab_course.own_root.deciding`. It knows what is in memory, not the tier.
            hold_at: Iterations after which training holds until a user breaks something, asks for
                something, or says `run.go_on()`. All nodes have to be on this machine.
            settings: Replace those in the script's `"gemini"` block; see `Settings`.

        Raises:
            ConfigError: A run is under way, the script is missing, or a setting, the placement or
                the root agent is impossible.
        """
        self._check_open()
        if self._runs.under_way is not None:
            raise ConfigError(f"{self.run} is under way; wait for it, or stop it: lab.run.stop()")
        wanted = Submission.checked(
            self.config,
            job,
            scenario=scenario,
            name=name,
            resume=resume,
            placement=placement,
            root=root,
            settings=settings,
        )
        holds = HoldingPoints.at(hold_at)
        if holds.iterations and not self._cluster.is_local:
            raise ConfigError(
                f"hold_at={shown(hold_at)} needs all nodes on this machine, and these are on others"
            )
        folder = fresh_folder(self.folder / wanted.name)
        holds = holds.below(folder)
        run = Run(
            RunOrigin(
                folder=folder,
                holds=holds,
                number=next(self._runs.numbers),
                job=wanted.job,
                scenario=wanted.scenario,
                seats=wanted.seats,
                root=self.root,
            ),
            self._cluster,
        )
        held = replace(wanted.job, env={**wanted.job.env, **holds.environment})
        order = replace(wanted, job=held).order(
            number=run.number,
            shared=run.folder if self._cluster.is_local else None,
        )
        with begun(run.folder):
            self._control.open_to(run.folder)
            run.reopen = self._control.open_to
            run.take(lab_started(self.config, self._cluster))
            run.take(run_started(order))
            run.settle()
        self._runs.begin(run)
        self._cluster.submit(order)
        return run

    def profile(
        self, job: Job | str | Path, *, name: str | None = None, **settings: SettingValue
    ) -> Profile:
        """Train until the ranks agree on a profile of the job, then stop it.

        What was measured of the wire stands beside it, in `lab.run.report().plans`.

        Args:
            job: What to run, for at least some 2 * `profile_iterations` + 6 iterations.
            name: The run's folder below the lab's.
            settings: As for `train`.

        Raises:
            ConfigError: There is one worker only, or `train` refuses.
            RunFailedError: The job ended before there was a profile; the message has its remarks.
        """
        if self.nodes * self.workers_per_node == 1:
            raise ConfigError("one worker has no network to profile; make a lab of two nodes")
        job = job_of(job)
        name = name or f"{default_name(job)}-profile"
        given: dict[str, Any] = {"scheme": "gemini", "persistent_url": None, **settings}
        run = self.train(job, name=name, **given)
        made = threading.Event()
        run.watch(lambda entry: made.set() if isinstance(entry.event, Profiled) else None)
        while not run.is_over and not made.wait(TICK_S):
            pass
        run.stop()
        with suppress(RunFailedError):  # that is what a stopped run has to say
            run.wait()
        report = run.report()
        if not report.plans:
            remarks = "; ".join((report.reason, *report.notes)).strip("; ")
            raise RunFailedError(
                f"{run} made no profile ({remarks or 'no remarks'}); give the job more iterations, "
                "or profile fewer: profile_iterations="
            )
        return report.plans[-1].profile

    def dashboard(self, **settings: Unpack[pages.PageSettings]) -> pages.DashboardHandle:
        """Return a page that shows the newest run live, and goes on to the next one when it starts.

        It is served from a thread of this process until the lab is closed; as the last value of
        a cell it shows a link and itself. Calling again gives the same one.

        Args:
            **settings: See `PageSettings`.

        Raises:
            ConfigError: Panel is not installed.
            LaunchError: The port is taken.
        """
        if self._dashboard is None:
            self._dashboard = pages.serve_log(
                lambda: self.run.log if self.run else None, **settings
            )
        return self._dashboard

    def controls(
        self,
        job: Job | None = None,
        *,
        total: int | None = None,
        scenario: Scenario | None = None,
        root: Decide | None = None,
        **settings: SettingValue,
    ) -> pages.ControlsHandle:
        """Return buttons for this lab below a cell: start, break something, stop.

        Args:
            job: What the start button starts; by default the newest run's job again.
            total: Iterations of the job, the bar's full length.
            scenario: Failures to inject on the way of what the button starts.
            root: Decides what is done after a failure of it, as for `train`.
            settings: As for `train`.

        Raises:
            ConfigError: ipywidgets is not installed.
        """
        return pages.controls_of(self, job, total=total, scenario=scenario, root=root, **settings)

    @property
    def nodes(self) -> int:
        """Machines that train."""
        return self.config.nodes

    @property
    def standbys(self) -> int:
        """Machines that wait to take a lost one's place."""
        return self.config.standbys

    @property
    def workers_per_node(self) -> int:
        """Training processes on each node."""
        return self.config.workers_per_node

    @property
    def folder(self) -> Path:
        """The folder in which runs keep their logs."""
        return self.config.folder

    @property
    def run(self) -> Run | None:
        """The run under way, or the last one."""
        return self._runs.newest

    @property
    def root(self) -> str | None:
        """The node with the root agent."""
        return self._cluster.root

    @property
    def living(self) -> tuple[str, ...]:
        """Names of the nodes whose agents live, standbys included."""
        return tuple(self._cluster.living)

    @property
    def is_closed(self) -> bool:
        """Whether the lab's processes have ended, or are about to."""
        return self._is_closed

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        """Wait until all nodes and standbys are there and have imported what workers need.

        For those that were lost between runs, new ones are asked for.

        Raises:
            ConfigError: The lab is closed, or is closed meanwhile.
            TimeoutError: Some are not ready in time.
        """
        wanted, cluster = self.config.seats.machines, self._cluster
        deadline_s = time.monotonic() + timeout_s
        seen = wanted
        while len(ready := cluster.ready) < wanted:
            self._check_open()
            living = cluster.living
            is_short = len(living) < wanted and self._runs.under_way is None
            if is_short and len(living) != seen:
                cluster.bring(wanted)
            seen = len(living)
            if time.monotonic() > deadline_s:
                raise TimeoutError(why_not_ready(living, ready, wanted, waited_s=timeout_s))
            time.sleep(0.05)

    def close(self) -> None:
        """End every process of the lab and give all its memory back."""
        if self._is_closed:
            return
        self._is_closed = True
        forget(self.close)
        self._runs.give_up("the lab was closed", "owner")
        try:
            self._undo.close()
        finally:
            self._runs.close()
            if self._dashboard is not None:
                self._dashboard.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this lab is closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._cluster.members)} agents"
        return f"<Lab: {self.nodes} nodes, {self.standbys} standbys, {state}>"

    def _repr_html_(self) -> str:
        agents = sorted(self._cluster.members)
        there = ", ".join(f"{name} (root)" if name == self.root else name for name in agents)
        rows = {
            "lab": "closed" if self._is_closed else "open",
            "trains on": f"{self.nodes} nodes, {self.standbys} on standby",
            "agents there": there or "none",
            "last run": self.run or "none",
            "folder": self.folder,
        }
        cells = (f"<tr><th>{name}</th><td>{escape(str(v))}</td></tr>" for name, v in rows.items())
        return f"<table>{''.join(cells)}</table>"


# -- the end of the program ------------------------------------------------------------------------

_open: Final[dict[Callable[[], None], int]] = {}
"""What closes each, and the process that is to call it: a forked one ends by itself."""


def close_at_end(close: Callable[[], None]) -> None:
    """Call `close` when this program ends, in whatever way but by SIGKILL."""
    _open[close] = os.getpid()


def forget(close: Callable[[], None]) -> None:
    """Remove a call at the program's end."""
    _open.pop(close, None)


def _close_all() -> None:
    for close, process in reversed(_open.copy().items()):
        if process == os.getpid():
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the process's edge: told, the others close
                _say(error)


def _say(error: Exception) -> None:
    if not hasattr(sys, "last_value"):  # of the traceback that Python has shown
        sys.stderr.write(
            f"gemini_lab: a lab was not closed in order: {type(error).__name__}: {error}; "
            "its nodes end by themselves within seconds\n"
        )


# Python has no public name for this; its own pools of threads end by it.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # noqa: SLF001
