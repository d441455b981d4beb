"""A rehearsal of the data's second start, before training.

The state_dict of a loader may leave something out: a shuffle buffer, an epoch's number, a
generator's state. A loader that is read again up to its position may draw from generators that
training draws from as well. Both show only in the batches that come next. So the rehearsal reads
some batches, puts positions among them back as a recovery does, and compares what follows.

The data must be as a new start finds them, and training must not notice. So a process is forked for
each reading. It shares no open file, socket or pipe with this one, because a file that it reads
would be read on here.
"""

import contextlib
import fcntl
import gc
import os
import random
import select
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from gemini_lab.engine.contract import StateDict
from gemini_lab.engine.iteration_log import BatchChecksum
from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.engine.random_states import forget_device, restore_random_states
from gemini_lab.engine.state.loaders import KINDS, LoaderWatch
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.errors import UnsupportedError
from gemini_lab.shard.codec import decode, encode

LIMIT_S: Final = 10.0
"""How long all readings of all sources may take; what is not read by then is not rehearsed."""
_ENOUGH_S: Final = 2.0  # to read on, to later places and a second epoch
_PLACES: Final = (3, 11, 47, 191, 769)
"""After so many batches of the first epoch: primes, as what waits in a buffer comes and goes."""
_IN_SECOND: Final = 3  # batches of the second epoch until the place there
_AFTER: Final = 4  # batches that are compared from each place on
_LEAST: Final = _PLACES[0] + 2 * _AFTER  # are read however long that takes
_MANY: Final = 1024  # batches in which a second epoch has to begin
_COLLECTIVES: Final = (
    *("broadcast", "broadcast_object_list", "scatter_object_list", "barrier", "monitored_barrier"),
    *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor"),
)
_LONGEST: Final = 200  # characters of an error
# A position is a few KiB; more means a source that copies its data into its state.
_MOST_BYTES: Final = 64 * 2**20

NOT_BACK: Final = (
    "the position in the data does not come back after a failure: the {what} was put back {where}, "
    "in a process of its own before training, and {seen}. {way_out}"
)
IS_READ_AGAIN: Final = (
    "the state_dict of the {what} in data= does not say all of its position: put back {where}, in "
    "a process of its own before training, it {seen}. So after a failure the epoch's batches are "
    "read again up to the position, which is exact and takes longer"
)
_OTHERS: Final = "gave other batches than had followed there"
_ITS_OWN_WORD: Final = (
    "Its own state_dict leaves something out (a shuffle buffer, an epoch's number, a generator): "
    "have it say all of that, or give torch's DataLoader, whose batches are read again up to the "
    "position"
)
_READ_AGAIN: Final = (
    "What it gives depends on more than the order in which it is read: where it draws from the "
    "generators that training draws from as well, have it draw from one of its own, in an "
    "attribute of the data set (torch.Generator, np.random.default_rng, random.Random); where "
    "something continues from epoch to epoch, make it again in each"
)


def rehearse_data(script: ScriptState) -> Iterator[str]:
    """Give a text for each source of the script's data whose position does not come back.

    A loader whose state_dict is not enough is read again from now on, if that is exact. Training
    waits up to `LIMIT_S`. Sources that a forked process cannot read stay as they are.

    Raises:
        UnsupportedError: No start after a failure would come up.
    """
    give_up_s = time.monotonic() + LIMIT_S
    for source in [*script.sources]:
        is_watched = isinstance(source, LoaderWatch)
        thing: Any = source.loader if is_watched else source
        if not hasattr(type(thing), "__iter__"):
            continue
        flaw = _first_flaw(thing, give_up_s)
        if flaw is None:
            continue
        is_loader = isinstance(thing, KINDS)
        can_read_again = is_loader and not is_watched
        again_s = time.monotonic() + LIMIT_S
        if can_read_again and _first_flaw(thing, again_s, is_watched=True) is None:
            script.read_again(thing)
            yield IS_READ_AGAIN.format(what=_name(thing), where=flaw.where, seen=flaw.seen)
            continue
        way_out = _READ_AGAIN if is_loader else _ITS_OWN_WORD
        text = NOT_BACK.format(what=_name(thing), where=flaw.where, seen=flaw.seen, way_out=way_out)
        if flaw.is_failure:
            raise UnsupportedError(text)
        yield text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flaw:
    """A position that does not come back: its place, what was seen, whether loading failed."""

    where: str
    seen: str
    is_failure: bool


def _name(thing: object) -> str:
    data = getattr(thing, "dataset", None)
    return type(thing).__name__ + ("" if data is None else f" of a {type(data).__name__}")


def _first_flaw(thing: object, give_up_s: float, *, is_watched: bool = False) -> _Flaw | None:
    """Return the first position that does not come back; `None` also if that is not known."""

    def ask(work: Callable[["_Reading"], StateDict]) -> StateDict | None:
        answer = _in_fork(lambda: encode(_tried(thing, work, is_watched=is_watched)), give_up_s)
        return None if answer is None else dict(decode(answer))

    whole = ask(_Reading.read_through)
    if whole is None or "error" in whole:
        return None
    for at, batches, position, where in whole["places"]:
        place, follows = where, whole["sums"][at:]
        while len(follows) >= batches:
            found = ask(partial(_Reading.read_from, position=position, batches=batches))
            if found is None:
                return None
            if "error" in found:
                return _Flaw(where=place, seen=f"failed ({found['error']})", is_failure=True)
            if found["sums"] != follows[:batches]:
                return _Flaw(where=place, seen=_OTHERS, is_failure=False)
            if at != _PLACES[0] or place != where:
                break
            position, follows = found["position"], follows[batches:]  # noqa: PLW2901
            place = f"{where}, and once more {batches} batches later"  # such a start may fail, too
    return None


