"""For how long another process has done nothing: what tells one that hangs from one that works."""

import time

import psutil


class Idleness:
    """How long a process has used no processor, as far as it was looked at.

    Args:
        pid: The process; one that is gone uses none.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s, self._since_s = self._read_s(), time.monotonic()

    def look(self) -> float:
        """Seconds since the last look at which it had worked; the first was when this was made."""
        before_s, self._used_s = self._used_s, self._read_s()
        if self._used_s != before_s:
            self._since_s = time.monotonic()
        return time.monotonic() - self._since_s

    def _read_s(self) -> float:
        """Seconds of a processor that it has used."""
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)
