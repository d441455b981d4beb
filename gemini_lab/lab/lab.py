"""`Lab`: the handle that a notebook, or the command line, holds on a cluster."""

import asyncio
import atexit
import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from gemini_lab.errors import CapacityError, ConfigError, GeminiError, LaunchError, RunFailedError
from gemini_lab.injector.failures import Failure
from gemini_lab.injector.orders import Order
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.pages import serve_log
from gemini_lab.lab.run import CONTROL_FILE, Run
from gemini_lab.launch.etcd import EmbeddedEtcd
from gemini_lab.launch.mpi import Hosts
from gemini_lab.launch.operator import MpiOperator, Operator
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    LabClosed,
    LabStarted,
    NodeJoined,
    NodeLost,
    NodeReady,
    Note,
    Profiled,
    RootElected,
    RunFailed,
    RunFinished,
    RunStarted,
)
from gemini_lab.node.agent import address_towards
from gemini_lab.node.config import AgentUp
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError, patiently
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.messages import (
    CloseLab,
    Done,
    EventSaid,
    Inject,
    InjectFailure,
    JobOrder,
    LabHello,
    Message,
    NeedNodes,
    OutputSaid,
    Refused,
    StopRun,
)
from gemini_lab.seats import Seats, in_order, node_name
from gemini_lab.settings import Settings
from gemini_lab.storage import persistent_tier
from gemini_lab.wire.tcp import Channel, connect, serve

LAB_LEASE_S: Final = 15
GOODBYE_S: Final = 5.0  # for agents to leave by themselves
TICK_S: Final = 0.1
JOIN_S: Final = 30.0


