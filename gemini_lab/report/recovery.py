"""Values of a report: failures, recoveries, and the time that they wasted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from gemini_lab.log.events import Diverged, ResizeRefused
from gemini_lab.recovery.wasted_time import wasted_time_s
from gemini_lab.report.output import error_line
from gemini_lab.seats import listed
from gemini_lab.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A failure that the injector caused: what, on which node (and to which rank there), when."""

    at_s: float
    kind: str
    node: str
    rank: int | None

    def __str__(self) -> str:
        what = self.kind.replace("_", " ")
        return f"{what} on {self.node}" + ("" if self.rank is None else f" (rank {self.rank})")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """A worker that ended before its script did.

    Attributes:
        at_s: When its agent noticed.
        node: Where it ran.
        rank: Which it was.
        how: The signal's name, or the exit code.
        output: The last lines that it printed, in order.
        epoch: The try in which it ran.
    """

    at_s: float
    node: str
    rank: int
    how: str
    output: tuple[str, ...]
    epoch: int = 0

    @property
    def error(self) -> str:
        """The line in which Python says what was raised, or the last one that was printed."""
        return error_line(self.output)

    @property
    def is_from_outside(self) -> bool:
        """Whether a signal ended it that others send: nothing that it printed says why."""
        return self.how in {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}

    def __str__(self) -> str:
        said = "" if self.is_from_outside else self.error
        how = self.how if self.how.startswith("SIG") or not said else ""
        return f"rank {self.rank} on {self.node}: {': '.join(filter(None, (how, said)))}"


STEPS: Final = {
    "detect": "detection",
    "fence": "fencing",
    "inventory": "inventory",
    "plan": "planning",
    "serialise": "serialisation",
    "reserve": "reservation",
    "start": "restart",
    "rejoin": "rejoining",
    "retrieve": "retrieval",
    "warm_up": "warm-up",
    "redo": "lost progress",
}
"""A recovery's steps in words: those of the paper's Fig. 14 have its names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a recovery."""

    name: str
    start_s: float
    end_s: float

    @property
    def label(self) -> str:
        """The recovery's name for people."""
        return STEPS.get(self.name, self.name)

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """From where one shard came, and how long that took."""

    shard: int
    version: int
    tier: str
    holder: str | None
    size_bytes: int
    verified: bool
    retrieve_s: float
    verify_s: float
    load_s: float

    @property
    def total_s(self) -> float:
        """From asking for the shard until the engine has it."""
        return self.retrieve_s + self.verify_s + self.load_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Importing:
    """A node that was given ranks before its warm parent could fork workers.

    Attributes:
        node: Its name.
        waited_s: How long the restart waited for it.
        import_s: How long its imports took in all.
    """

    node: str
    waited_s: float
    import_s: float

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.waited_s)} of the restart until {self.node}, which had just "
            f"joined, had imported what workers need ({format_seconds(self.import_s)} in all)"
        )


def kept_words(ranks: Sequence[int]) -> str:
    """Name the ranks that went on in their processes."""
    if len(ranks) == 1:
        return f"rank {listed(ranks)} went on in its process"
    return f"ranks {listed(ranks)} went on in their processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One recovery, from the failure to the first iteration after it.

    Attributes:
        number: Counts from 1.
        cause: How the failure was noticed.
        injections: What the injector did to cause it; empty for a failure of the world's.
        exits: Workers that ended by themselves, with their last lines.
        lost_nodes: Nodes that went.
        failed_at_s: When it failed: the injection where there is one, else the detection.
        resumed_at_s: When the first iteration after it had ended; None if that never came.
        version: What was loaded; 0 for a start from the beginning, None if nothing was planned.
        tier: `"memory"`, `"persistent"` or `"start"`.
        reason: Why that version and tier.
        steps: In order of time, detection first.
        receipts: One a shard, in their order.
        rejected: Copies and versions that were stepped over, for people.
        reached: Newest iteration that every rank had ended before the failure.
        lost_iterations: How many iterations that every rank had ended had to be done again.
        lost_by_any: The same for those that only some ranks had ended; never fewer.
        lost_progress_s: Time of training between the version that was loaded and the failure,
            without earlier recoveries and what the failures before those had lost already.
        kept: Ranks that went on in their processes; the others started anew.
        compared: How many iterations of ranks were done again and compared with before, bit by bit.
        divergences: Those that are not what they were; the earliest first.
        refused: Numbers of nodes that its script refused on the way, each with the reason.
        importing: Nodes that its restart waited for, as they had just joined.
    """

    number: int
    cause: str
    injections: tuple[Injection, ...]
    exits: tuple[WorkerExit, ...]
    lost_nodes: tuple[str, ...]
    failed_at_s: float
    resumed_at_s: float | None
    version: int | None
    tier: str | None
    reason: str
    steps: tuple[Step, ...]
    receipts: tuple[Receipt, ...]
    rejected: tuple[str, ...]
    reached: int
    lost_iterations: int
    lost_by_any: int
    lost_progress_s: float | None
    kept: tuple[int, ...] = ()
    compared: int = 0
    divergences: tuple[Diverged, ...] = ()
    refused: tuple[ResizeRefused, ...] = ()
    importing: tuple[Importing, ...] = ()

    @property
    def duration_s(self) -> float | None:
        """From the failure to the end of the first iteration after it."""
        return None if self.resumed_at_s is None else self.resumed_at_s - self.failed_at_s

    @property
    def retrieval_s(self) -> float:
        """Until the slowest shard was loaded, t_rtvl."""
        return max((receipt.total_s for receipt in self.receipts), default=0.0)

    @property
    def wasted_s(self) -> float | None:
        """The time wasted by the failure, as in the paper: lost progress and retrieval."""
        return None if self.lost_progress_s is None else self.lost_progress_s + self.retrieval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedTime:
    """Eq. (1) with this run's own figures, beside what its failures did waste.

    Attributes:
        checkpoint_s: Median time until a version was whole on a rank, t_ckpt.
        interval_s: Median time from one version to the next, which is the checkpoint interval 1/f.
        retrieval_s: Mean over the recoveries, t_rtvl.
        measured_s: Lost progress and retrieval of each recovery.
    """

    checkpoint_s: float
    interval_s: float
    retrieval_s: float
    measured_s: tuple[float, ...]

    @property
    def predicted_s(self) -> float:
        """t_ckpt + 1/(2f) + t_rtvl, the mean over failures at any moment (paper, section 2.1)."""
        return wasted_time_s(
            checkpoint_s=self.checkpoint_s,
            interval_s=max(self.interval_s, self.checkpoint_s),
            retrieval_s=self.retrieval_s,
        )

    @property
    def measured_mean_s(self) -> float:
        """The mean of `measured_s`."""
        return fmean(self.measured_s)
