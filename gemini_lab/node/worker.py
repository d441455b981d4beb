"""A worker: one training process, from its start by the warm parent to the end of its script."""

import atexit
import gc
import multiprocessing
import os
import random
import re
import runpy
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import xxhash

from gemini_lab.display import readable
from gemini_lab.engine import session
from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.made_objects import follow_constructors
from gemini_lab.engine.own_code import process_code
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.process_exit import die_with_parent, leave
from gemini_lab.engine.process_exit import leave as end_process
from gemini_lab.errors import CannotGoOnError, shortened
from gemini_lab.job import HASH_SEED, Job, find_module
from gemini_lab.kept.process import kept_process
from gemini_lab.node.locked_tempdir import MPI_SHARED
from gemini_lab.node.processes import WORKER, name_semaphores, semaphore_prefix
from gemini_lab.node.stacks import offer_stacks
from gemini_lab.recovery.messages import ScriptError, ScriptFinished, WorkerStart
from gemini_lab.transfer.group import join_rendezvous
from gemini_lab.wire.local import LocalChannel

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

SOCKETS_FOLDER_BYTES: Final = 80
"""A longer path leaves too little of the 104 bytes of a socket's name on some systems."""
SWITCH_S: Final = 0.001
"""For so long at most a thread beside training's computes in Python while training waits for it."""
_UNWRITTEN: Final = re.compile(r"inline_container\.cc\S* \. unexpected pos|iostream error")
"""What `torch.save` says of a file that was not written to its end; the reason it keeps."""
_UNWRITTEN_MEANS: Final = (
    "torch could not write a file to its end, and does not say why; see that its disk has room"
)
_LOCAL_RANK: Final = re.compile(r"""["'](--local[_-]rank)["']""")


def distributed_environment(start: WorkerStart) -> dict[str, str]:
    """Return the variables that torchrun sets for a script and its libraries.

    Lightning looks for the run's id to tell that it was launched so, and for the group's rank;
    without them each node would take itself for the first.
    """
    host, _, port = start.rendezvous.rpartition(":")
    seats = start.seats
    rank, size = str(start.rank), str(seats.world_size)
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(seats.local_rank_of(start.rank)),
        "LOCAL_WORLD_SIZE": str(seats.workers_per_node),
        "GROUP_RANK": str(seats.position_of(start.rank)),
        "GROUP_WORLD_SIZE": str(seats.nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        # The store runs before the script does, as under torchrun, so every rank is its client.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": str(start.order.run),
    }


def keep_sockets_in(folder: str) -> None:
    """Put the sockets of multiprocessing here, a DataLoader's workers among them.

    It would make a folder of its own, in this process or in one that it starts, and remove it at
    the process's end, but not if it is killed.
    """
    if len(os.fsencode(folder)) > SOCKETS_FOLDER_BYTES:
        return
    # `multiprocessing.util.get_temp_dir` reads this key, and children inherit it; there is no
    # public way to name the folder.
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # noqa: SLF001


PRINTED: Final = 16_000
"""Characters of an error's text that a person is shown, at most: a tensor's may have millions."""

_AROUND_SCRIPTS: Final = frozenset({__file__, "<frozen runpy>"})
"""Files whose functions call a script."""


def settle_imports() -> None:
    """Exclude what exists now from garbage collection: it stays for good."""
    # Else each full collection would look at all that torch and DeepSpeed have made so far.
    gc.freeze()
    gc.enable()


def give_way_soon() -> None:
    """Make Python's threads take turns more often than every 5 ms, which is its default.

    Training's thread comes back from every collective and waits for its turn, and threads that send
    checkpoints have one now and then.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))


def run_script(job: Job, *, local_rank: int) -> None:
    """Run the job's script as `python SCRIPT ARGS` or `python -m MODULE ARGS` would."""
    option = "--local_rank" if job.passes_local_rank else local_rank_option(job)
    sys.argv = [job.script, *([] if option is None else [f"{option}={local_rank}"]), *job.args]
    # As Python does: the module's working folder, or the script's own, and nothing else.
    sys.path.insert(0, job.cwd if job.module else str(Path(job.script).resolve().parent))
    if job.module:
        runpy.run_module(job.script, run_name="__main__", alter_sys=True)
    else:
        process_code.note(str(Path(job.script).resolve()))
        runpy.run_path(job.script, run_name="__main__")


