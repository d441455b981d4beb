"""A run's log on disk: where it is, how it is written, how it is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from gemini_lab.errors import ConfigError
from gemini_lab.log.events import Event

LOG_FILE: Final = "events.jsonl"
"""The log in a run's folder."""


class EventLog:
    """A run's events on disk, one JSON line each, in order of arrival."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def append(self, event: Event) -> None:
        """Add one event; it is on its way to the disk when this returns."""
        self._file.write(event.to_json() + "\n")

    def close(self) -> None:
        """Close the file; the log can be read on."""
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events in the log at `path`; a last line that was cut short by a crash is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield Event.from_json(line)


def find_run(run: str, *, below: Path = Path("gemini-runs")) -> Path:
    """The folder of a run.

    Args:
        run: A run's folder, its name below `below`, or `"latest"` for the newest one there.
        below: Where runs keep their logs.

    Raises:
        ConfigError: No log is there.
    """
    if run == "latest":
        logs = sorted(below.glob(f"*/{LOG_FILE}"), key=lambda log: log.stat().st_mtime)
        if not logs:
            raise ConfigError(f"no run is in {below.absolute()}; name a run's folder")
        return logs[-1].parent
    for folder in (Path(run), below / run):
        if (folder / LOG_FILE).is_file():
            return folder
    raise ConfigError(
        f"{run!r} is no run: there is no {LOG_FILE} in {Path(run).absolute()} or below {below}; "
        "name a run's folder, or 'latest'"
    )