class Lab:
    """A cluster of nodes that train, and survive failures.

    Args:
        nodes: Machines that train.
        standbys: Machines that wait to take a lost one's place.
        workers_per_node: Training processes on each: one a GPU.
        hosts: Host names, or the path of an MPI hostfile; without, every node is a process group
            on this machine. Hosts beyond `nodes + standbys` are spare ones.
        etcd: `host:port[,host:port...]` of a running etcd; without, one is started.
        folder: Where runs keep their logs.
        lease_s: A node that gives no sign of life for so long counts as lost.
        warm: Fork workers from a parent that has imported everything.
        operator: Where machines come from; by default `mpiexec` on this machine or `hosts`.
        racks: The rack of each node, in their order, standbys included: replicas are spread over
            racks, and a rack can be lost at once.

    Raises:
        ConfigError: A number is impossible, or there are fewer hosts than nodes.
        LaunchError: MPI, etcd or an agent could not be started.
    """

    def __init__(
        self,
        nodes: int = 4,
        standbys: int = 1,
        *,
        workers_per_node: int = 1,
        hosts: Sequence[str] | str | Path | None = None,
        etcd: str | None = None,
        folder: str | Path = "gemini-runs",
        lease_s: float = 2.0,
        warm: bool = True,
        operator: Operator | None = None,
        racks: Sequence[str] | None = None,
    ) -> None:
        _check(nodes, standbys, workers_per_node, lease_s, racks)
        rack_of = {node_name(number): rack for number, rack in enumerate(racks or ())}
        self._seats = Seats(
            nodes=nodes, standbys=standbys, workers_per_node=workers_per_node, rack_of=rack_of
        )
        self.nodes, self.standbys, self.workers_per_node = nodes, standbys, workers_per_node
        self.folder = Path(folder).absolute()
        self.run: Run | None = None
        self._dashboard: Any = None
        self.ready: set[str] = set()
        self._silent: set[str] = set()  # connected, but lost in the root agent's eyes
        self.root: str | None = None
        self._members: dict[str, Channel] = {}
        self._numbers = itertools.count(1)
        self._bringing = 0
        self._is_closed = False
        machines = _machines(hosts, nodes + standbys)
        with ExitStack() as undo:  # what was started is ended again if the rest does not start
            address = EtcdAddress.parse(etcd) if etcd else _embed_etcd(machines, undo)
            prefix = f"gemini_lab/{secrets.token_hex(6)}"
            self._store = EtcdStore(address, prefix)
            undo.callback(self._store.close)
            self._operator = operator or MpiOperator(
                etcd=address, prefix=prefix, lease_s=lease_s, warm=warm, hosts=machines,
                threads=None if machines.names else _threads(nodes * workers_per_node),
                log_folder=self.folder / "agents",
            )  # fmt: skip
            undo.callback(self._operator.clear)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
            undo.callback(self._stop_loop)
            self._lease = patiently(lambda: self._store.grant(LAB_LEASE_S))
            patiently(lambda: self._store.put("lab", "here", lease=self._lease))
            self._control_token = secrets.token_hex(16)
            self._control_address = self._await(self._open_control(), timeout_s=JOIN_S)
            undo.callback(self._leave)
            agents = self._operator.bring(nodes + standbys)
            self._await(self._connect(agents), timeout_s=JOIN_S)
            self._undo = undo.pop_all()
        self._spawn(self._keep_lease())
        self._spawn(self._tick())
        atexit.register(self.close)

    def train(
        self,
        job: Job,
        *,
        scenario: Scenario | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> Run:
        """Start a job on the nodes; returns at once.

        Args:
            job: What to run.
            scenario: Failures to inject on the way.
            name: The run's folder below the lab's; by default the time and the job's name.
            settings: Replace those in the script's `"gemini"` block; see `Settings`.

        Raises:
            ConfigError: A run is under way, the script is missing, or a setting is impossible.
        """
        if self._is_closed:
            raise ConfigError("this lab is closed; make a new one")
        if self.run is not None and not self.run.is_over:
            raise ConfigError(f"{self.run} is under way; wait for it, or stop it first")
        job.check()
        checked = Settings.parse(settings)
        self._check_train(checked, scenario or Scenario())
        if checked.persistent_url is not None:
            persistent_tier(checked.persistent_url).check()
        run_name = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{job.title}"
        run = Run(
            folder=_fresh(self.folder / run_name), number=next(self._numbers), job=job,
            scenario=scenario or Scenario(), obey=self._obey, stop=self._cancel,
            living=lambda: self.living, racks=self._nodes_by_rack(), root=self.root,
            workers_per_node=self.workers_per_node,
        )  # fmt: skip
        if "persistent_url" not in settings and self._operator.is_local:
            settings["persistent_url"] = str(run.folder / "persistent")
        order = JobOrder(
            number=run.number,
            run=secrets.randbits(32),
            job=job,
            seats=self._seats,
            settings=settings,
        )
        self._write_control(run)
        run.take(
            _said(
                LabStarted(
                    nodes=self.nodes,
                    standbys=self.standbys,
                    root=self.root,
                    names=tuple(in_order(self._members)),
                    etcd=self._store.address.endpoints,
                )
            )
        )
        run.take(_said(_run_started(order)))
        self.run = run
        patiently(lambda: self._store.put("job", msgspec.json.encode(order).decode()))
        return run

    def profile(self, job: Job, **settings: Any) -> Profile:
        """Train until the ranks agree on a profile of the job, then stop it.

        What was measured of the wire stands beside it, in `self.run.report().plans`.

        Args:
            job: What to run, for at least some 2 * `profile_iterations` + 6 iterations.
            settings: As for `train`.

        Raises:
            ConfigError: There is one worker only, or `train` refuses.
            RunFailedError: The job ended before there was a profile; the message has its remarks.
        """
        if self.nodes * self.workers_per_node == 1:
            raise ConfigError("one worker has no network to profile; make a lab of two nodes")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{job.title}-profile"
        given = {"scheme": "gemini", "persistent_url": None, "name": name, **settings}
        run = self.train(job, **given)
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

    def dashboard(self, **settings: Any) -> Any:
        """A page that shows the newest run live, and goes on to the next one when it starts.

        It is served from a thread of this process until the lab is closed; as the last value of
        a cell it shows a link and itself. Calling again gives the same one.

        Args:
            **settings: Of `gemini_lab_widgets.serve.Dashboard`: port, password, origins...

        Raises:
            ConfigError: Panel is not installed.
            LaunchError: The port is taken.
        """
        if self._dashboard is None:
            self._dashboard = serve_log(lambda: self.run.log if self.run else None, **settings)
        return self._dashboard

    def controls(self, job: Job | None = None, **settings: Any) -> Any:
        """Buttons for this lab below a cell; see `gemini_lab_widgets.controls.Controls`."""
        from gemini_lab_widgets.controls import Controls  # noqa: PLC0415 - ipywidgets is optional

        return Controls(self, job, **settings)

    @property
    def is_closed(self) -> bool:
        """Whether the lab's processes have ended, or are about to."""
        return self._is_closed

    @property
    def living(self) -> tuple[str, ...]:
        """Names of the nodes whose agents live, standbys included."""
        return tuple(name for name in self._members if name not in self._silent)

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        """Wait until all nodes and standbys are there and have imported what workers need.

        Raises:
            TimeoutError: Some are not ready in time.
        """
        wanted = self.nodes + self.standbys
        deadline_s = time.monotonic() + timeout_s
        while (count := len(self.ready & set(self.living))) < wanted:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{count} of {wanted} nodes are ready after {timeout_s:.0f} s")
            time.sleep(0.05)

    def close(self) -> None:
        """End every process of the lab and give all its memory back."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self.run is not None and not self.run.is_over:
            self.run.take(_said(RunFailed(reason="the lab was closed")))
        self._undo.close()
        if self.run is not None:
            self.run.take(_said(LabClosed()))
            self.run.close()
        if self._dashboard is not None:
            self._dashboard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._members)} agents"
        return f"<Lab: {self.nodes} nodes, {self.standbys} standbys, {state}>"

    def _repr_html_(self) -> str:
        agents = ", ".join(f"{n} (root)" if n == self.root else n for n in sorted(self._members))
        rows = {
            "lab": "closed" if self._is_closed else "open",
            "trains on": f"{self.nodes} nodes, {self.standbys} standbys beside them",
            "agents there": agents or "none", "last run": self.run or "none", "folder": self.folder,
        }  # fmt: skip
        cells = (f"<tr><th>{name}</th><td>{escape(str(v))}</td></tr>" for name, v in rows.items())
        return f"<table>{''.join(cells)}</table>"

    # -- start and end -------------------------------------------------------------------------

    def _leave(self) -> None:
        """Have the agents end, and take this lab's keys out of the store."""
        with suppress(TimeoutError):
            self._await(self._say_goodbye(), timeout_s=20)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _check_train(self, settings: Settings, scenario: Scenario) -> None:
        names = [node_name(number) for number in range(max(100, 10 * self.nodes))]
        self._seats.seated(names[: self.nodes]).placed(settings)
        racks = list(self._nodes_by_rack())
        scenario.check(nodes=names, ranks=self._seats.world_size, racks=racks)

    def _nodes_by_rack(self) -> dict[str, list[str]]:
        """Names of the nodes in each rack; nodes that come later are in none."""
        nodes: dict[str, list[str]] = {}
        for node, rack in self._seats.rack_of.items():
            nodes.setdefault(rack, []).append(node)
        return nodes

    async def _open_control(self) -> str:
        self._server, port = await serve("127.0.0.1", self._control_token, self._serve_control)
        return f"127.0.0.1:{port}"

    async def _tick(self) -> None:
        """Let failures that come by clock come."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.run is not None:
                self.run.strike()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(LAB_LEASE_S / 5)
            with suppress(StoreUnavailableError):
                if not await asyncio.to_thread(self._store.keep_alive, self._lease):
                    self._lease = await asyncio.to_thread(self._store.grant, LAB_LEASE_S)
                    await asyncio.to_thread(self._store.put, "lab", "here", lease=self._lease)

    async def _connect(self, agents: Sequence[AgentUp]) -> None:
        for agent in agents:
            hello = LabHello(at_s=time.time())
            try:
                channel = await connect(agent.address, self._operator.token, hello, timeout_s=10)
            except (OSError, TimeoutError) as error:
                raise LaunchError(
                    f"{agent.name} listens on {agent.address}, which this machine does not "
                    f"reach ({error or 'no answer'}); check the network and firewalls"
                ) from error
            self._members[agent.name] = channel
            self._spawn(self._listen(agent.name, channel))

    async def _say_goodbye(self) -> None:
        self._server.close()
        for channel in self._members.values():
            channel.send(CloseLab())
        deadline_s = time.monotonic() + GOODBYE_S
        while self._members and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        with suppress(StoreUnavailableError):
            await asyncio.to_thread(self._store.revoke, self._lease)
            await asyncio.to_thread(self._clear_store)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def _clear_store(self) -> None:
        for key in self._store.items():
            self._store.delete(key)

    # -- what agents say -------------------------------------------------------------------------

    async def _listen(self, name: str, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            match message:
                case EventSaid():
                    await self._take(message.entry)
                case OutputSaid() if self.run is not None:
                    self.run.take_output(message.rank, message.lines)
                case NeedNodes():
                    self._spawn(self._bring(message.wanted))
        self._members.pop(name, None)
        self.ready.discard(name)

    async def _take(self, entry: Entry) -> None:
        match entry.event:
            case RootElected(name=name):
                self.root = name
            case NodeReady(name=name):
                self.ready.add(name)
            case NodeLost(name=name):
                self._silent.add(name)
            case NodeJoined(name=name):
                self._silent.discard(name)
        run = self.run
        if run is None:
            return
        if isinstance(entry.event, RunFinished | RunFailed):
            self._spawn(self._finish(run, entry))
        else:
            run.take(entry)

    async def _finish(self, run: Run, entry: Entry) -> None:
        """Close a run when what was said before its end has arrived from every node."""
        await asyncio.sleep(0.3)
        run.take(entry)

    async def _bring(self, wanted: int) -> None:
        """Ask the operator for the machines that are missing and not already on their way."""
        count = wanted - len(self.living) - self._bringing
        if count <= 0 or self._is_closed:
            return
        self._bringing += count
        try:
            await self._connect(await asyncio.to_thread(self._operator.bring, count))
        except (CapacityError, LaunchError) as error:
            if self.run is not None:
                self.run.take(_said(Note(text=f"no new node: {error}")))
        finally:
            self._bringing -= count

    # -- orders ----------------------------------------------------------------------------------

    def _obey(self, order: Order) -> None:
        """Tell a node what to do to itself."""
        channel = self._members.get(order.node)
        if channel is None:
            known = ", ".join(self._members)
            raise ConfigError(f"no node {order.node!r} is there; there are {known}")
        self._loop.call_soon_threadsafe(channel.send, Inject(action=order.action))

    async def _serve_control(self, channel: Channel) -> None:
        """Carry out what `gemini-lab inject` and others ask of the run under way."""
        while (message := await channel.receive()) is not None:
            try:
                channel.send(Done(text=self._control(message)))
            except GeminiError as error:
                channel.send(Refused.of(error))

    def _control(self, message: Message) -> str:
        if self.run is None or self.run.is_over:
            raise ConfigError("no run is under way in this lab")
        match message:
            case StopRun():
                self.run.stop()
                return f"{self.run.folder.name} ends"
            case InjectFailure():
                given = self.run.inject(Failure.from_json(message.failure))
                return ", ".join(f"{order.action.kind} on {order.node}" for order in given)
        raise ConfigError(f"a lab cannot be asked for {type(message).__name__}")

    def _write_control(self, run: Run) -> None:
        """Leave the way to this lab in the run's folder, for its owner alone."""
        path = run.folder / CONTROL_FILE
        path.touch(mode=0o600)
        path.write_text(
            json.dumps({"address": self._control_address, "token": self._control_token})
        )

    def _cancel(self, number: int) -> None:
        patiently(lambda: self._store.put("cancel", str(number)))

    def _spawn(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def _await(self, work: Any, *, timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


def _check(
    nodes: int, standbys: int, workers_per_node: int, lease_s: float, racks: Sequence[str] | None
) -> None:
    if racks is not None and len(racks) != nodes + standbys:
        raise ConfigError(
            f"racks must name one rack for each of {nodes} nodes and {standbys} standbys "
            f"(got {len(racks)} names)"
        )
    if nodes < 1 or workers_per_node < 1 or standbys < 0:
        raise ConfigError(
            f"a lab needs at least one node and one worker on it, and no fewer than 0 standbys "
            f"(got nodes={nodes}, workers_per_node={workers_per_node}, standbys={standbys})"
        )
    if lease_s < 2:
        raise ConfigError(f"lease_s must be at least 2 s, etcd's shortest lease (got {lease_s})")


def _machines(hosts: Sequence[str] | str | Path | None, wanted: int) -> Hosts:
    if hosts is None:
        return Hosts()
    found = Hosts.from_file(hosts) if isinstance(hosts, (str, Path)) else Hosts(names=tuple(hosts))
    if len(found.names) < wanted:
        raise ConfigError(
            f"{wanted} nodes and standbys were asked for, but there are only "
            f"{len(found.names)} hosts; name more, or ask for fewer"
        )
    return found


def _embed_etcd(machines: Hosts, undo: ExitStack) -> EtcdAddress:
    """Start etcd on loopback or, for other machines, on this one's address towards them."""
    host = "127.0.0.1"
    if machines.names:
        try:
            host = address_towards(f"{machines.names[-1]}:22")
        except OSError as error:
            raise LaunchError(
                f"the host {machines.names[-1]} is not known here ({error}); check its name, or "
                "name a running etcd that all hosts reach with etcd="
            ) from error
    embedded = EmbeddedEtcd(host)
    undo.callback(embedded.close)
    return embedded.address


def _said(event: AnyEvent) -> Entry:
    return Entry(at_s=time.time(), node="lab", event=event)


def _run_started(order: JobOrder) -> RunStarted:
    seats = order.seats
    racks = tuple(seats.rack_of.values())[: seats.nodes]
    return RunStarted(
        name=order.job.title,
        script=order.job.script,
        args=tuple(order.job.args),
        module=order.job.module,
        nodes=seats.nodes,
        standbys=seats.standbys,
        workers_per_node=seats.workers_per_node,
        racks=racks or None,
        settings=order.settings,
    )


def _threads(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def _fresh(folder: Path) -> Path:
    """`folder`, or with a number where it exists already."""
    numbered = (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))
    found = folder if not folder.exists() else next(f for f in numbered if not f.exists())
    try:
        found.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run's folder {found}: {error.strerror}") from error
    return found
