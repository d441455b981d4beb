"""The agent's side of the warm parent: every question gets its answer."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import msgspec
import psutil
import pytest
from made import made

from gemini_lab.engine.process_exit import PR_SET_CHILD_SUBREAPER
from gemini_lab.job import Job
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.host import ANSWER_S, LINE_BYTES, SCRATCH, Worker, WorkerHost
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.locked_tempdir import MPI_SHARED
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.node.tasks import Tasks
from gemini_lab.node.worker import SOCKETS_FOLDER_BYTES
from gemini_lab.recovery.messages import (
    Fence,
    Fenced,
    Inventory,
    JobOrder,
    Message,
    Preload,
    Release,
    ScriptFinished,
    SlabRequest,
    SlotWanted,
    StartWorkers,
    TakeInventory,
    WorkerPulse,
    WorkerStart,
)
from gemini_lab.recovery.plan import PlanPart, RecoveryPlan
from gemini_lab.recovery.told_seats import ToldSeats
from gemini_lab.seats import Seats
from gemini_lab.shard.layout import ShardLayout, lay_out
from gemini_lab.wire.local import LocalChannel

PATIENCE_S = 120.0


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


class Hosts:
    """Makes hosts of workers, which are closed on the loop of their test."""

    def __init__(self) -> None:
        self.made: list[WorkerHost] = []
        self.codes: list[int] = []
        self.lines: list[str] = []
        self.notes: list[str] = []

    def __call__(
        self,
        *,
        warm: bool = False,
        answer_s: float = ANSWER_S,
        on_exit: Callable[[Worker, int], None] = lambda *_: None,
        on_message: Callable[[Worker, Message, list[int]], None] = lambda *_: None,
    ) -> WorkerHost:
        def leave(worker: Worker, code: int) -> None:
            self.codes.append(code)
            on_exit(worker, code)

        host = WorkerHost(
            warm=warm,
            on_message=on_message,
            on_output=lambda _, more: self.lines.extend(more),
            on_exit=leave,
            on_note=self.notes.append,
            answer_s=answer_s,
        )
        self.made.append(host)
        return host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self.made:
            self.made.pop().close()


@pytest.fixture
def a_host() -> Hosts:
    return Hosts()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def serve(host: WorkerHost, start: WorkerStart) -> None:
    """Start a worker that serves its own port, in which it meets nobody else."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        host.start(msgspec.structs.replace(start, rendezvous=address), (port.fileno(),))


async def test_two_fences_of_the_same_epoch_are_both_answered(a_host):
    """An agent is told to fence by the root, and by the state in the store, at the same time."""
    host = a_host()
    serve(host, a_start(1, epoch=7))
    both = (host.kill_all(epoch=8) for _ in range(2))
    await asyncio.wait_for(asyncio.gather(*both), PATIENCE_S)
    assert not host.workers


async def test_where_warm_parents_are_killed_while_they_import_workers_start_without_them(
    monkeypatch, tmp_path, a_host
):
    """As by the kernel, where memory is too short: the next was started for ever, and silently."""
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    host = a_host(warm=True)
    await asyncio.wait_for(host.ready(), PATIENCE_S)
    a_host.close()
    (note,) = a_host.notes
    assert "ended 3 times before it had imported everything" in note


async def test_a_fence_that_its_warm_parent_did_not_live_to_answer_is_over(a_host):
    """Otherwise the agent waits for ever, and counts as one that hangs after a minute."""
    host = a_host()
    await host.ready()
    serve(host, a_start(1, epoch=7))
    host.signal_all(signal.SIGSTOP)
    asking = asyncio.create_task(host.kill_all(epoch=8))
    await asyncio.sleep(0.1)  # it is asked, and does not answer
    host.signal_all(signal.SIGKILL)
    await asyncio.wait_for(asking, PATIENCE_S)
    assert not host.workers


