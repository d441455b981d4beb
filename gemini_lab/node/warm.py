"""The warm parent: a process that has imported everything and forks workers from itself.

Importing torch and DeepSpeed is most of what a restart costs. A node's agent therefore keeps one
process that has done it, with one thread and a frozen heap, and forks the node's workers from it.
It never touches CUDA, gRPC or a network: a process that did must not fork. When the agent dies,
this process kills the workers and ends.

Run as `python -m gemini_lab.node.warm FD WARM` with the agent's socket as descriptor FD; WARM 0
imports nothing and starts every worker as a new interpreter (for comparison). So does one for which
an import has failed.
"""

import copy
import gc
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

import cpuinfo
import msgspec
import psutil

from gemini_lab.engine.own_code import process_code
from gemini_lab.engine.process_exit import adopt_orphans, tie_to_parent, untie_from_parent
from gemini_lab.job import HASH_SEED, hash_seed_in, python_command
from gemini_lab.node.processes import end_orphans, remove_semaphores, semaphore_prefix, worker_of
from gemini_lab.recovery.messages import (
    Fork,
    Forked,
    Killed,
    KillWorkers,
    Message,
    ParentReady,
    Preload,
    Reaped,
    WorkerStart,
)
from gemini_lab.wire.local import LocalChannel

ORPHANS_S: Final = 5.0  # for what a worker leaves running to be gone
HEAVY_MODULES: Final = (
    "torch",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed",
    "torch.distributed.fsdp",
    "deepspeed",
    "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.muon.original_muon",
    "gemini_lab.node.worker",
    "gemini_lab.engine.protection",
    "safetensors.torch",
    "numpy",
)
"""What a training script imports, and what `deepspeed.initialize` imports late."""


