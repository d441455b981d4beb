"""An endpoint for Prometheus and whatever else reads OpenMetrics."""

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from gemini_lab.errors import ConfigError, LaunchError, shown
from gemini_lab.lab.sinks import HOW, check_place, is_sink, sender
from gemini_lab.log.file import LOG_FILE
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.metrics import metrics_of

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
        """All of them, as they are now."""
        yield from self._run.ask(lambda run, now_s: list(metrics_of(run, now_s=now_s)))


def text_of(run: LogFollower) -> str:
    """A run's metrics as text."""
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
    """Refuse a port on which nobody can listen now."""
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

    Args:
        run: The run.
        places: Where to: `[ADDRESS:]PORT` is served, all else sent; see `gemini_lab.lab.sinks`.

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
    """`[ADDRESS:]PORT` as both.

    Raises:
        ConfigError: It is none.
    """
    address, _, port = where.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > LAST_PORT:
        raise ConfigError(f"cannot tell metrics to {shown(where)}; write PORT, ADDRESS:PORT, {HOW}")
    return address or LOOPBACK, int(port)
