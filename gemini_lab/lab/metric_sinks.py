"""A run's metrics: served for Prometheus, or sent to TensorBoard, W&B or OpenTelemetry."""

import importlib.util
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from gemini_lab.display import complain
from gemini_lab.errors import ConfigError, LaunchError, shown
from gemini_lab.log.file import LOG_FILE
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.metrics import PREFIX, Scalars, Snapshot, metrics_of, snapshots

LOOK_S: Final = 1.0
MOST_BUSY: Final = 0.05
"""Of a core: a long run's metrics are made less often."""
PACKAGES: Final = {
    "otlp": ("opentelemetry.exporter.otlp.proto.http", "otlp"),
    "tensorboard": ("tensorboard", "monitors"),
    "wandb": ("wandb", "monitors"),
}
"""By kind of sink: what it imports, and the extra of this package that brings that."""
ITERATION: Final = f"{PREFIX}/iteration"
HOW: Final = "otlp[:URL], tensorboard:FOLDER or wandb[:PROJECT]"


class Sink(Protocol):
    """Takes a run's metrics; an error of its methods is its own."""

    def write(self, now: Snapshot) -> None:
        """Take the next snapshot; the last one comes when the run is over, or no longer watched."""

    def close(self) -> None:
        """Close files and connections."""


class CurvePoints:
    """Decides which snapshots are points of curves: one an iteration, and the end."""

    def __init__(self) -> None:
        self._scalars = Scalars()
        self._iteration = -1

    def point(self, now: Snapshot) -> dict[str, float]:
        """Return the next point's values by name; none where a snapshot is no point."""
        if now.iteration == self._iteration and not now.is_over:
            return {}
        self._iteration = now.iteration
        return self._scalars.of(now.metrics)


class TensorBoard:
    """Writes curves by iteration into `folder`, one event file."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # only where asked for

        self._writer = SummaryWriter(log_dir=str(folder))
        self._curves = CurvePoints()

    def write(self, now: Snapshot) -> None:
        for name, value in self._curves.point(now).items():
            self._writer.add_scalar(name, value, now.iteration, walltime=now.at_s)
        if now.is_newest:
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Logs curves by iteration to a run of Weights & Biases.

    Account, mode (`WANDB_MODE=offline`) and folder come from its own settings.
    """

    def __init__(self, run: str, project: str = "") -> None:
        import wandb  # noqa: PLC0415  # only where asked for

        quiet = wandb.Settings(console="off")
        self._run = wandb.init(project=project or None, name=run, job_type=PREFIX, settings=quiet)
        # W&B's own step never goes back, but a run does after a failure: so curves go over ours.
        self._run.define_metric(ITERATION)
        self._run.define_metric(f"{PREFIX}/*", step_metric=ITERATION)
        self._curves = CurvePoints()

    def write(self, now: Snapshot) -> None:
        if point := self._curves.point(now):
            self._run.log(point)

    def close(self) -> None:
        self._run.finish()


def check_place(where: str) -> None:
    """Refuse a place to which no metrics can be sent, before anything is opened.

    Raises:
        ConfigError: There is no such kind, it lacks its place, or its package is not installed.
    """
    kind, _, place = where.partition(":")
    if kind not in PACKAGES:
        raise ConfigError(f"cannot send metrics to {where!r}; write {HOW}")
    package, extra = PACKAGES[kind]
    if not is_installed(package):
        raise ConfigError(
            f"cannot send metrics to {where!r}: {package} is not installed; run: pip install "
            f"'gemini-lab[{extra}]'"
        )
    if kind == "tensorboard" and not place:
        raise ConfigError("cannot send metrics to 'tensorboard'; write tensorboard:FOLDER")
    if kind == "otlp" and place:
        check_url(place)


def check_url(url: str) -> None:
    """Refuse what is no URL of a receiver.

    Raises:
        ConfigError: It is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            f"cannot send metrics to {url!r}; write the receiver's URL for OTLP over HTTP, such as "
            "otlp:http://collector:4318"
        )


def is_sink(where: str) -> bool:
    """Return whether a place for metrics is one that they are sent to."""
    return where.partition(":")[0] in PACKAGES


def open_sink(where: str, run: str) -> Sink:
    """Return the sink that `KIND[:WHERE]` names, which was checked, for the metrics of a run."""
    kind, _, place = where.partition(":")
    if kind == "tensorboard":
        return TensorBoard(Path(place) / run)
    if kind == "wandb":
        return Wandb(run, place)
    from gemini_lab.lab.otlp import Otlp  # noqa: PLC0415  # an extra's

    return Otlp(run, place)


def is_installed(package: str) -> bool:
    """Return whether a package is there; a part of one that is not there is not there either."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