@pytest.mark.parametrize("is_meant", [True, False])
async def test_a_worker_serves_the_port_that_its_start_names_and_no_other(a_host, is_meant):
    """One that was given another while all were to meet on another node ended for that."""
    host = a_host()
    if is_meant:
        serve(host, a_start(1, epoch=8))
    else:
        host.start(a_start(1, epoch=8))
    (worker,) = host.workers.values()
    await until(lambda: worker.pid and "gemini_lab.node.cold" in command_of(worker.pid))
    *_, listen_fd, _ = command_of(worker.pid)
    assert listen_fd.isdecimal() if is_meant else listen_fd == "None"


TELLS = """
import os, sys, time
from pathlib import Path

Path("told").write_text(f"{os.environ['API_KEY']} {sum(map(len, sys.argv[1:]))}")
time.sleep(600)
"""


async def test_what_a_worker_is_told_stands_on_no_command_line(a_host, tmp_path):
    """Everybody on the machine reads those; and an argument there has 128 KiB at most."""
    (tmp_path / "train.py").write_text(TELLS)
    told, secret = tmp_path / "told", "s3cret-" * 5
    host, start = a_host(), a_start(1, epoch=8, cwd=str(tmp_path))
    job = replace(start.order.job, env={"API_KEY": secret}, args=["x" * 50_000] * 4)
    order = msgspec.structs.replace(start.order, job=job)
    serve(host, msgspec.structs.replace(start, order=order))
    (worker,) = host.workers.values()
    await until(lambda: a_host.codes or (told.exists() and told.read_text()))
    assert a_host.codes == []
    command = " ".join(command_of(worker.pid))
    assert told.read_text() == f"{secret} 200000"
    assert "gemini_lab.node.cold" in command
    assert secret not in command


LISTENS = """
import multiprocessing, os, signal
from multiprocessing.connection import Listener

def listen(ready):
    with Listener(family="AF_UNIX"):
        ready.set()
        signal.pause()

ready = multiprocessing.get_context("fork").Event()
multiprocessing.get_context("fork").Process(target=listen, args=[ready]).start()
ready.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def names_below(folder: str) -> list[str]:
    return [path.name for path in Path(folder).rglob("*")]


async def test_a_killed_workers_multiprocessing_leaves_nothing(tmp_path, monkeypatch):
    """As a DataLoader's workers do, which listen on a socket in a folder for temporary files."""
    (tmp_path / "train.py").write_text(LISTENS)
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        async with Hosts() as a_host:
            serve(a_host(), a_start(1, epoch=8, cwd=str(tmp_path)))
            await until(lambda: a_host.codes)
            held = names_below(short)  # the node's own folder, and nothing in it
        assert a_host.codes == [-signal.SIGKILL]
        assert [name.startswith(SCRATCH) for name in held] == [True]
        assert not any(Path(short).iterdir())


SPAWNS = """
import multiprocessing, os, signal, time
from pathlib import Path

def serve(ready):
    ready.set()
    time.sleep(600)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    spawn.Process(target=serve, args=[ready]).start()
    ready.wait()
    names = [path.name for path in Path("/dev/shm").glob(f"sem.*-{os.getpid()}-*")]
    Path("semaphores").write_text("\\n".join(names))
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_killed_workers_spawned_processes_leave_no_semaphores(a_host, tmp_path):
    """Who would remove them, the process that multiprocessing starts for that, is killed too."""
    (tmp_path / "train.py").write_text(SPAWNS)
    assert await end_of_worker(a_host, tmp_path) == -signal.SIGKILL
    left = {*(tmp_path / "semaphores").read_text().split()}
    assert left
    await until(lambda: not left & {path.name for path in Path("/dev/shm").glob("sem.*")})


BEGINS_MPI = """
import os, signal
from pathlib import Path
from mpi4py import MPI
mapped = Path("/proc/self/maps").read_text().split()
Path("shared").write_text(next(word for word in mapped if "/sm_segment." in word))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("letters", [1, 2 * SOCKETS_FOLDER_BYTES])
async def test_a_killed_worker_whose_script_began_mpi_leaves_no_shared_memory(
    a_host, tmp_path, monkeypatch, letters
):
    """Some scripts' libraries do: to ask whether they run below it. However long a path is."""
    monkeypatch.delenv(MPI_SHARED)
    place = tmp_path / ("x" * letters)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (tmp_path / "train.py").write_text(BEGINS_MPI)
    assert await end_of_worker(a_host, tmp_path) == -signal.SIGKILL
    assert not Path((tmp_path / "shared").read_text()).exists()


