"""A worker's pulse: once a second a thread of its own says what the training thread does.

That thread's own life proves nothing of training. So it looks at the training thread: at what that
counts (iterations, updates, collectives, chunks), at where in the script it is, and at the time
that it has used of a processor. Which of that is a hang is decided elsewhere, in `recovery.hangs`.
"""

import gc
import pickle
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gemini_lab.recovery.messages import Doing, Entered, WorkerPulse

BEAT_S: Final = 1.0
IDLE_S: Final = 3.0
"""After so long without any work, a worker looks at which collectives it has entered."""
SPINS_S: Final = 10.0
"""The same while it uses a processor, as a wait for a device does."""
MOST_GROUPS: Final = 64
"""Process groups of which one rank tells."""
WORKING_SHARE: Final = 0.001
"""Of a processor: who uses less only polls, or waits for good."""
_C10D: Final = "torch.distributed.distributed_c10d"
_STANDING: Final = {"gemini_lab.kept.groups", "gemini_lab.kept.works"}
_OWN_GROUP: Final = "gemini_lab.transfer.group"
_COLLECTS_ANYWHERE: Final = sys.version_info < (3, 12)
_COMPILERS: Final = {"torch._dynamo.convert_frame", "torch._inductor.compile_fx"}
"""Whose functions run while `torch.compile` compiles, and not when what they made does."""
_OWN_WAITS: Final = {
    ("gemini_lab.transfer.collective_calls", "between_s"): "a collective",
    ("gemini_lab.transfer.link", "sleep_until"): "a collective",
    ("gemini_lab.transfer.collective_calls", "wait"): "a collective",
    ("gemini_lab.transfer.replicator", "_await"): "the transfer of a version",
}
"""Functions of ours in which training waits for other ranks; elsewhere there it computes."""
_NOT_THE_SCRIPTS: Final = (sysconfig.get_paths()["stdlib"], "<", str(Path(__file__).parents[1]))


