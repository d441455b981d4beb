"""What protection costs, told to DeepSpeed's own monitor: TensorBoard, W&B, CSV or Comet.

Where a job's configuration names one of these, rank 0 writes there, beside DeepSpeed's numbers and
over the same samples, what it knows itself, under the names of the whole run's metrics (see
`gemini_lab.report.scalars`). What only the whole run knows is sent by `gemini-lab metrics --to`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from gemini_lab.engine.contract import Engine
from gemini_lab.log.events import AnyEvent, Iteration, VersionComplete

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