async def end_of_worker(a_host: Hosts, folder: Path) -> int:
    """With what a worker ends that runs the `train.py` of a folder; its host is closed then."""
    host = a_host()
    serve(host, a_start(1, epoch=8, cwd=str(folder)))
    await until(lambda: a_host.codes)
    a_host.close()
    return a_host.codes[0]


ENDS = """
import atexit, threading, time
from pathlib import Path

def write_late():
    time.sleep(2.5)  # two beats
    Path("thread").touch()

atexit.register(Path("handler").touch)
threading.Thread(target=write_late).start()
print("a word without an end", end="")
"""


async def test_a_script_that_ends_has_its_threads_and_exit_handlers_end_first(a_host, tmp_path):
    """Such as those that write a last file: the agent ends processes when all ranks have ended.

    A rank that waits for them is not hung, for however long it does nothing.
    """
    (tmp_path / "train.py").write_text(ENDS)
    there: list[list[str]] = []
    doing: set[tuple[str, str]] = set()

    def hear(_worker: Worker, message: Message, _fds: list[int]) -> None:
        if isinstance(message, WorkerPulse):
            doing.add((message.doing, message.detail))
        if isinstance(message, ScriptFinished):
            there.append(sorted(path.name for path in tmp_path.iterdir()))

    serve(a_host(on_message=hear), a_start(1, epoch=8, cwd=str(tmp_path)))
    await until(lambda: there)
    assert there == [["handler", "thread", "train.py"]]
    assert ("paused", "the script's threads and exit handlers") in doing


async def test_the_parent_that_has_preloaded_takes_over_at_a_fence_and_the_last_one_ends(a_host):
    others = {*psutil.Process().children()}
    host = a_host()
    await asyncio.wait_for(host.ready(), PATIENCE_S)
    (last,) = {*psutil.Process().children()} - others
    order = Preload(epoch=7, modules=["sched"], environment={})
    host.preload(order)
    (ahead,) = {*psutil.Process().children()} - others - {last}
    host.preload(order)  # once more, as in the next recovery
    epoch = 7
    async with asyncio.timeout(PATIENCE_S):
        while last.is_running() and last.status() != psutil.STATUS_ZOMBIE:
            epoch += 1
            await host.kill_all(epoch=epoch)
            await asyncio.sleep(0.01)
        await host.ready()
    host.preload(order)
    assert {*psutil.Process().children()} - others - {last} == {ahead}
    assert ahead.status() != psutil.STATUS_ZOMBIE
    assert a_host.notes == []  # where rank 0 runs says it for all


async def test_a_node_whose_warm_parent_is_slow_is_fenced_without_delay(node):
    """An import that takes minutes on a busy machine made a healthy node count as hung."""
    node.host.signal_all(signal.SIGSTOP)
    for epoch in (1, 2, 2):
        await asyncio.wait_for(node.obey(Fence(epoch=epoch)), PATIENCE_S / 10)
    first, second, again = node.said
    assert isinstance(first, Fenced)
    assert isinstance(second, Fenced)
    assert [first.epoch, second.epoch] == [1, 2]
    assert first.address
    assert first.address != second.address  # older workers may still call there
    assert again == second


async def test_a_port_is_held_from_the_fence_until_workers_start_here_or_elsewhere(node):
    await node.obey(Fence(epoch=3))
    (fenced,) = node.said
    host, _, port = fenced.address.rpartition(":")

    def is_held() -> bool:
        with socket.socket() as caller:
            return caller.connect_ex((host, int(port))) == 0

    assert is_held()
    start = a_start(1, epoch=3)  # all meet on another node
    order = StartWorkers(
        epoch=3,
        order=start.order,
        seats=ToldSeats.of(start.seats.seated(["node-9"])),
        plan=PlanPart(version=None, tier="start"),
        rendezvous="10.0.0.1:1",
        fingerprint=None,
    )
    await node.obey(order)
    assert not is_held()
    await node.obey(Fence(epoch=4))
    await node.obey(Release(epoch=4))