def local_rank_option(job: Job) -> str | None:
    """Return the option for the local rank that the script's own source asks for, if it does.

    `deepspeed` and torch.distributed's older launchers give one, and scripts that were written for
    them would all take the first GPU without it.
    """
    file: str | None = job.script
    if job.module:
        spec = find_module(job.script, cwd=job.cwd)
        file = None if spec is None else spec.origin
    try:
        source = Path(file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = _LOCAL_RANK.search(source)
    return None if found is None else found[1]


@contextmanager
def exits_noticed(leave: Callable[[int], None]) -> Iterator[None]:
    """Call `leave` before `os._exit`, by which scripts skip the end of Python.

    A process that the script has forked, and another thread, end as ever.
    """
    # Python calls no hook in `os._exit`, so the name in the module is replaced for the script.
    worker, end = os.getpid(), os._exit

    def exit_(status: int) -> NoReturn:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and os.getpid() == worker:
            os._exit = end
            leave(status)
        end(status)

    os._exit = exit_
    try:
        yield
    finally:
        os._exit = end


@contextmanager
def forks_apart() -> Iterator[None]:
    """Exit a forked child where the script ends; only the worker reports."""
    worker, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == worker:
            raise
        status = status_of(error)
    if os.getpid() != worker:
        end_process(status)


def work(start: WorkerStart, channel_fd: int, listen_fd: int | None) -> int:
    """Run a worker from its start to its end; return the exit status."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    settle_in(start)
    channel = LocalChannel.adopt(channel_fd)
    beside = offer_stacks(start.scratch)
    pulse = Heartbeat(channel.send, rank=start.rank, epoch=start.epoch, beside=beside)
    pulse.start()
    # DeepSpeed calls torch by its older names: nothing that a script's author could mend.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        avoid_shared_memory_collectives()
        settle_imports()
        give_way_soon()
        follow_constructors()
        store = join_rendezvous(start.rendezvous, listen_fd)
        session.current = open_session(start, channel, store, pulse)
        run_to_its_end(start, channel)
    except SystemExit as leave:
        say_left(leave, channel)
        return said_status(leave)
    except BaseException as error:  # noqa: BLE001  (the process's edge: reported, then it ends)
        say_error(error, channel)
        return 1
    with pulse.pause("the script's threads and exit handlers"):
        end_as_python_does(partial(say_finished, start, channel))
    say_finished(start, channel)
    return 0


def run_to_its_end(start: WorkerStart, channel: LocalChannel) -> None:
    """Run the job's script, and let its last version become whole.

    Raises:
        SystemExit: The script leaves with an error.
        BaseException: It failed, or the version did.
    """
    seed_as_by_chance(start.order.run, start.rank)
    try:
        with exits_noticed(partial(leave_early, start, channel)), forks_apart():
            run_script(start.order.job, local_rank=start.seats.local_rank_of(start.rank))
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise
    finish()


def seed_as_by_chance(run: int, rank: int) -> None:
    """Seed the generators that a process seeds by chance; the same at each start of a rank.

    A script that draws before it seeds them, such as which samples validate, would draw others
    after a failure. Workers that were forked from one parent would all draw the same from numpy's.
    """
    seed = xxhash.xxh3_64_intdigest(f"{run}/{rank}".encode())
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - scripts still use it


def settle_in(start: WorkerStart) -> None:
    """Move this process to the job's folder, with the environment that the script expects."""
    job = start.order.job
    os.environ.update(distributed_environment(start))
    if start.interface is not None:
        # Otherwise they use what the host's own name means, which is often a loopback address.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, start.interface)
    os.environ.update(job.env)
    os.environ[HASH_SEED] = str(start.order.hash_seed)  # what the script starts inherits it
    os.environ[WORKER] = str(os.getpid())
    os.chdir(job.cwd)
    # By which a process that multiprocessing spawns finds a script that is named from there.
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    name_semaphores(semaphore_prefix(start.order.run, os.getpid()))
    keep_parents_things()
    if start.scratch:
        keep_sockets_in(start.scratch)
        os.environ.setdefault(MPI_SHARED, start.scratch)  # some scripts' libraries begin MPI


def open_session(
    start: WorkerStart, channel: LocalChannel, store: "TCPStore", pulse: Heartbeat
) -> session.WorkerSession:
    """Return the session that `gemini_lab.protect` finds in the script."""
    kept = kept_process(start, store)
    return session.WorkerSession(start=start, channel=channel, store=store, pulse=pulse, kept=kept)


def say_error(error: BaseException, channel: LocalChannel) -> None:
    """Print why the script ends; one that only lost its peers has made no error of its own."""
    if lost_with_a_rank(error):
        print(f"lost a peer: {type(error).__name__}: {text_of(error)}", file=sys.stderr)  # noqa: T201
        return
    text = text_of(error)
    if isinstance(error, RuntimeError) and _UNWRITTEN.search(text):
        error.add_note(_UNWRITTEN_MEANS)
        text = f"{text} ({_UNWRITTEN_MEANS})"
    print_error(error)
    channel.send(ScriptError(error=type(error).__name__, text=readable(text, has_lines=True)))


def text_of(error: BaseException) -> str:
    """Return what an error says, as far as its class can say it, and short enough to be told."""
    try:
        return shortened(str(error))
    except Exception as second:  # noqa: BLE001 - the script's own code raises it
        return f"(its text cannot be made: {type(second).__name__})"


def say_left(leave: SystemExit, channel: LocalChannel) -> None:
    """Tell that the script ends itself with an error, where that is one of its own."""
    if not lost_with_a_rank(leave):
        channel.send(ScriptError(error="SystemExit", text=readable(text_of(leave), has_lines=True)))


def lost_with_a_rank(error: BaseException) -> bool:
    """Return whether a script failed only because a rank of its iteration was lost."""
    is_broken = session.current is not None and session.current.kept.is_broken
    return is_broken or isinstance(error, CannotGoOnError)


def status_of(error: BaseException) -> int:
    """Return the exit status of a process that ends with this error; print what Python prints."""
    if not isinstance(error, SystemExit):
        print_error(error)
        return 1
    return 0 if error.code is None else said_status(error)


def said_status(leave: SystemExit) -> int:
    """Return the exit status that a script asks for; print a text, as Python does: it means 1."""
    if isinstance(leave.code, int):
        return leave.code
    print(shortened(str(leave.code), PRINTED), file=sys.stderr)  # noqa: T201
    return 1


def print_error(error: BaseException) -> None:
    """Print an error with its traceback as Python would, from the script's own frames on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _AROUND_SCRIPTS:
        frames = frames.tb_next
    for part in traceback.format_exception(type(error), error, frames or error.__traceback__):
        print(shortened(part, PRINTED), end="", file=sys.stderr)  # noqa: T201


def leave_early(start: WorkerStart, channel: LocalChannel, status: int) -> None:
    """End a script that calls `os._exit` as one that runs out, or fails, ends."""
    if status:
        say_left(SystemExit(status), channel)
        return
    finish()
    say_finished(start, channel)


def say_finished(start: WorkerStart, channel: LocalChannel) -> None:
    """Tell that the script has ended, and wait for the others: they may need what this serves."""
    sys.stdout.flush()
    sys.stderr.flush()
    if session.current is not None:
        start = session.current.start  # of a later epoch, where this process was kept
    channel.send(ScriptFinished(rank=start.rank, epoch=start.epoch))
    if session.current is not None:
        session.current.outlast()


def finish() -> None:
    """Wait until the last version is whole, because the script has ended."""
    if session.current is not None:
        session.current.pulse.enter("finishing")
        session.current.finish()


LIMIT_S: Final = 60.0
"""For the script's threads and handlers, all together."""


def keep_parents_things() -> None:
    """Leave the warm parent's exit handlers to the warm parent."""
    # `TemporaryDirectory` registers its removal there, which a fork inherits: the first worker that
    # ends would remove what its parent and all others use.
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
    for info in registry.values():
        info.atexit = False


def end_as_python_does(go_on: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """Wait for the script's threads and call what it registered with `atexit`, last first.

    Args:
        go_on: What this process does afterwards. It is called by another thread, and this process
            ends then, where that takes longer than the limit.
        limit_s: For all of them.
    """

    def give_up() -> None:
        print(  # noqa: T201 - in the script's output, where its author looks
            f"gemini_lab: threads of the script, or what it registered with atexit, still ran "
            f"{limit_s:.0f} s after its end; it ends without them",
            file=sys.stderr,
            flush=True,
        )
        go_on()
        leave(0)

    late = threading.Timer(limit_s, give_up)
    late.daemon = True
    late.start()
    # Python has no other way in to either; it calls both at an interpreter's end.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    late.cancel()
