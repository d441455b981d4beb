"""Faults that a machine tells of: which there are, what is done for each, and when one is over.

A node's agent reads them, the root agent acts by `RULES`. A machine that is about to fail, or that
may compute wrong, is drained; what passes, or may have another cause, is only told.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gemini_lab.recovery.messages import Ailing

OVER_S: Final = 600.0
"""A fault that was not seen for so long is over."""
MOST: Final = 32
"""Faults of one node at a time."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The answer to a fault."""

    drains: bool  # whether the node's ranks move to another machine
    means: str  # the fault, in words


RULES: Final[dict[str, Rule]] = {
    "gpu_failed": Rule(True, "a GPU reported an error after which it must be reset (XID)"),
    "gpu_memory": Rule(True, "a GPU's memory gave wrong bits that could not be corrected (ECC)"),
    "gpu_rows": Rule(True, "a GPU has no spare rows left for bad memory"),
    "machine_memory": Rule(True, "main memory gave wrong bits that could not be corrected (ECC)"),
    "gpu_error": Rule(False, "a GPU reported an error (XID)"),
    "gpu_corrected": Rule(False, "a GPU corrected wrong bits of its memory (ECC)"),
    "gpu_reset_wanted": Rule(False, "a GPU replaces bad rows of its memory at its next reset"),
    "gpu_throttled": Rule(False, "a GPU runs slower: it is too hot, or lacks power"),
    "gpu_silent": Rule(False, "the GPUs' driver does not answer"),
    "nvlink": Rule(False, "an NVLink had errors"),
    "machine_check": Rule(False, "the processor reported an error of the hardware"),
    "memory_corrected": Rule(False, "main memory gave wrong bits, which were corrected (ECC)"),
    "oom_kill": Rule(False, "the kernel ended processes because memory ran out"),
    "disk_error": Rule(False, "a disk or its file system had errors"),
    "disk_full": Rule(False, "a disk that the node writes to is full"),
    "clock": Rule(False, "the clock was set by more than a second"),
    "slow_memory": Rule(False, "memory is far slower than that of any machine that trains"),
    "slow_disk": Rule(False, "the disk of temporary files is far too slow"),
    "slow_link": Rule(False, "the link to another machine is far too slow"),
    "link_error": Rule(False, "a network interface lost its carrier, or received broken frames"),
    "slow_gpu": Rule(False, "a GPU computes far slower than its kind does"),
    "silent": Rule(False, "reading the machine's faults hangs"),
}
"""Every fault that a source may tell of."""


class MachineFault(NamedTuple):
    """A fault as a source has just seen it."""

    fault: str  # A key of `RULES`
    seen: str  # the evidence, in words


class FaultsSeen:
    """The faults of one node that are seen now, and what of that is news for the root agent."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, str]] = {}  # when last, and what
        self._told: set[str] = set()

    def take(self, found: Iterable[MachineFault], *, at_s: float) -> Iterator[Ailing]:
        """Note what was found, and yield what began or is over.

        Args:
            found: What sources have seen since the last call.
            at_s: Now.
        """
        for one in found:
            if one.fault in self._seen or len(self._seen) < MOST:
                self._seen[one.fault] = (at_s, one.seen)
        for fault, (seen_s, text) in [*self._seen.items()]:
            is_over = at_s - seen_s > OVER_S
            if is_over:
                del self._seen[fault]
            if is_over or fault not in self._told:
                self._told ^= {fault}
                yield Ailing(fault=fault, seen=text, is_over=is_over)

    def forget_told(self) -> None:
        """Tell everything again at the next call: another root agent asks."""
        self._told.clear()