class Sender:
    """Brings what is new in a run's log to its sinks, on a thread of its own."""

    def __init__(self, run: LogFollower, opens: Mapping[str, Callable[[], Sink]]) -> None:
        # Those that could not be opened, or whose newest snapshot did not get there.
        self.failing: set[str] = set()
        self._run = run
        self._opens = opens
        self._sinks: dict[str, Sink] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="metrics")

    def send(self) -> bool:
        is_over = False
        for now in snapshots(self._run):
            is_over = now.is_over
            for where, sink in self._sinks.items():
                self._write(where, sink, now)
        return is_over

    def _write(self, where: str, sink: Sink, now: Snapshot) -> None:
        with self._telling_of(where):
            sink.write(now)
            self.failing.discard(where)

    @contextmanager
    def _telling_of(self, where: str) -> Iterator[None]:
        """Say it once where somebody else's library fails: the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            if where not in self.failing:
                self.failing.add(where)
                complain(f"gemini-lab: metrics do not get to {where}: {error}")

    def _send_all(self) -> None:
        for where, open_it in self._opens.items():
            with self._telling_of(where):
                self._sinks[where] = open_it()
        is_last = False
        while True:
            began_s = time.thread_time()
            if self.send() or is_last:
                break
            took_s = time.thread_time() - began_s
            is_last = self._is_stopped.wait(max(LOOK_S, took_s / MOST_BUSY))
        for where, sink in self._sinks.items():
            with self._telling_of(where):
                sink.close()

    def wait(self) -> None:
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self.wait()


def sender(run: LogFollower, name: str, places: Sequence[str]) -> Sender:
    """Return what sends a run's metrics to `places` in its block.

    Raises:
        ConfigError: See `check_place`.
    """
    for where in places:
        check_place(where)
    return Sender(run, {where: partial(open_sink, where, name) for where in places})


# -- sinks -----------------------------------------------------------------------------------------


LOOPBACK: Final = "127.0.0.1"
LAST_PORT: Final = 65535
_PORT: Final = re.compile("[0-9]{1,5}")


class HasFolder(Protocol):
    """A run whose log is here."""

    name: str
    folder: Path


class RunCollector:
    """Makes a run's metrics when it is asked for them."""

    def __init__(self, run: LogFollower) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        yield from self._run.ask(lambda run, now_s: list(metrics_of(run, now_s=now_s)))


def text_of(run: LogFollower) -> str:
    """Return a run's metrics as text."""
    registry = CollectorRegistry()
    registry.register(RunCollector(run))
    return generate_latest(registry).decode()


@contextmanager
def serve_metrics(run: LogFollower, *, port: int, address: str = LOOPBACK) -> Iterator[int]:
    """Serve a run's metrics at `/metrics` until the block ends; gives the port.

    Raises:
        LaunchError: The port is taken.
    """
    registry = CollectorRegistry()
    registry.register(RunCollector(run))
    try:
        server, thread = start_http_server(port, address, registry)
    except (OSError, OverflowError) as error:
        raise _taken(address, port, error) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check_places(places: Sequence[str]) -> None:
    """Refuse places to which no metrics can be told, before a run begins.

    Raises:
        ConfigError: One is such a place.
        LaunchError: One is a port that is taken.
    """
    for where in places:
        if is_sink(where):
            check_place(where)
        else:
            address, port = split_port(where)
            _check_free(address, port)


def _check_free(address: str, port: int) -> None:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, port), family=family):
            pass
    except (OSError, OverflowError) as error:
        raise _taken(address, port, error) from error


def _taken(address: str, port: int, error: Exception) -> LaunchError:
    return LaunchError(f"cannot serve metrics on {address}:{port}: {error}; choose another port")


@contextmanager
def telling(run: HasFolder, places: Sequence[str]) -> Iterator[None]:
    """Tell the metrics of a run whose log is here until the block ends.

    Of `places`, `[ADDRESS:]PORT` is served, and to all else they are sent; see `PACKAGES`.

    Raises:
        ConfigError: There is no such place, or what it needs is not installed.
        LaunchError: A port is taken.
    """
    with ExitStack() as until_end:
        for where in places:
            if not is_sink(where):
                address, port = split_port(where)
                served = LogFollower.of(run.name, run.folder / LOG_FILE)
                until_end.enter_context(serve_metrics(served, port=port, address=address))
        if sent := [where for where in places if is_sink(where)]:
            seen = LogFollower.of(run.name, run.folder / LOG_FILE)
            until_end.enter_context(sender(seen, run.name, sent))
        yield


def split_port(where: str) -> tuple[str, int]:
    """Return `[ADDRESS:]PORT` as both.

    Raises:
        ConfigError: It is none.
    """
    address, _, port = where.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > LAST_PORT:
        raise ConfigError(f"cannot tell metrics to {shown(where)}; write PORT, ADDRESS:PORT, {HOW}")
    return address or LOOPBACK, int(port)
