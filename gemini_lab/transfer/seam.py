"""The seam in DeepSpeed's communication: every collective passes here, and nothing else is touched.

DeepSpeed sends all its collectives through one object, `deepspeed.comm.comm.cdb`. A `CommSeam` puts
its own functions in front of that object's methods and takes them off again.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord, Profile, first_difference
from gemini_lab.transfer.clocks import DeviceClock, WallClock
from gemini_lab.transfer.operations import OPERATIONS, Operation

Pace = Callable[[str, int, Any], float]
"""From name, bytes and process group of a collective to the time (`time.monotonic`) at which the
emulated link has carried it."""
_MARK: Final = "_gemini_lab_seam"


class _Call:
    """One collective under way or ended; stamps are the clock's."""

    __slots__ = ("end", "iteration", "name", "size_bytes", "start")

    def __init__(self, name: str, size_bytes: int, start: Any, iteration: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.start = start
        self.end: Any = None
        self.iteration = iteration


class _Work:
    """A handle whose `wait` also waits for the emulated link, and tells the seam."""

    def __init__(self, work: Any, release_s: float, done: Callable[[], None]) -> None:
        self._work = work
        self._release_s = release_s
        self._done = done

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the backend's handle, then until the link has carried the bytes."""
        result = self._work.wait(*args, **kwargs)
        _sleep_until(self._release_s)
        self._done()
        return result

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._work.is_completed()) and time.monotonic() >= self._release_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _handle(result: Any) -> Any:
    """What can be waited for in what a collective returned, or `None`."""
    last = result[-1] if isinstance(result, list) and result else result
    return last if hasattr(last, "wait") else None


def _sleep_until(at_s: float) -> None:
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(left_s)


class Gate(Protocol):
    """What comes between training's collectives; called on training's thread."""

    def before_call(self) -> None:
        """A collective is about to be called."""

    def after_call(self, calls: int, work: Any) -> None:
        """Collective number `calls` of the iteration was called; `work` is its handle or `None`."""

    def before_update(self) -> None:
        """The optimizer step is about to begin."""