def import_heavy(names: Iterable[str] = HEAVY_MODULES) -> bool:
    """Import everything that workers need; a module that this version lacks is left out.

    Returns:
        Whether all others could be imported. What has stopped halfway stops elsewhere when it is
        imported again: only a new interpreter tells a script why.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        except Exception:  # noqa: BLE001 - a library's own code raises it
            traceback.print_exc()  # in the agent's log
            return False
    return True


class WarmParent:
    """Forks, kills and reaps workers as its agent says."""

    def __init__(self, channel: LocalChannel, *, warm: bool) -> None:
        self._channel = channel
        self._warm = warm
        self._children: dict[int, WorkerStart] = {}  # by pid
        self._own: set[int] = set()  # processes of its own: what its imports started

    def serve(self) -> None:
        """Do what the agent asks until it is gone; then kill the workers."""
        adopt_orphans()
        self._own = {one.pid for one in psutil.Process().children()}
        # A SIGCHLD between a look and `select` would be lost: Python writes each into this pipe.
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        self._channel.send(ParentReady())
        with selectors.DefaultSelector() as ready:
            ready.register(self._channel, selectors.EVENT_READ)
            ready.register(woken, selectors.EVENT_READ)
            is_open = True
            while is_open:
                for key, _ in ready.select():
                    if key.fd == woken:
                        os.read(woken, 4096)
                    else:
                        messages, is_open = self._channel.poll()
                        for message, fds in messages:
                            self._handle(message, fds)
                self._reap()
        self._kill_all()

    def _handle(self, message: Message, fds: list[int]) -> None:
        match message:
            case Fork():
                self._fork(message.start, fds)
            case Preload():
                from gemini_lab.node.preload import preload  # noqa: PLC0415 - imports much

                self._channel.send(preload(message))
            case KillWorkers():
                self._kill_all(spare=message.spare)
                self._channel.send(Killed(epoch=message.epoch))

    def _fork(self, start: WorkerStart, fds: list[int]) -> None:
        channel_fd, output_fd, *port = fds
        listen_fd = port[0] if port else None
        reason = ""
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory for one more
            pid, reason = -1, f"its process could not be started: {error}"
        if pid == 0:
            self._become_worker(start, channel_fd, output_fd, listen_fd)
        for fd in fds:
            os.close(fd)
        if reason:
            self._channel.send(
                Reaped(pid=0, code=1, rank=start.rank, epoch=start.epoch, reason=reason)
            )
            return
        # Parent and child both do it: whichever comes first, `killpg` finds the group from now on.
        with suppress(OSError):
            os.setpgid(pid, pid)
        self._children[pid] = start
        self._channel.send(Forked(pid=pid, rank=start.rank, epoch=start.epoch))

    def _become_worker(
        self, start: WorkerStart, channel_fd: int, output_fd: int, listen_fd: int | None
    ) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            # The pipe is still the parent's: a child of the script that ends must not wake it.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The agent takes the channel's end for this parent's: no worker may keep it open.
            self._channel.close()
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            # A fork has its parent's order of sets, which was settled as that started.
            if self._warm and hash_seed_in(os.environ) == start.order.hash_seed:
                from gemini_lab.node.worker import work  # noqa: PLC0415

                status = work(start, channel_fd, listen_fd)
            else:
                self._exec_worker(start, channel_fd, listen_fd)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            # Not `sys.exit`: handlers that the parent registered are the parent's.
            os._exit(status)

    @staticmethod
    def _exec_worker(start: WorkerStart, channel_fd: int, listen_fd: int | None) -> None:
        for fd in (channel_fd, listen_fd):
            if fd is not None:
                os.set_inheritable(fd, True)
        # Everybody on the machine reads a command line, and the job's environment has secrets.
        from gemini_lab.memory.slab import anonymous_file  # noqa: PLC0415  (imports NumPy)

        told = anonymous_file()
        os.set_inheritable(told, True)
        with open(told, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(start))
        command = python_command("gemini_lab.node.cold", channel_fd, listen_fd, told)
        os.environ[HASH_SEED] = str(start.order.hash_seed)
        os.execv(command[0], command)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._report(pid, status)

    def _report(self, pid: int, status: int) -> None:
        child = self._children.pop(pid, None)
        if child is not None:
            code = os.waitstatus_to_exitcode(status)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what the worker itself had started
            self._end_what_is_left(pid)
            remove_semaphores(semaphore_prefix(child.order.run, pid))
            self._channel.send(Reaped(pid=pid, code=code, rank=child.rank, epoch=child.epoch))

    def _end_what_is_left(self, pid: int) -> None:
        """End what a worker had started in sessions of their own, which is this process's now.

        As long as other workers run, only what shows whose it is: a process that one of them has
        left running may be here, too.
        """
        known = self._own | self._children.keys()
        end_orphans(
            lambda one: one.pid not in known and (not self._children or worker_of(one) == pid),
            within_s=ORPHANS_S,
        )

    def _kill_all(self, *, spare: Collection[int] = ()) -> None:
        doomed = [pid for pid, start in self._children.items() if start.rank not in spare]
        for pid in doomed:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for pid in doomed:
            _, status = os.waitpid(pid, 0)
            self._report(pid, status)


def main() -> None:
    """Import, freeze, serve."""
    fd, warm = int(sys.argv[1]), sys.argv[2] == "1"
    # Ctrl-C goes to the whole foreground group; the lab ends its nodes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = LocalChannel.adopt(fd)
    if warm:
        process_code.follow_imports()
        tie_to_parent()  # an import does not read messages
        gc.disable()  # it would only find that what is being imported is in use
        facts = CpuFacts()
        warm = import_heavy()
        facts.remember()
        gc.enable()
        # A collector that looks at imported objects writes to their pages, and each worker would
        # then have a copy of what it shares with this parent.
        gc.collect()
        gc.freeze()
        untie_from_parent()  # it ends workers first
    WarmParent(channel, warm=warm).serve()


ANSWER_S: Final = 30.0


class CpuFacts:
    """A question to py-cpuinfo, on its way."""

    def __init__(self) -> None:
        self._asked = subprocess.Popen(
            [sys.executable, cpuinfo.cpuinfo.__file__, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def remember(self) -> None:
        """Give py-cpuinfo the answer, in this process and those forked from it.

        Without an answer it asks each time, as it does.
        """
        try:
            answer, _ = self._asked.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._asked.kill()
            answer, _ = self._asked.communicate()
        facts: dict[str, Any] = {}
        with suppress(ValueError):
            facts = json.loads(answer)
        if facts:
            cpuinfo.get_cpu_info = lambda: copy.deepcopy(facts)


if __name__ == "__main__":
    main()
