"""The hook in DeepSpeed's communication: every collective passes here, and nothing else is touched.

DeepSpeed sends all its collectives through one object, `deepspeed.comm.comm.cdb`. A `CommHook` puts
its own functions in front of that object's methods and takes them off again.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import torch.distributed as dist

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import Profile, first_difference
from gemini_lab.transfer.collective_calls import (
    OPERATIONS,
    Clock,
    CollectiveCall,
    DeviceClock,
    FollowedWork,
    Operation,
    Stamp,
    WallClock,
    handle_of,
    iteration_record,
)
from gemini_lab.transfer.link import sleep_until

if TYPE_CHECKING:
    from gemini_lab.transfer.device_route import DeviceRoute

Pace = Callable[[str, int, dist.ProcessGroup | None], float]
"""From name, bytes and process group of a collective to the time (`time.monotonic`) at which the
emulated link has carried it."""
_MARK: Final = "_gemini_lab_seam"
_POLL_S: Final = 60.0
_STILL_S: Final = 1.0  # training that does nothing for less does not stand still


class CommHook:
    """Counts, times and, if asked, paces every collective of one DeepSpeed job on this rank.

    The training thread says where iterations and updates begin; any thread may ask whether a
    collective is under way and whether a chunk may be sent now. On CUDA "under way" is what the CPU
    has handed over: there the streams order the traffic, and only the recorded times are the
    device's.
    """

    def __init__(
        self,
        backend: Any = None,  # DeepSpeed's comm object; without it, that of `deepspeed.comm`
        *,
        clock: Clock | None = None,  # `WallClock` or `DeviceClock`
        # Gives each collective the time at which an emulated link has carried it (CPU only).
        pace: Pace | None = None,
        # Whether to keep times; without, collectives are only counted and compared.
        recording: bool = True,
    ) -> None:
        if pace is not None and isinstance(clock, DeviceClock):
            raise ConfigError("a link is emulated for CPU backends only; leave `pace` out on CUDA")
        self._backend = backend
        self._clock: Clock = clock or WallClock()
        self._pace = pace
        self._recording = recording
        self.calls = 0  # collectives called since the iteration began
        self.is_updating = False  # whether the optimizer step is running
        # How this iteration differs from the expected one, in words; empty if not.
        self.deviation = ""
        self._iteration = 0
        # A plain lock: nothing here calls back into it, and the hook runs at every collective.
        self._changed = threading.Condition(threading.Lock())
        self._in_flight = 0
        self._busy_until_s = 0.0
        self._moved_s = time.monotonic()  # when a collective last began or ended
        self._wakes_at = sys.maxsize  # collectives after which the first who waits may send
        self._start: Stamp | None = None
        self._update: Stamp | None = None
        self._records: list[CollectiveCall] = []
        self._profile: Profile | None = None
        self._expected: list[tuple[str, int]] = []
        self._gate: DeviceRoute | None = None

    # -- on and off --------------------------------------------------------------------------------

    def attach(self) -> Self:
        """Put the hook in place; refuse a second one, or one before DeepSpeed communicates."""
        if self._backend is None:
            self._backend = _deepspeed_backend()
        if hasattr(self._backend, _MARK):
            raise ConfigError(
                "DeepSpeed's collectives are already watched; detach the other hook first"
            )
        setattr(self._backend, _MARK, self)
        for name, operation in OPERATIONS.items():
            method = getattr(self._backend, name, None)
            if method is not None:
                setattr(self._backend, name, self._wrapped(name, operation, method))
        return self

    def detach(self) -> None:
        for name in (_MARK, *OPERATIONS):
            vars(self._backend).pop(name, None)

    # -- what the training thread says -------------------------------------------------------------

    def begin_update(self) -> None:
        """Begin the optimizer step: from here on training waits for the checkpoint."""
        if self._gate is not None:
            self._gate.before_update()
        with self._changed:
            self._update = self._stamp()
            self.is_updating = True
            self._wake()

    def begin_iteration(self) -> IterationRecord | None:
        """End the iteration, whose optimizer step has ended, and return its record.

        There is none of what came before the first call, or without recording.
        """
        now = self._stamp()
        with self._changed:
            start, update, calls = self._start, self._update, self._records
            self._start, self._update, self._records = now, None, []
            self.calls = self._in_flight = 0
            self._moved_s = time.monotonic()
            self._iteration += 1
            self.is_updating = False
            self.deviation = ""
            self._wake()
        if start is None or now is None:
            return None
        return iteration_record(self._clock, start=start, update=update, end=now, calls=calls)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave collectives inside the block out of the iteration and out of plans."""
        with self._changed:
            # The gate is off inside, too: no plan has these collectives.
            calls, count, deviation = self.calls, len(self._records), self.deviation
            profile, gate, self._profile, self._gate = self._profile, self._gate, None, None
        try:
            yield
        finally:
            with self._changed:
                self.calls, self.deviation = calls, deviation
                del self._records[count:]
                self._profile, self._gate = profile, gate

    def expect(self, profile: Profile | None, *, gate: "DeviceRoute | None" = None) -> None:
        """Follow `profile` from here on; call it where an iteration begins.

        Args:
            profile: Gives the sequence and the spans; `None` to follow nothing.
            gate: What is told of every collective and update from here on, if anything is.
        """
        self._profile = profile
        self._expected = [] if profile is None else profile.sequence
        self._gate = gate

    # -- what any thread may ask -------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        return self._in_flight > 0 or time.monotonic() < self._busy_until_s

    def may_send(self, span: int | None) -> bool:
        """Return whether a chunk planned for idle span `span` may leave now.

        It may once its span has been reached and no collective is under way; a chunk that missed
        its span goes in a later one. A chunk without a span goes after the last collective before
        the update. When the iteration does not follow the profile, every pause will do. While the
        update waits, everything goes, and so it does once training has stood still for longer than
        an iteration takes, as in an evaluation: nobody knows how long the next span is away.
        """
        if self.is_updating or time.monotonic() >= self._stands_still_at_s:
            return True
        return not self.in_flight and self.calls >= self._opens_at(span)

    @property
    def _stands_still_at_s(self) -> float:
        """Return when an iteration's time will have passed since the last collective."""
        if self._profile is None:
            return math.inf
        return self._moved_s + max(self._profile.iteration_s, _STILL_S)

    def _opens_at(self, span: int | None) -> int:
        """Return the number of collectives after which a chunk of that span may leave."""
        if self._profile is None or self.deviation:
            return 0
        if span is None:
            return self._profile.collectives_before_update
        return self._profile.idle_spans[span].after

    def wait_to_send(self, span: int | None, *, timeout_s: float) -> bool:
        """Wait until `may_send`; `False` when the time runs out first. Not on training's thread.

        Training's collectives wake whoever waits here only when a span opens that somebody waits
        for: each time takes of training's time, and there are many collectives before most spans.
        """
        give_up_s = time.monotonic() + timeout_s
        with self._changed:
            while not self.may_send(span):
                now_s = time.monotonic()
                if now_s >= give_up_s:
                    return False
                opens_at = self._opens_at(span)
                self._wakes_at = min(self._wakes_at, opens_at)
                is_link_busy = self.calls >= opens_at and now_s < self._busy_until_s
                until_s = self._busy_until_s if is_link_busy else self._stands_still_at_s
                self._changed.wait(min(until_s, give_up_s) - now_s)
        return True

    def _wake(self) -> None:
        self._wakes_at = sys.maxsize
        self._changed.notify_all()

    def wait_for_span(self, span: int | None) -> None:
        """Wait until `may_send`, however long it takes. Not on training's thread."""
        while not self.wait_to_send(span, timeout_s=_POLL_S):
            pass

    # -- every collective --------------------------------------------------------------------------

    def _wrapped(
        self, name: str, operation: Operation, method: Callable[..., object]
    ) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if self._gate is not None:
                self._gate.before_call()
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
            if self._gate is not None:
                self._gate.after_call(self.calls, handle_of(result))
            return self._follow(result, begun, release_s)

        return call

    def _follow(self, result: Any, begun: CollectiveCall, release_s: float) -> Any:
        """End the call when its result is there, which is later for an asynchronous one."""
        if isinstance(result, list) and handle_of(result) is not None:
            return [*result[:-1], self._follow(result[-1], begun, release_s)]
        if not hasattr(result, "wait"):
            sleep_until(release_s)
            self._end(begun, release_s)
            return result
        try:
            # The future ends on Gloo's thread when the data are there, not when training waits.
            result.get_future().then(lambda _: self._end(begun, release_s))
            if not release_s:
                return result
        except (AttributeError, RuntimeError):  # not every backend's handle has a future
            pass
        return FollowedWork(result, release_s, lambda: self._end(begun, release_s))

    def _begin(self, name: str, size_bytes: int) -> CollectiveCall:
        if self._profile is not None and not self.deviation:
            expected = self._expected[self.calls : self.calls + 1]
            if expected != [(name, size_bytes)]:
                before = self._expected[: self.calls]
                self.deviation = first_difference(
                    [*before, *expected], [*before, (name, size_bytes)]
                )
        call = CollectiveCall(name, size_bytes, self._stamp(), self._iteration)
        with self._changed:
            self._moved_s = time.monotonic()
            self.calls += 1
            self._in_flight += 1
            if self._recording:
                self._records.append(call)
        return call

    def _end(self, call: CollectiveCall, release_s: float) -> None:
        """End a collective; an emulated link may carry it until `release_s`.

        An asynchronous one is told of twice where its handle is waited for and has a future too.
        """
        with self._changed:
            if call.end is not None:
                return
            self._moved_s = time.monotonic()
            now = self._clock.stamp() if self._recording else 0.0
            call.end = max(now, release_s) if release_s else now
            # A late end of an earlier iteration's collective must not be taken off this one's
            # count.
            if call.iteration == self._iteration:
                self._in_flight -= 1
            if not self._in_flight and (self.calls >= self._wakes_at or self.deviation):
                self._wake()

    def _stamp(self) -> Stamp | None:
        return self._clock.stamp() if self._recording else None


def _deepspeed_backend() -> Any:
    from deepspeed.comm import comm  # noqa: PLC0415  (heavy, and only here)

    if comm.cdb is None:
        raise ConfigError(
            "DeepSpeed has not started its communication; call deepspeed.init_distributed() or "
            "deepspeed.initialize(...) first"
        )
    return comm.cdb
