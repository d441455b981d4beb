"""A node's workers: started through the warm parent, listened to, killed."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import psutil

from gemini_lab.errors import CapacityError, shortened
from gemini_lab.job import hash_seed_in
from gemini_lab.limits import LINE, MOST_LINES
from gemini_lab.node.locked_tempdir import LockedTempdir
from gemini_lab.node.preload import NextParent, start_parent
from gemini_lab.node.processes import end_orphans, is_alive, is_workers, reap, signal_tree
from gemini_lab.node.stacks import Stacks, take_stacks
from gemini_lab.recovery.messages import (
    Fork,
    Forked,
    Killed,
    KillWorkers,
    Message,
    ParentReady,
    Preload,
    Reaped,
    ScriptError,
    ScriptFinished,
    WorkerStart,
)
from gemini_lab.wire.local import LocalChannel

LINE_BYTES: Final = 2**16  # so long a line is one, whether it ends or not
GONE_LOOK_S: Final = 0.05
GONE_S: Final = 1.0  # for what killed workers left running, at the agent's end
IMPORTS_S: Final = 300.0  # for a warm parent to be ready; then it is ended, and another started
MOST_LOST_IMPORTS: Final = 3
PARENT_PAUSE_S: Final = 1.0
"""Until a warm parent that could not be started is tried again, ever later up to the next."""
LONGEST_PARENT_PAUSE_S: Final = 30.0
ANSWER_S: Final = 30.0  # the same for its answers: less than the root waits for a fence
CLOSE_S: Final = 5.0  # for it to end its workers and itself, at the agent's end
SCRATCH: Final = "gemini_lab-node-"
"""What the names of folders for workers' temporary files begin with."""


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker of this node."""

    rank: int
    local_rank: int
    born: int  # the epoch in which its process was started
    epoch: int  # the one to which it belongs; a later one, where its process was kept
    channel: LocalChannel
    output_fd: int
    is_ahead: bool = False  # whether it was started beside those that train, and has no place yet
    scratch: str = ""  # its folder, which goes with it; empty where it has none
    pid: int | None = None
    held_bytes: int = 0  # of memory, when it was seen last; 0 before that
    status: Literal["running", "finished"] = "running"
    error: ScriptError | None = None  # when the script ended with an exception
    output: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    partial: bytes = b""


class WorkerHost:
    """Starts and ends the workers of one node, on the agent's event loop."""

    def __init__(
        self,
        *,
        warm: bool,  # whether workers are forked from a parent that has imported everything
        # Called with a worker, what it said, and the descriptors it sent along.
        on_message: Callable[[Worker, Message, list[int]], None],
        # Called with a worker and the lines that it printed.
        on_output: Callable[[Worker, list[str]], None],
        # Called with a worker that ended, and its exit code (negative: the signal).
        on_exit: Callable[[Worker, int], None],
        on_note: Callable[[str], None],  # called with what a person should know
        answer_s: float = ANSWER_S,  # how long the warm parent may take to answer
    ) -> None:
        self.workers: dict[int, Worker] = {}
        self._warm = warm
        self._on_message, self._on_output, self._on_exit = on_message, on_output, on_exit
        self._on_note, self._answer_s = on_note, answer_s
        # Workers whose parent was ended before it had seen them go.
        self._dying = set[psutil.Process]()
        # By epoch, and in the order of the questions: several may wait for the same.
        self._killed: defaultdict[int, deque[asyncio.Future[Killed]]] = defaultdict(deque)
        self._is_ready = asyncio.Event()
        self._lost_imports = 0  # parents in a row that ended before they were ready
        self._no_parent = ""  # why none could be started, as long as there is none
        self._has_orphans = False  # whether a parent died before it had reaped its workers
        self._is_closed = False
        self._next: NextParent | None = None  # which imports more than this one
        self._preloaded: list[str] = []  # what this one has imported of the job's
        self._retired: list[subprocess.Popen[bytes]] = []
        self._scratch = LockedTempdir(SCRATCH)
        self._hash_seed = hash_seed_in(os.environ) or 0  # of the newest warm parent
        self._start_parent()

    @property
    def is_ready(self) -> bool:
        """Whether the warm parent has imported everything."""
        return self._is_ready.is_set()

    async def ready(self) -> None:
        """Wait until the warm parent has imported everything."""
        await self._is_ready.wait()

    async def kill_all(self, *, epoch: int, spare: Collection[int] = ()) -> None:
        """Kill the workers, but for those of the ranks to spare, and wait until none is left.

        A node without any does not wait for its warm parent, which may still be importing. One
        that the kernel does not let go is waited for however long it takes: it may still write
        to the node's memory. The root agent does without this node then.
        """
        if self.workers.keys() - {*spare}:
            await self._have_killed(KillWorkers(epoch=epoch, spare=[*spare]))
        while self._dying:
            self._dying = {one for one in self._dying if is_alive(one)}
            await asyncio.sleep(GONE_LOOK_S if self._dying else 0)
        if self._has_orphans:
            # Linux gives a dead parent's workers to the agent, which has to wait for them.
            await asyncio.to_thread(end_orphans, is_workers, within_s=GONE_S)
            self._has_orphans = False
        self._take_next_parent()

    def preload(self, order: Preload) -> None:
        """Start another warm parent that imports these, for the workers after the next fence.

        One that has been told to, also one that must not be forked, is not asked again.
        """
        if order.modules in (self._preloaded, self._next and self._next.modules):
            return
        if self._next is not None:
            self._next.close()
        # Of many nodes that import the same, one says how it went.
        self._begin_next(order, self._on_note if 0 in self.workers else bool)

    def _begin_next(self, order: Preload, on_note: Callable[[str], object]) -> None:
        with suppress(OSError):  # without it the next start imports by itself
            self._next = NextParent(
                order, warm=self._warm, hash_seed=self._hash_seed, on_note=on_note
            )

    def _follow_seed(self, start: WorkerStart) -> None:
        """Start a warm parent with the job's hash seed, from which later workers are forked.

        Until there is one, the parent of now has each worker begin as a new interpreter.
        """
        if start.order.hash_seed == self._hash_seed:
            return
        self._hash_seed = start.order.hash_seed
        if self._next is not None:
            self._next.close()
            self._next = None
        if self._warm:
            order = Preload(epoch=start.epoch, modules=[], environment={})
            self._begin_next(order, self._on_note)

    def start(self, start: WorkerStart, port: tuple[int, ...] = ()) -> None:
        """Start one worker; of one that cannot be started it is said how it ended.

        Args:
            start: What it is told.
            port: The descriptor of the port in which all ranks meet, if this worker serves it.

        Raises:
            OSError: The agent itself has no descriptor left for it.
        """
        self._follow_seed(start)
        with ExitStack() as undo:
            channel, theirs = LocalChannel.pair()
            undo.callback(channel.close)
            undo.callback(theirs.close)
            output_fd, their_output = os.pipe()
            undo.pop_all()
        # What a worker has started may hold the pipe's other end after the worker is gone.
        os.set_blocking(output_fd, False)
        worker = Worker(
            rank=start.rank,
            local_rank=start.seats.local_rank_of(start.rank),
            born=start.epoch,
            epoch=start.epoch,
            channel=channel,
            output_fd=output_fd,
            is_ahead=bool(start.joins),
            scratch=self._scratch.make(),
        )
        self.workers[worker.rank] = worker
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, self._read_worker, worker)
        loop.add_reader(output_fd, self._read_output, worker)
        if not self._no_parent:
            start = msgspec.structs.replace(start, scratch=worker.scratch)
            self._parent.send(Fork(start=start), (theirs.fileno(), their_output, *port))
        theirs.close()
        os.close(their_output)
        if self._no_parent:
            self._end_unstarted(worker, self._no_parent)

    def signal(self, rank: int, signal_number: int) -> int | None:
        """Send a signal to a worker; returns its pid, or `None` when it does not run."""
        worker = self.workers.get(rank)
        if worker is None or worker.pid is None:
            return None
        try:
            os.kill(worker.pid, signal_number)
        except ProcessLookupError:  # its warm parent has seen it go, and says so next
            return None
        return worker.pid

    async def stacks(self, worker: Worker) -> Stacks:
        """Return where a worker's threads are; it goes on as before."""
        return await take_stacks(worker.scratch, worker.pid)

    def lives(self, rank: int) -> bool:
        """Return whether a worker is well: it has not ended, nor said that it is about to."""
        worker = self.workers[rank]
        self._read_worker(worker)
        return worker.error is None and (worker.pid is None or _runs(worker.pid))

    def close(self) -> None:
        """End the warm parent; it kills the workers."""
        self._is_closed = True
        self._close_parent()
        if self._next is not None:
            self._next.close()
        try:
            for process in (*self._retired, self._process):
                process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._kill_parent()
        end_orphans(is_workers, within_s=GONE_S)
        self._scratch.close()

    def signal_all(self, signal_number: int) -> None:
        """Send a signal to every process of this node but the agent itself, at once."""
        parents = [self._process, *([] if self._next is None else [self._next.process])]
        for parent in parents:
            signal_tree(parent.pid, signal_number)

    def _start_parent(self) -> None:
        self._preloaded = []
        self._process, self._parent = start_parent(warm=self._warm, hash_seed=self._hash_seed)
        asyncio.get_running_loop().add_reader(self._parent, self._read_parent)

    def _start_next_parent(self, pause_s: float = PARENT_PAUSE_S) -> None:
        """Start another warm parent, again and again where the machine lacks what that needs."""
        if self._is_closed:
            return
        try:
            self._start_parent()
        except OSError as error:
            text = f"the process that starts workers could not be started: {error}"
            if not self._no_parent:
                self._on_note(f"{text}; it is tried again")
            self._no_parent = text
            again_s = min(2 * pause_s, LONGEST_PARENT_PAUSE_S)
            asyncio.get_running_loop().call_later(pause_s, self._start_next_parent, again_s)
        else:
            self._no_parent = ""

    def _take_next_parent(self) -> None:
        """Fork workers from the next parent from now on, if it is ready."""
        if self._next is None or not self._next.is_ready or self.workers or self._no_parent:
            return
        asyncio.get_running_loop().remove_reader(self._parent)
        self._parent.close()  # it ends by that
        reap(self._process)
        self._retired.append(self._process)
        self._preloaded = self._next.modules
        self._process, self._parent = self._next.hand_over()
        self._next = None
        self._is_ready.set()
        asyncio.get_running_loop().add_reader(self._parent, self._read_parent)

    async def _have_killed(self, order: KillWorkers) -> None:
        """Wait until the warm parent has obeyed; replace one that does not answer."""
        # Answers have no numbers: the parent answers in order, so the oldest order is meant.
        future: asyncio.Future[Killed] = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPORTS_S):
                await self.ready()
        self._killed[order.epoch].append(future)
        if self._is_ready.is_set():
            self._parent.send(order)
            await asyncio.wait([future], timeout=self._answer_s)
        if not future.done():
            self._on_note(
                f"the warm parent {self._process.pid} does not answer: it is ended with its "
                "workers, and another one started"
            )
            self._kill_parent()
            self._replace_parent()  # which tells all who wait
        await future

    def _kill_parent(self) -> None:
        """End the warm parent and all that it started, as far as the kernel does it at once."""
        for worker in self.workers.values():
            if worker.pid is not None:
                with suppress(psutil.NoSuchProcess):  # by more than its number, which others get
                    self._dying.add(psutil.Process(worker.pid))
        signal_tree(self._process.pid, signal.SIGKILL)

    def _read_parent(self) -> None:
        messages, is_open = self._parent.poll()
        for message, _ in messages:
            self._handle_parent(message)
        if not is_open:
            self._replace_parent()

    def _handle_parent(self, message: Message) -> None:
        match message:
            case ParentReady():
                self._is_ready.set()
                self._lost_imports = 0
            case Forked() | Reaped():
                worker = self.workers.get(message.rank)
                if worker is None or worker.born != message.epoch:
                    return
                if isinstance(message, Reaped) and message.reason:
                    self._end_unstarted(worker, message.reason)
                    return
                worker.pid = message.pid
                if isinstance(message, Reaped):
                    self._end(worker, message.code)
            case Killed():
                _answer(self._killed[message.epoch], message)

    def _replace_parent(self) -> None:
        """Start another warm parent, because this one died and its workers with it."""
        self._close_parent()
        reap(self._process)
        end_orphans(is_workers)  # those of workers whose warm parent could not do it
        self._has_orphans = True
        if not self._is_ready.is_set():
            self._lose_imports(self._process)
        self._is_ready.clear()
        self._start_next_parent()
        for worker in list(self.workers.values()):
            self._end(worker, -signal.SIGKILL)
        for epoch, waiting in self._killed.items():
            while waiting:
                _answer(waiting, Killed(epoch=epoch))

    def _lose_imports(self, parent: "subprocess.Popen[bytes]") -> None:
        """Count parents that died while they imported; after some, import nothing ahead."""
        self._lost_imports += 1
        if self._warm and self._lost_imports == MOST_LOST_IMPORTS:
            self._warm = False
            with suppress(subprocess.TimeoutExpired):
                parent.wait(GONE_LOOK_S)
            self._on_note(
                f"the process that imports for workers ended {MOST_LOST_IMPORTS} times before it "
                f"had imported everything (exit status {parent.poll()}): each worker is a new "
                "interpreter from now on, which starts more slowly"
            )

    def _close_parent(self) -> None:
        if not self._no_parent:  # else its channel is closed already
            asyncio.get_running_loop().remove_reader(self._parent)
            self._parent.close()

    def _end_unstarted(self, worker: Worker, reason: str) -> None:
        """Report a worker whose process never began, for something that the machine lacks."""
        worker.output.append(reason)
        worker.error = ScriptError(error=CapacityError.__name__, text=reason)
        self._end(worker, 1)

    def _end(self, worker: Worker, code: int) -> None:
        self._read_worker(worker)
        self._read_output(worker, is_last=True)
        loop = asyncio.get_running_loop()
        loop.remove_reader(worker.channel)
        loop.remove_reader(worker.output_fd)
        worker.channel.close()
        os.close(worker.output_fd)
        if worker.scratch:
            shutil.rmtree(worker.scratch, ignore_errors=True)
        del self.workers[worker.rank]
        self._on_exit(worker, code)

    def _read_worker(self, worker: Worker) -> None:
        if not worker.channel.waits(0.0):
            return
        messages, is_open = worker.channel.poll()
        for message, fds in messages:
            if isinstance(message, ScriptFinished):
                worker.status = "finished"
            elif isinstance(message, ScriptError):
                worker.error = message
            self._on_message(worker, message, fds)
        if not is_open:
            asyncio.get_running_loop().remove_reader(worker.channel)

    def _read_output(self, worker: Worker, *, is_last: bool = False) -> None:
        """Take what a worker printed; what it printed last counts as a line, too."""
        try:
            data = os.read(worker.output_fd, 2**16)
        except BlockingIOError:
            if not is_last:
                return
            data = b""  # what it has started still holds its end of the pipe
        if not data:
            asyncio.get_running_loop().remove_reader(worker.output_fd)
        *lines, rest = (worker.partial + data).split(b"\n")
        worker.partial = _as_shown(rest)
        is_over = is_last or not data
        if worker.partial and (is_over or len(worker.partial) > LINE_BYTES):
            lines, worker.partial = [*lines, worker.partial], b""
        texts = [_as_shown(line).rstrip(b"\r").decode(errors="replace") for line in lines]
        if texts:
            worker.output.extend(shortened(text, LINE) for text in texts)
            self._on_output(worker, texts)


def _as_shown(line: bytes) -> bytes:
    """Return the part of a line that a terminal shows, because a progress bar may never end one."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _answer(waiting: deque[asyncio.Future[Killed]], answer: Killed) -> None:
    """Give the answer to the oldest question."""
    if waiting and not (future := waiting.popleft()).done():
        future.set_result(answer)


def _runs(pid: int) -> bool:
    """Return whether a process is there and not only its exit status."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