class Heartbeat:
    """A worker's heartbeat: what its training thread does now.

    The thread that makes it is the one that is watched; it calls `enter`, `within` and `pause`.

    Args:
        say: Tells the agent; called on the pulse's own thread.
        rank, epoch: The worker's; the epoch may become a later one.
        clock: Seconds, of a clock that nobody sets.
        used_s: Seconds of a processor that the watched thread has used.
        beside: Called after each beat, on the pulse's own thread.
    """

    def __init__(
        self,
        say: Callable[[WorkerPulse], object],
        *,
        rank: int,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] | None = None,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        self._say, self._beside = say, beside
        self._rank, self.epoch = rank, epoch
        self._clock = clock
        # The thread that makes the heartbeat is the one that trains.
        self._thread_id = threading.get_ident()
        self._used_s = used_s or _processor_time_of(self._thread_id)
        self._activity: tuple[Doing, str] = ("starting", "")
        self._pauses: list[str] = []
        self._moves = 0
        self._calls: Callable[[], int] = lambda: 0
        self._messages: Callable[[], int] = lambda: 0
        now = clock()
        self._moved_s = self._worked_s = self._looked_s = now
        self._seen: tuple[object, float, object] = (None, self._used_s(), None)
        self._recorder = FlightRecorder()

    # -- the training thread -------------------------------------------------------------------

    def enter(self, doing: Doing, detail: str = "") -> None:
        self._activity = (doing, detail)
        self._moves += 1

    @contextmanager
    def within(self, doing: Doing, detail: str = "") -> Iterator[None]:
        """Note what it does inside the block, and afterwards what it did before."""
        before = self._activity
        self.enter(doing, detail)
        try:
            yield
        finally:
            self.enter(*before)

    @contextmanager
    def pause(self, reason: str) -> Iterator[None]:
        """Count as paused inside the block, whatever it does."""
        self._pauses.append(reason)
        try:
            yield
        finally:
            self._pauses.pop()
            self._moves += 1

    def watch(self, *, calls: Callable[[], int], messages: Callable[[], int]) -> None:
        """Look at collectives of the iteration and messages of checkpoints, too."""
        self._calls, self._messages = calls, messages

    # -- the pulse's thread --------------------------------------------------------------------

    def start(self) -> None:
        """Report once a second, as long as the process lives."""
        threading.Thread(target=self._beat, name="gemini-pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._say(self.look())
            self._beside()
            time.sleep(BEAT_S)

    @property
    def idle_s(self) -> float:
        """Return the seconds for which training's thread has done nothing; 0 while it is paused."""
        return 0.0 if self._pauses else self._clock() - self._worked_s

    def place(self) -> str:
        """Return where in the script it is, such as `train.py:88 in evaluate`."""
        with _stacks() as stacks:
            return _place(stacks.get(self._thread_id, []))

    def look(self) -> WorkerPulse:
        """Return what the training thread does now, and since when it has made no progress."""
        with _stacks() as stacks:
            return self._look_at(stacks)

    def _look_at(self, stacks: Mapping[int, list[FrameType]]) -> WorkerPulse:
        now = self._clock()
        frames = stacks.get(self._thread_id, [])
        calls = self._calls()
        moves = (self._moves, calls, self._messages())
        used_s, place = self._used_s(), [(frame.f_code, frame.f_lasti) for frame in frames]
        before_moves, before_used_s, before_place = self._seen
        self._seen = (moves, used_s, place)
        if moves != before_moves:
            self._moved_s = now
        has_used = used_s - before_used_s > WORKING_SHARE * (now - self._looked_s)
        if moves != before_moves or has_used or place != before_place:
            self._worked_s = now
        self._looked_s = now
        stands = now - self._worked_s >= IDLE_S or now - self._moved_s >= SPINS_S
        doing, detail = self._activity
        lock, compiles = _lock(frames)
        if pauses := self._pauses[-1:]:
            doing, detail = "paused", pauses[0]
        return WorkerPulse(
            rank=self._rank,
            epoch=self.epoch,
            doing=doing,
            detail=detail,
            calls=calls,
            still_s=now - self._moved_s,
            idle_s=now - self._worked_s,
            waits_in=_collective(frames),
            entered=self._recorder.look() if stands else [],
            where=_place(frames),
            lock=lock,
            compiles=compiles,
            runs_other=any(_module(frame) == "subprocess" for frame in frames)
            or _compiles(stacks.values()),
        )


class FlightRecorder:
    """PyTorch's own record of this process's collectives, on every backend that keeps one.

    It is on by default in PyTorch 2.13, for Gloo and NCCL. `TORCH_FR_BUFFER_SIZE=0` switches it
    off.
    """

    def __init__(self) -> None:
        self._counts: object = None
        self._entered: list[Entered] = []

    def look(self) -> list[Entered]:
        """Return the newest collective that this rank has entered, of each of its groups."""
        c10d = sys.modules.get("torch._C._distributed_c10d")
        dump = getattr(c10d, "_dump_fr_trace", None)
        if dump is None:
            return []
        # A private record may get another form, and the pulse has to go on.
        with suppress(LookupError, TypeError, ValueError, AttributeError, RuntimeError):
            # The counts take microseconds, all records 20 ms: these are read when those changed.
            counts = pickle.loads(dump(False, False, False))["pg_status"]  # noqa: S301 - PyTorch's
            if counts != self._counts:
                self._counts, self._entered = counts, []
                records = pickle.loads(dump(True, False, False))["entries"]  # noqa: S301
                self._entered = entered(records, members=_groups())
        return self._entered


def entered(records: Iterable[Mapping[str, Any]], *, members: Iterable[str]) -> list[Entered]:
    """Return the newest collective of each group, those in which this rank still waits first.

    Args:
        records: PyTorch's, in the order of calling; they may begin in the midst of a run.
        members: The names of all groups of which this rank is a member.
    """
    found: dict[str, Entered] = {}
    is_whole = True
    for at, record in enumerate(records):
        is_whole = is_whole and (at > 0 or record["record_id"] == 0)
        group, number = record["process_group"][0], record["collective_seq_id"]
        if not record["is_p2p"] and number >= found.get(group, Entered(group=group)).number:
            found[group] = Entered(
                group=group, number=number, what=_operation(record), waits=not record["retired"]
            )
    for group in members if is_whole else ():
        found.setdefault(group, Entered(group=group))
    return sorted(found.values(), key=lambda one: not one.waits)[:MOST_GROUPS]


def _operation(record: Mapping[str, Any]) -> str:
    """Return an operation as people call it, such as `all_reduce of Float[1024, 8]`."""
    name = str(record["profiling_name"]).rpartition(":")[2]
    sizes, kinds = record["input_sizes"], record["input_dtypes"]
    return f"{name} of {kinds[0]}{sizes[0]}" if sizes and kinds else name


def _groups() -> list[str]:
    # There is no public way to list them.
    world = getattr(sys.modules.get(_C10D), "_world", None)
    return [] if world is None else [str(name) for name in world.pg_names.values()]


def _processor_time_of(thread_id: int) -> Callable[[], float]:
    """Return how to read a thread's time; where no such clock is, that of the process."""
    # macOS has no clock of one thread that another thread can read.
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return time.process_time
    clock = clock_of(thread_id)
    return lambda: time.clock_gettime(clock)


@contextmanager
def _stacks() -> Iterator[Mapping[int, list[FrameType]]]:
    """Return each thread's frames by its number, the innermost first.

    Frames hold what their functions have in hand, such as a batch and its activations. These lists
    hold the frame that looks at them, and a script that lists all objects at this moment holds
    them: unless they are emptied, both stay in memory until the garbage collector runs, for good
    where a script has switched it off.
    """
    with _without_collection():
        # Documented, in spite of its name: nothing else shows another thread's stack.
        innermost = sys._current_frames()  # noqa: SLF001
        stacks = {thread: [*_frames(one)] for thread, one in innermost.items()}
        innermost.clear()
    try:
        yield stacks
    finally:
        for one in stacks.values():
            one.clear()


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable the garbage collector in the block.

    Before Python 3.12 that begins wherever memory is allocated, also in the midst of looking up
    another thread's frame. What it takes apart may let that thread go on, such as a process group
    that waits for its own threads: then the frame is none any more, and Python crashes, or waits
    for itself for good where the thread ends.
    """
    if not _COLLECTS_ANYWHERE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _collective(frames: list[FrameType]) -> str:
    """Return what the thread does together with other ranks now, if anything."""
    public = getattr(sys.modules.get(_C10D), "__all__", ())
    found = ""
    for frame in frames:
        name, module = frame.f_code.co_name, _module(frame)
        if (module, name) in _OWN_WAITS:
            return _OWN_WAITS[module, name]
        if module == _OWN_GROUP or (module == _C10D and name in public):
            return name
        if module in _STANDING:  # of a handle that a library waits for; else its call has a name
            found = "a collective"
    return found


def _compiles(stacks: Iterable[list[FrameType]]) -> bool:
    """Return whether `torch.compile` works on any thread: a backward pass has its own."""
    return any(_module(frame) in _COMPILERS for stack in stacks for frame in stack)


def _lock(frames: list[FrameType]) -> tuple[str, bool]:
    """Return PyTorch's lock that it waits for, or holds to compile, and whether it holds it."""
    waited_for = ""
    for frame in frames:
        match _module(frame), frame.f_code.co_name:
            # Before PyTorch 2.14 a killed process leaves this file, and all others wait for it for
            # good.
            case "torch.utils.file_baton", "wait":
                return str(frame.f_locals["self"].lock_file_path), False
            case "torch.utils._filelock", "__enter__":  # since PyTorch 2.14; others use it, too
                waited_for = str(frame.f_locals["self"].lock_file)
            case "torch.utils.cpp_extension", "_jit_compile":
                return (waited_for, False) if waited_for else _held_by(frame)
    return "", False


def _held_by(frame: FrameType) -> tuple[str, bool]:
    """Return the lock of a compilation that does not wait for it, and whether that has begun."""
    if "baton" not in frame.f_code.co_varnames:
        return str(Path(frame.f_locals["build_directory"]) / "lock"), True
    baton = frame.f_locals.get("baton")
    if baton is None or baton.fd is None:
        return "", False
    return str(baton.lock_file_path), True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _place(frames: list[FrameType]) -> str:
    for frame in frames:
        file = frame.f_code.co_filename
        if "site-packages" not in file and not file.startswith(_NOT_THE_SCRIPTS):
            return f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
