"""A run's log is read while it is written, so that a run of many days opens at once."""

import threading
from pathlib import Path
from typing import Final

from gemini_lab.log.follow import name_of
from gemini_lab.report.reopen import Reading, keep, reopened

LOOK_S: Final = 10.0
"""Between two looks at the log."""
LONG_BYTES: Final = 16 << 20
"""A shorter log is read in no time by whoever opens it."""
LITTLE: Final = 2_000
"""Lines that are taken in at once, and then the run's owner has its turn."""
TURN_S: Final = 0.01
OFTEN: Final = 500_000
"""Entries after which what was read is kept, or a sixteenth of what was kept before."""
ENDS_WITHIN_S: Final = 20.0


class Keeper:
    """Reads one log in a thread, from when it becomes long, until it is closed.

    Args:
        log: The log; it need not be there yet.
        folder: Where readings are kept; by default as `reopen` has it.
        long_bytes: So long it has to be.
    """

    def __init__(
        self, log: Path, *, folder: Path | None = None, long_bytes: int = LONG_BYTES
    ) -> None:
        self._log, self._folder, self._long_bytes = log, folder, long_bytes
        self._is_over = threading.Event()
        self._reading: Reading | None = None
        self._thread = threading.Thread(target=self._run, name="gemini-log-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read what is left, keep all of it, and end; it waits for that, but not for ever."""
        self._is_over.set()
        self._thread.join(ENDS_WITHIN_S)

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._read()
        self._read()
        if self._reading is not None:
            self._reading.end()

    def _read(self) -> None:
        if self._reading is None:
            if not self._log.is_file() or self._log.stat().st_size < self._long_bytes:
                return
            self._reading = reopened(self._log, name=name_of(self._log), folder=self._folder)
        while self._reading.read(limit=LITTLE) == LITTLE:
            self._is_over.wait(TURN_S)
        if self._reading.news >= max(OFTEN, self._reading.kept // 16):
            keep(self._reading)