class CommSeam:
    """Counts, times and, if asked, paces every collective of one DeepSpeed job on this rank.

    The training thread says where iterations and updates begin; any thread may ask whether a
    collective is under way and whether a chunk may be sent now. On CUDA "under way" is what the CPU
    has handed over: there the streams order the traffic, and only the recorded times are the
    device's.

    Args:
        backend: DeepSpeed's comm object; without it, that of `deepspeed.comm`.
        clock: `WallClock` or `DeviceClock`.
        pace: Gives each collective the time at which an emulated link has carried it (CPU only).
        recording: Whether to keep times; without, collectives are only counted and compared.

    Attributes:
        calls: Collectives called since the iteration began.
        iteration: Iterations begun since the seam was attached.
        updating: Whether the optimizer step is running.
        deviation: How this iteration differs from the expected one, in words; empty if not.
        gate: What is told of every collective and update, if anything is.
        newest: The iteration that ended last; `None` before that, or when not recording.
    """

    def __init__(
        self,
        backend: Any = None,
        *,
        clock: WallClock | DeviceClock | None = None,
        pace: Pace | None = None,
        recording: bool = True,
    ) -> None:
        if pace is not None and isinstance(clock, DeviceClock):
            raise ConfigError("a link is emulated for CPU backends only; leave `pace` out on CUDA")
        self._backend = _deepspeed_backend() if backend is None else backend
        self._clock: Any = clock or WallClock()
        self._pace = pace
        self.recording = recording
        self.calls = 0
        self.iteration = 0
        self.updating = False
        self.deviation = ""
        self.newest: IterationRecord | None = None
        self.gate: Gate | None = None
        self._changed = threading.Condition(threading.Lock())
        self._in_flight = 0
        self._busy_until_s = 0.0
        self._start: Any = None
        self._update: Any = None
        self._records: list[_Call] = []
        self._profile: Profile | None = None
        self._expected: list[tuple[str, int]] = []
        self._on_change: Callable[[str], None] | None = None

    # -- on and off ----------------------------------------------------------------------------

    def attach(self) -> "CommSeam":
        """Put the seam in place.

        Raises:
            ConfigError: Another seam is in place.
        """
        if hasattr(self._backend, _MARK):
            raise ConfigError(
                "DeepSpeed's collectives are already watched; detach the other seam first"
            )
        setattr(self._backend, _MARK, self)
        for name, operation in OPERATIONS.items():
            method = getattr(self._backend, name, None)
            if method is not None:
                setattr(self._backend, name, self._wrapped(name, operation, method))
        return self

    def detach(self) -> None:
        """Leave the comm object as it was."""
        for name in (_MARK, *OPERATIONS):
            vars(self._backend).pop(name, None)

    # -- what the training thread says ---------------------------------------------------------

    def begin_update(self) -> None:
        """The optimizer step begins: from here on training waits for the checkpoint."""
        if self.gate is not None:
            self.gate.before_update()
        with self._changed:
            self._update = self._clock.stamp() if self.recording else None
            self.updating = True
            self._changed.notify_all()

    def begin_iteration(self) -> IterationRecord | None:
        """The optimizer step has ended, and with it the iteration.

        Returns:
            The ended iteration; `None` for what came before the first call, or when not recording.
        """
        now = self._clock.stamp() if self.recording else None
        if self._profile is not None and self.calls < len(self._expected):
            self._deviate(f"{self.calls} collectives in an iteration, were {len(self._expected)}")
        with self._changed:
            ended = (self._start, self._update, self._records)
            self._start, self._update, self._records = now, None, []
            self.calls = self._in_flight = 0
            self.iteration += 1
            self.updating = False
            self.deviation = ""
            self._changed.notify_all()
        self.newest = self._record(*ended, now)
        return self.newest

    def expect(
        self, profile: Profile | None, on_change: Callable[[str], None] | None = None
    ) -> None:
        """Follow `profile` from here on; call it where an iteration begins.

        Args:
            profile: Gives the sequence and the spans; `None` to follow nothing.
            on_change: Called on the training's thread, once in each iteration that differs, with
                the difference in words.
        """
        self._profile = profile
        self._expected = [] if profile is None else profile.sequence
        self._on_change = on_change

    # -- what any thread may ask ---------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """Whether a training collective is under way."""
        return self._in_flight > 0 or time.monotonic() < self._busy_until_s

    def may_send(self, span: int | None) -> bool:
        """Whether a chunk planned for idle span `span` may leave now.

        It may once its span has been reached and no collective is under way; a chunk that missed
        its span goes in a later one. A chunk without a span goes after the last collective before
        the update. When the iteration does not follow the profile, every pause will do. While the
        update waits, everything goes.
        """
        if self.updating:
            return True
        if self.in_flight:
            return False
        if self._profile is None or self.deviation:
            return True
        if span is None:
            return self.calls >= self._profile.collectives_before_update
        return self.calls >= self._profile.idle_spans[span].after

    def wait_to_send(self, span: int | None, *, timeout_s: float) -> bool:
        """Wait until `may_send`; `False` when the time runs out first. Not on training's thread."""
        give_up_s = time.monotonic() + timeout_s
        with self._changed:
            while not self.may_send(span):
                now_s = time.monotonic()
                if now_s >= give_up_s:
                    return False
                until_s = self._busy_until_s if now_s < self._busy_until_s else give_up_s
                self._changed.wait(min(until_s, give_up_s) - now_s)
        return True

    # -- every collective ----------------------------------------------------------------------

    def _wrapped(self, name: str, operation: Operation, method: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.gate is not None:
                self.gate.before_call()
            size_bytes = operation.size_bytes(args, kwargs)
            begun = self._begin(name, size_bytes)
            release_s = 0.0
            if self._pace is not None:
                release_s = self._pace(name, size_bytes, operation.group_of(args, kwargs))
                self._busy_until_s = max(self._busy_until_s, release_s)
            try:
                result = method(*args, **kwargs)
            except BaseException:
                self._end(begun, 0.0)
                raise
            if self.gate is not None:
                self.gate.after_call(self.calls, _handle(result))
            return self._follow(result, begun, release_s)

        return call

    def _follow(self, result: Any, begun: _Call, release_s: float) -> Any:
        """End the call when its result is there, which is later for an asynchronous one."""
        if isinstance(result, list) and _handle(result) is not None:
            return [*result[:-1], self._follow(result[-1], begun, release_s)]
        if not hasattr(result, "wait"):
            _sleep_until(release_s)
            self._end(begun, release_s)
            return result
        try:
            result.get_future().then(lambda _: self._end(begun, release_s))
            if not release_s:
                return result
        except (AttributeError, RuntimeError):  # not every backend's handle has a future
            pass
        return _Work(result, release_s, lambda: self._end(begun, release_s))

    def _begin(self, name: str, size_bytes: int) -> _Call:
        if self._profile is not None and not self.deviation:
            expected = self._expected[self.calls : self.calls + 1]
            if expected != [(name, size_bytes)]:
                self._deviate(self._difference(name, size_bytes))
        call = _Call(
            name, size_bytes, self._clock.stamp() if self.recording else None, self.iteration
        )
        with self._changed:
            self.calls += 1
            self._in_flight += 1
            if self.recording:
                self._records.append(call)
        return call

    def _end(self, call: _Call, release_s: float) -> None:
        """The collective's result is there; an emulated link may carry it until `release_s`."""
        with self._changed:
            if call.end is not None:
                return
            now = self._clock.stamp() if self.recording else 0.0
            call.end = max(now, release_s) if release_s else now
            if call.iteration == self.iteration:
                self._in_flight -= 1
            if not self._in_flight:
                self._changed.notify_all()

    def _difference(self, name: str, size_bytes: int) -> str:
        seen = [*self._expected[: self.calls], (name, size_bytes)]
        return first_difference(self._expected[: self.calls + 1], seen)

    def _deviate(self, difference: str) -> None:
        self.deviation = difference
        if self._on_change is not None:
            self._on_change(difference)

    def _record(
        self, start: Any, update: Any, calls: list[_Call], now: Any
    ) -> IterationRecord | None:
        if start is None or now is None:
            return None
        since = self._clock.between_s
        length_s = since(start, now)
        collectives = tuple(
            CollectiveRecord(
                name=call.name,
                size_bytes=call.size_bytes,
                start_s=since(start, call.start),
                end_s=length_s if call.end is None else since(start, call.end),
            )
            for call in calls
        )
        update_s = length_s if update is None else since(start, update)
        return IterationRecord(collectives=collectives, iteration_s=length_s, update_s=update_s)


def _deepspeed_backend() -> Any:
    from deepspeed.comm import comm  # noqa: PLC0415  (heavy, and only here)

    if comm.cdb is None:
        raise ConfigError(
            "DeepSpeed has not started its communication; call deepspeed.init_distributed() or "
            "deepspeed.initialize(...) first"
        )
    return comm.cdb