async def test_a_warm_parent_that_stands_still_is_replaced_aloud(a_host):
    host = a_host(answer_s=1.0)
    await host.ready()
    serve(host, a_start(1, epoch=7))
    host.signal_all(signal.SIGSTOP)
    await asyncio.wait_for(host.kill_all(epoch=8), PATIENCE_S)
    a_host.close()
    assert a_host.notes
    assert all("does not answer: it is ended with its workers" in note for note in a_host.notes)


async def test_a_line_that_is_written_over_takes_no_memory_and_is_what_a_terminal_shows_of_it(
    a_host,
):
    """A progress bar of a run of days: each second it writes its one line anew."""
    host = a_host()
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    channel, _ = LocalChannel.pair()
    worker = Worker(rank=0, local_rank=0, born=1, epoch=1, channel=channel, output_fd=ours)
    try:
        for percent in range(1000):
            os.write(theirs, f"\r{percent:4} of 1000".encode())
            host._read_output(worker)
            assert len(worker.partial) < 20
        for more in (b"\nall done\r\n", b"x" * LINE_BYTES, b"y"):
            os.write(theirs, more)
            host._read_output(worker)
    finally:
        os.close(ours)
        os.close(theirs)
    *whole, long = a_host.lines
    assert whole == [" 999 of 1000", "all done"]
    assert len(long) == LINE_BYTES + 1


STARTS_SESSIONS = """
import os, socket, subprocess, sys, time
from pathlib import Path

listener = socket.create_server(("127.0.0.1", 0))
listener.set_inheritable(True)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = [subprocess.Popen(sleep, start_new_session=True, close_fds=False).pid]
shell = f"(setsid {sys.executable} -c 'import time; time.sleep(600)' >/dev/null & echo $!)"
pids.append(int(subprocess.check_output(shell, shell=True, stderr=subprocess.DEVNULL)))
ends = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        time.sleep(600)
    os.write(ends[1], str(pid).encode())
    os._exit(0)
pids.append(int(os.read(ends[0], 20)))
Path("left.new").write_text(" ".join(map(str, [listener.getsockname()[1], os.getpid(), *pids])))
Path("left.new").rename("left")
time.sleep(600 if sys.argv[1] == "stays" else 0.5)
sys.exit(3)
"""


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """As an agent's process does, for good."""
    _adopt_orphans(True)
    yield
    _adopt_orphans(False)


@pytest.mark.usefixtures("adopts_orphans")
@pytest.mark.parametrize("how", ["it ends", "it is killed", "its warm parent is killed"])
async def test_what_a_worker_started_in_sessions_of_its_own_ends_with_it(tmp_path, how):
    """Also what it forked twice, and what has the port open on which it listened."""
    (tmp_path / "train.py").write_text(STARTS_SESSIONS)
    others = children()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    async with Hosts() as a_host:
        host = a_host()
        args = ("goes" if how == "it ends" else "stays",)
        serve(host, a_start(1, epoch=8, cwd=str(tmp_path), args=args))
        await until((tmp_path / "left").exists)
        port, worker, *left = [int(word) for word in (tmp_path / "left").read_text().split()]
        if how == "it is killed":
            host.signal(0, signal.SIGKILL)
        elif how == "its warm parent is killed":
            host._process.kill()
        await until(lambda: a_host.codes)
        await host.kill_all(epoch=9)
        await until(lambda: all(map(_runs, children() - others)))  # a thread reaps them
    assert len(left) == 3
    await until(lambda: not any(map(_runs, left)))
    is_untouched = bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert [pid for pid in [worker, *left] if psutil.pid_exists(pid)] == []
    socket.create_server(("127.0.0.1", port)).close()
    assert is_untouched


