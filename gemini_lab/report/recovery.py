"""Values of a report: failures, recoveries, and the time that they wasted."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal, get_args

from gemini_lab.display import error_line
from gemini_lab.log.events import PLANNED, RESIZE, Diverged, ResizeRefused
from gemini_lab.recovery.faults import is_of_the_network
from gemini_lab.recovery.wasted_time import wasted_time_s
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
    """A worker that ended before its script did."""

    at_s: float  # when its agent noticed
    node: str
    rank: int
    how: str  # the signal's name, or the exit code
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
        return STEPS.get(self.name, self.name)

    @property
    def duration_s(self) -> float:
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
    """A node that was given ranks before its warm parent could fork workers."""

    node: str
    waited_s: float
    import_s: float

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.waited_s)} of the restart until {self.node}, which had just "
            f"joined, had imported what workers need ({format_seconds(self.import_s)} in all)"
        )


def kept_words(ranks: Sequence[int]) -> str:
    """Return name the ranks that went on in their processes."""
    if len(ranks) == 1:
        return f"rank {listed(ranks)} went on in its process"
    return f"ranks {listed(ranks)} went on in their processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One recovery, from the failure to the first iteration after it.

    Attributes:
        cause: How the failure was noticed.
        injections: What the injector did to cause it; empty for a failure of the world's.
        failed_at_s: When it failed: the injection where there is one, else the detection.
        resumed_at_s: When the first iteration after it had ended; None if that never came.
        version: What was loaded; 0 for a start from the beginning, None if nothing was planned.
        tier: `"memory"`, `"persistent"` or `"start"`.
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
        before: The node on each position until then; empty if the log does not say.
        members: The same from then on; empty if nothing was planned.
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
    before: tuple[str | None, ...] = ()
    members: tuple[str | None, ...] = ()

    @property
    def what(self) -> str:
        """The failure, or what was asked for, in words."""
        if self.injections:
            several = len(self.injections)
            told = ", ".join(map(str, self.injections))
            return told if several == 1 else f"{several} failures in one: {told}"
        if self.refused:
            return f"resize to {', '.join(str(one.nodes) for one in self.refused)} nodes, refused"
        then, now = len(self.before), len(self.members)
        if self.cause == RESIZE and then and now:
            return f"resize from {then} to {now} nodes"
        where = f" ({', '.join(self.lost_nodes)})" if self.lost_nodes else ""
        return (self.cause.replace("_", " ") or "a failure") + where

    @property
    def source(self) -> str:
        """The version and tier that were loaded, in words."""
        if self.tier is None or self.version is None:
            return "nothing planned yet"
        if self.tier == "start":
            return "from the start"
        tier = "memory" if self.tier == "memory" else "the persistent tier"
        return f"version {self.version} from {tier}"

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
        """The time wasted by the failure, as in the paper: lost progress and retrieval.

        `None` for a planned move, as nothing failed.
        """
        if self.lost_progress_s is None or self.is_planned:
            return None
        return self.lost_progress_s + self.retrieval_s

    @property
    def is_planned(self) -> bool:
        """Whether it was asked for, such as a drain."""
        return self.cause in PLANNED


def done_again(recoveries: Sequence[Recovery]) -> str:
    """Return how many iterations were done a second time after these recoveries, in words."""
    by_all = sum(one.lost_iterations for one in recoveries)
    more = sum(one.lost_by_any for one in recoveries) - by_all
    if not by_all and not more:
        return "less than one iteration done again"
    whole = f"{by_all:,} whole iteration{'s'[: by_all != 1]} done again"
    return f"{whole}, {more:,} more on some ranks" if more else whole


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
        return fmean(self.measured_s)


Ending = Literal["raised", "was killed", "left", "lost its peers"]
"""What a worker's end looks like: an error of its script's own, a signal, an end with status 0, or
an error that ranks raise because another one is gone."""
BLAME_ORDER: Final[tuple[Ending, ...]] = get_args(Ending)
"""Who is blamed first."""
MOST_EXITS: Final = 12
LONGEST_ERROR: Final = 32


def part_of(gone: WorkerExit) -> Ending:
    """Classify the way in which a worker ended."""
    if not gone.how.startswith("exit code"):
        return "was killed"
    if gone.how == "exit code 0":
        return "left"
    return "lost its peers" if is_of_the_network(gone.error) else "raised"


def culprit_of(exits: Collection[WorkerExit]) -> WorkerExit | None:
    """Return the worker that ended first of those that ended on their own account."""
    return min(
        exits, key=lambda one: (one.epoch, BLAME_ORDER.index(part_of(one)), one.at_s), default=None
    )


def blamed_for(recovery: Recovery) -> WorkerExit | None:
    """Return the worker whose end a recovery is told by.

    None where another cause is known, such as a node that was lost, and all who ended had only lost
    their peers with it.
    """
    gone = culprit_of(recovery.exits)
    is_known = bool(recovery.injections or recovery.lost_nodes)
    return None if gone and is_known and part_of(gone) == "lost its peers" else gone


def culprits(exits: Sequence[WorkerExit]) -> Iterator[str]:
    """Give a table for people, try by try: who ended when and how, and whom the others followed."""
    for epoch in sorted({one.epoch for one in exits}):
        found = sorted((one for one in exits if one.epoch == epoch), key=lambda one: one.at_s)
        first = culprit_of(found)
        assert first is not None
        if len(found) > 1:
            yield f"  {len(found)} ranks ended; the others followed from the one that is marked:"
        shown = (
            found[:MOST_EXITS] if first in found[:MOST_EXITS] else [first, *found[: MOST_EXITS - 1]]
        )
        for one in shown:
            mark = ">" if one is first else " "
            after = f"{one.at_s - found[0].at_s:+.2f} s"
            who = f"rank {one.rank} on {one.node}"
            yield f"  {mark} {who:<18}{after:>8}  {_how(one)}"
        if len(found) > len(shown):
            yield f"    ... and {len(found) - len(shown)} more"


def _how(gone: WorkerExit) -> str:
    part = part_of(gone)
    if part in {"was killed", "left"}:
        return f"{part} ({gone.how})"
    error = gone.error or gone.how
    return f"{part:<16}{error if len(error) <= LONGEST_ERROR else error[: LONGEST_ERROR - 1] + '…'}"