def _tried(
    thing: object, work: Callable[["_Reading"], StateDict], *, is_watched: bool
) -> StateDict:
    try:
        return work(_Reading(thing, is_watched=is_watched))
    except Exception as error:  # noqa: BLE001 - whatever the script's data lead to
        text = f"{type(error).__name__}: {error}".strip().splitlines()
        return {"error": text[0][:_LONGEST]}


class _Reading:
    """A reader of a source that draws random numbers in between, as training does."""

    def __init__(self, thing: Any, *, is_watched: bool) -> None:
        self._thing = thing
        self._state = ScriptState(data=[thing])
        if is_watched:
            self._state.read_again(thing)
        for one in self._state.watches:
            one.is_ahead = False  # here no training follows a batch
        self._batches: Iterator[Any] | None = None
        self.epoch = 0  # of which it reads, counted from its first

    def read_through(self) -> StateDict:
        """Read into the second epoch, if that comes soon; return places on the way."""
        began_s = time.monotonic()
        sums: list[str] = []
        places: list[tuple[int, bytes, str]] = []
        in_second = 0
        with contextlib.suppress(StopIteration):  # a stream without a second epoch
            while in_second < _IN_SECOND + _AFTER and len(sums) < _MANY:
                if len(sums) >= _LEAST and time.monotonic() - began_s > _ENOUGH_S:
                    break
                sums.append(self._next())
                in_second += self.epoch > 1
                words = None
                if in_second == _IN_SECOND:
                    words = f"after batch {_IN_SECOND} of its second epoch"
                elif not in_second and len(sums) in _PLACES:
                    words = f"after batch {len(sums)}"
                if words is not None:
                    places.append((len(sums), self._position(), words))
        last = max((at for at, *_ in places if at in _PLACES), default=None)
        through = last if in_second else None  # from there on across the epoch's end
        return {
            "sums": sums,
            "places": [
                [at, len(sums) - at if at == through else _AFTER, position, words]
                for at, position, words in places
            ],
        }

    def read_from(self, position: bytes, batches: int) -> StateDict:
        """Put a position back, and read on."""
        small = decode(position)
        self._state.put_data(small["data"], seeds=small["seeds"])
        self._state.put({"also": {}, "made": {}, **small})
        restore_random_states(small["random"])
        sums: list[str] = []
        with contextlib.suppress(StopIteration):
            for _ in range(batches):
                sums.append(self._next())  # noqa: PERF401 - those before it has no more
        return {"sums": sums, "position": self._position()}

    def _position(self) -> bytes:
        return encode(self._state.drawn())

    def _next(self) -> str:
        if self._batches is None:
            self._batches, self.epoch = iter(self._thing), self.epoch + 1
        torch.rand(1)  # also between an iterator and its first batch
        np.random.rand()  # noqa: NPY002 - as scripts do
        random.random()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches, self.epoch = iter(self._thing), self.epoch + 1
            batch = next(self._batches)
        return BatchChecksum(batch).read()


def _in_fork(work: Callable[[], bytes], give_up_s: float) -> bytes | None:
    """Return what work gives in a forked process; `None` if that fails or takes too long."""
    if time.monotonic() >= give_up_s:
        return None
    # Memory, not a pipe: a pipe that is full would hold the child until somebody reads.
    answer = os.memfd_create("data-rehearsal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads, which it does without
        # Fork, not spawn: the data must be as they are, open files and unpicklable objects
        # included.
        child = os.fork()
    if not child:
        status = 1
        try:
            _be_alone(answer)
            with open(answer, "wb", closefd=False) as file:
                file.write(work())
            status = 0
        finally:
            os._exit(status)  # nothing of this process is taken apart there
    status = 1  # also where the script ignores SIGCHLD, so that the kernel keeps none
    try:
        # A pidfd can be waited for with a time-out; `waitpid` cannot.
        ended = os.pidfd_open(child)
        select.select([ended], [], [], max(0.0, give_up_s - time.monotonic()))
        os.close(ended)
    finally:
        for end in (os.killpg, os.kill):  # its own workers, too
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(child, 0)
        found = os.pread(answer, _MOST_BYTES + 1, 0)
        os.close(answer)
    return found if status == 0 and len(found) <= _MOST_BYTES else None


def _be_alone(answers: int) -> None:
    """Cut this process off from its parent: its group, files, device and threads."""
    die_with_parent()
    # A group of its own, so that the workers which a loader starts there are killed with it.
    os.setsid()
    gc.disable()  # what it takes apart may wait for threads that are not here
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number != answers:
            _cut_off(number)
    # The forked process has none of its parent's OpenMP threads, and would wait for them.
    torch.set_num_threads(1)
    forget_device()
    for name in _COLLECTIVES:
        setattr(dist, name, _refuse)


def _refuse(*_: object, **__: object) -> None:
    """Fail at once, because a collective would wait for ranks that never come."""
    raise UnsupportedError("data are read here by one process alone")


def _cut_off(number: int) -> None:
    """Open a file that is read again, by itself; replace what else is open by /dev/null."""
    try:
        kind, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError:  # the list's own
        return
    is_read = flags & os.O_ACCMODE == os.O_RDONLY
    if stat.S_ISDIR(kind) and is_read:
        return
    if stat.S_ISREG(kind) and is_read:
        other = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
        os.lseek(other, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    else:
        other = os.open(os.devnull, os.O_RDWR)
    os.dup2(other, number)
    os.close(other)