def _adopt_orphans(does: bool) -> None:  # noqa: FBT001
    """What an agent's process does for good."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(does))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_worker_that_has_just_ended_is_struck_by_nothing_and_keeps_nothing_else_from_it(
    a_host,
):
    """Its warm parent has seen it go, and its agent has not heard of that yet."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = a_host()
    channel, _ = LocalChannel.pair()
    host.workers[0] = Worker(
        rank=0, local_rank=0, born=1, epoch=1, channel=channel, output_fd=-1, pid=ended.pid
    )
    hit = host.signal(0, signal.SIGKILL)
    host.signal_all(signal.SIGKILL)
    status = host._process.wait(PATIENCE_S)
    host.workers.clear()
    assert (hit, status) == (None, -signal.SIGKILL)


LAST_WORDS = """
import os, sys, time
if os.fork() == 0:  # it has the worker's output open, too, until it is ended with it
    time.sleep(600)
print("a whole line, and the rest", end="", flush=True)
os._exit(3)
"""


async def test_what_a_worker_says_last_is_heard_though_it_ends_no_line(a_host, tmp_path):
    (tmp_path / "train.py").write_text(LAST_WORDS)
    words: list[list[str]] = []
    host = a_host(on_exit=lambda worker, _: words.append([*worker.output]))
    serve(host, a_start(1, epoch=8, cwd=str(tmp_path)))
    await until(lambda: words)
    assert words[0][-1:] == ["a whole line, and the rest"]


async def test_an_agent_ends_though_its_warm_parent_stands_still(a_host):
    began_s = time.monotonic()
    host = a_host()
    await host.ready()
    host.signal_all(signal.SIGSTOP)
    a_host.close()
    assert time.monotonic() - began_s < PATIENCE_S


async def test_a_fence_is_answered_while_memory_is_read(node):
    """An inventory of a large memory takes minutes; a healthy node counted as hung meanwhile."""
    await node.bulk.warm_up()
    await node.memory.slab(0, a_slab())
    node.bulk.signal_all(signal.SIGSTOP)
    for order in (TakeInventory(epoch=1, run=1), Fence(epoch=2)):
        await asyncio.wait_for(node.obey(order), PATIENCE_S / 10)
    assert [type(one) for one in node.said] == [Fenced]
    await node.obey(TakeInventory(epoch=2, run=1))
    await until(lambda: len(node.said) == 2)
    _, inventory = node.said
    assert isinstance(inventory, Inventory)
    assert inventory.epoch == 2


class Node(Supervisor):
    """A supervisor, and what it said to its root agent; it is closed on the loop of its test."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        root = RootLink(print)
        root.open(SimpleNamespace(send=self.said.append))
        super().__init__(
            name="node-0",
            ip="127.0.0.1",
            warm=False,
            lab=LabLink("node-0"),
            root=root,
            tasks=Tasks(on_failure=print),
            leave=lambda: None,
            machine=AgentMachine(),
        )


@pytest.fixture
@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    made = Node()
    try:
        yield made
    finally:
        await made.close()


def a_slab() -> SlabRequest:
    layout = made(
        ShardLayout,
        stage=3,
        optimizer="Adam",
        tensors=lay_out([("weights", "float32", (16,))], start_bytes=64),
        small_offset_bytes=0,
        small_capacity_bytes=64,
        payload_bytes=128,
        weights={"w": (16,)},
    )
    slots = [SlotWanted(0, layout.payload_bytes)]
    return SlabRequest(slots=slots, chunk_bytes=4096, layout=layout)


def a_start(port: int, *, epoch: int, cwd: str = ".", args: tuple[str, ...] = ()) -> WorkerStart:
    seats = Seats(nodes=1, members=("node-0",))
    plan = RecoveryPlan(
        version=None, tier="start", sources=(), members=("node-0",), transfers=(), reason=""
    )
    return made(
        WorkerStart,
        epoch=epoch,
        order=JobOrder(
            number=1, run=1, job=Job(script="train.py", cwd=cwd, args=args), seats=seats
        ),
        seats=seats,
        plan=plan,
        rendezvous=f"127.0.0.1:{port}",
    )
