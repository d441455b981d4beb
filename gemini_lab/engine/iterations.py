"""A worker's report of its iterations: how long each took, and what the script logged of it."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from gemini_lab.engine.arguments import numbers_of, require_few
from gemini_lab.engine.contract import Engine
from gemini_lab.log.events import AnyEvent, Inputs, Iteration, IterationBegun, VersionComplete
from gemini_lab.units import to_microsecond

Emit = Callable[[AnyEvent], None]


class Monitor(Protocol):
    """DeepSpeed's `MonitorMaster`."""

    enabled: bool

    def write_events(self, event_list: Sequence[tuple[str, float, int]], /) -> None:
        """Write values by name, each at a number of samples."""


def with_monitor(engine: Engine, emit: Emit) -> Emit:
    """`emit`, which tells the engine's monitor too, if it has one and this is rank 0."""
    monitor: Monitor | None = getattr(engine, "monitor", None)
    if monitor is None or not monitor.enabled or engine.global_rank != 0:
        return emit
    told = MonitorFeed(monitor, samples=lambda: int(getattr(engine, "global_samples", 0)))

    def emit_and_tell(event: AnyEvent) -> None:
        emit(event)
        told.take(event)

    return emit_and_tell


class MonitorFeed:
    """Writes what a worker says to a monitor, once an iteration and on training's thread.

    Args:
        monitor: DeepSpeed's.
        samples: The number of samples at this moment, over which it draws.
    """

    def __init__(self, monitor: Monitor, *, samples: Callable[[], int]) -> None:
        self._monitor = monitor
        self._samples = samples
        self._versions: deque[VersionComplete] = deque()  # said on other threads, too
        self._written: tuple[int, frozenset[str]] = 0, frozenset()

    def take(self, event: AnyEvent) -> None:
        """Take in what was just said."""
        if isinstance(event, VersionComplete):
            self._versions.append(event)
        elif isinstance(event, Iteration):
            values = dict([*_of_versions(self._drained()), *_of_iteration(event)])
            self._write(event.iteration, values)

    def _drained(self) -> Iterator[VersionComplete]:
        while self._versions:
            yield self._versions.popleft()

    def _write(self, iteration: int, values: dict[str, float]) -> None:
        """Write those that this iteration has not told yet: it is said anew for a late `log`."""
        number, names = self._written
        told = names if number == iteration else frozenset[str]()
        at = self._samples()
        fresh = [(name, value, at) for name, value in values.items() if name not in told]
        if fresh:
            self._monitor.write_events(fresh)
        self._written = iteration, told | values.keys()


def _of_iteration(done: Iteration) -> Iterator[tuple[str, float]]:
    yield "gemini_lab/iteration", done.iteration
    yield "gemini_lab/step_seconds", done.duration_s
    yield "gemini_lab/checkpoint_wait_seconds", done.waited_s
    for name in done.values:
        if (value := done.value(name)) is not None:
            yield f"gemini_lab/logged/{name}", value


def _of_versions(versions: Iterable[VersionComplete]) -> Iterator[tuple[str, float]]:
    for each in versions:
        yield "gemini_lab/version", each.version
        yield "gemini_lab/checkpoint_seconds", each.duration_s


_LAST: Final = "last"
_SAID_ANEW: Final = frozenset({"rank", "epoch", "restored"})


class BegunWith(Protocol):
    """What an iteration began with; `gemini_lab.engine.input_fingerprints.StepInputs` is one."""

    @property
    def is_ready(self) -> bool:
        """Whether `read` would not wait."""

    def read(self) -> Inputs:
        """All of it."""


def _no_measures() -> dict[str, float]:
    return {}


class IterationLog:
    """Says each iteration when it is done, and once more if the script logs something afterwards.

    Args:
        emit: Says an event.
        newest: The iteration before the first one, if a version was restored.
        measure: What is known of an iteration that has just ended, beside what the script logs.
        clock: Seconds; the first iteration begins now.

    Attributes:
        newest: What was said of the newest iteration; `None` before the first.
        counts: Whether what is computed is of any iteration; else nothing is said of it.
    """

    def __init__(
        self,
        emit: Callable[[AnyEvent], None],
        *,
        newest: Iteration | None = None,
        measure: Callable[[], Mapping[str, float]] = _no_measures,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.newest = newest
        self.counts = True
        self._emit = emit
        self._clock = clock
        self._measure = measure
        self._begun: tuple[int, BegunWith] | None = None
        self._is_begin_said = False
        self._values: dict[str, float] = {}
        self._is_computing = False
        self._began_s = clock()

    def begin_forward(self) -> None:
        """The next iteration computes: what is logged from here on is its own."""
        self._is_computing = True

    def begin_with(self, iteration: int, inputs: Callable[[], BegunWith]) -> None:
        """The model is about to train on something; the first such time in an iteration counts."""
        if self._begun is None and self.counts:
            self._begun = iteration, inputs()
            self._say_begin()

    def _say_begin(self, *, wait: bool = False) -> None:
        """Say what the iteration began with, once, when that is known."""
        if self._begun is None or self._is_begin_said:
            return
        iteration, inputs = self._begun
        if wait or inputs.is_ready:
            self._is_begin_said = True
            self._emit(IterationBegun(iteration=iteration, inputs=inputs.read()))

    def add(self, values: dict[str, Any]) -> None:
        """Attach values to the iteration that is computed, or else to the newest.

        Raises:
            ConfigError: One is no number, or there are too many.
        """
        if not self.counts:
            return
        self._say_begin()  # to log a loss, one waits for a GPU
        numbers = numbers_of(values)
        if self._is_computing or self.newest is None:
            self._values = require_few({**self._values, **numbers})
        else:
            values_too = require_few({**self.newest.values, **numbers})
            self.newest = msgspec.structs.replace(self.newest, values=values_too)
            self._emit(self.newest)

    def to_small(self) -> dict[str, object]:
        """What of the newest iteration travels in a version: `iteration_in` finds it there.

        When a node dies before it could say it, whoever restores the version says it again.
        """
        if self.newest is None:
            return {_LAST: {}}
        fields = msgspec.structs.asdict(self.newest)
        return {_LAST: {name: fields[name] for name in fields if name not in _SAID_ANEW}}

    def end(self, iteration: int, *, waited_s: float) -> None:
        """An optimizer step has ended.

        Args:
            iteration: Its number, from 1.
            waited_s: How much of its time went into waiting for the version before.
        """
        self._say_begin(wait=True)
        now_s = self._clock()
        self.newest = Iteration(
            iteration=iteration,
            duration_s=to_microsecond(now_s - self._began_s),
            waited_s=to_microsecond(waited_s),
            values={**self._measure(), **self._values},
        )
        self._begun, self._is_begin_said = None, False
        self._values.clear()
        self._is_computing = False
        self._began_s = now_s
        self._emit(self.newest)

    def go_back(self, newest: Iteration | None) -> None:
        """Training went back: this is the newest iteration, and the next one begins now."""
        self.newest, self.counts = newest, True
        self._begun, self._is_begin_said = None, False
        self._values.clear()
        self._is_computing = False
        self._began_s = self._clock()


def iteration_in(small: Mapping[str, object]) -> Iteration | None:
    """The iteration that a version carries; `None` in the one from before the first iteration."""
    last = small[_LAST]
    return msgspec.convert(last, Iteration) if last else None
