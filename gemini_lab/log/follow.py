"""Reading a run's log while it is being written."""

from pathlib import Path
from typing import Final

from gemini_lab.display import readable
from gemini_lab.log.entry import Entry, EventError
from gemini_lab.log.file import LOG_FILE, read_line

BLOCK_BYTES: Final = 1 << 20
LONGEST_LINE_BYTES: Final = 1 << 26
"""A longer line is not an event."""


def log_of(path: Path) -> Path:
    """The log that is meant by a run's folder, or by the log itself."""
    return path / LOG_FILE if path.is_dir() else path


def name_of(log: Path) -> str:
    """What the run with this log is called: as its folder, or its file."""
    return readable(log.absolute().parent.name if log.name == LOG_FILE else log.stem)


class LogFeed:
    """The entries of a log that grows; a last line that is not whole yet waits.

    Args:
        path: A run's folder or its log; it need not be there yet.

    Attributes:
        bad_lines: Whole lines that were no events.
    """

    def __init__(self, path: Path) -> None:
        self.path = log_of(Path(path))
        self.bad_lines = 0
        self._read_bytes = 0
        self._rest = b""
        self._lines: list[bytes] = []

    @property
    def behind_bytes(self) -> int:
        """What the log has beyond the entries that were given out."""
        waiting = len(self._rest) + sum(len(line) + 1 for line in self._lines)
        return max(0, self._size() - self._read_bytes) + waiting

    @property
    def read_bytes(self) -> int:
        """How much of the log has been read."""
        return self._read_bytes

    def poll(self, *, limit: int = 20_000) -> list[Entry]:
        """Return the next entries, at most `limit`; none if the log has no more whole lines now.

        A log that became shorter is read from its start again.

        Raises:
            SchemaError: The log is of a version that this package cannot read.
        """
        entries: list[Entry] = []
        left = (
            limit  # a line that is no event counts, so that a damaged log gives a reader its turn
        )
        while (left > 0 or not entries) and (self._lines or self._read()):
            most = left if left > 0 else limit
            lines = self._lines[: -most - 1 : -1]
            del self._lines[-most:]
            for line in lines:
                try:
                    entry = read_line(line)
                except EventError:
                    self.bad_lines += bool(line.strip())
                else:
                    if entry is None:  # it tells how the log is written
                        continue
                    entries.append(entry)
                left -= 1
        return entries

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _read(self) -> bool:
        """Read on until there are whole lines; false if the log has none now."""
        if self._size() < self._read_bytes:
            self._read_bytes, self._rest = 0, b""
        try:
            with self.path.open("rb") as log:
                log.seek(self._read_bytes)
                while block := log.read(BLOCK_BYTES):
                    self._read_bytes += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    if len(self._rest) > LONGEST_LINE_BYTES:
                        self._rest = b""
                        self.bad_lines += 1
                    if lines:
                        self._lines = lines[::-1]
                        return True
        except OSError:
            return False
        return False
