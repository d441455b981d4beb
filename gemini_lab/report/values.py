"""What a report says: plain values, with the few sums that people ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final, Literal

import msgspec

from gemini_lab.log.events import (
    Diverged,
    FailureCause,
    LossNotFinite,
    ReplicasPlaced,
    Resized,
    Rewound,
    WrongSums,
)
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.wasted_time import wasted_time_s
from gemini_lab.report.output import error_line
from gemini_lab.seats import listed

Outcome = Literal["finished", "failed", "stopped", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One rank's part of an iteration that counts: neither lost nor overtaken by a later try.

    Attributes:
        rank: Who did it.
        number: Iterations done with this one; the state after it is the version of this number.
        node: Where.
        ended_at_s: When.
        duration_s: How long it took.
        waited_s: How much of that the update waited for the checkpoint before it.
        loss: Its value called "loss", if the script logged one.
    """

    rank: int
    number: int
    node: str
    ended_at_s: float
    duration_s: float
    waited_s: float
    loss: float | None


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
        """What people call it."""
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


def kept_words(ranks: Sequence[int]) -> str:
    """Who went on in a process that there was."""
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
        """What the failure wasted in the paper's sense: lost progress and retrieval."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that left a node for another one, and what went to the persistent tier.

    Attributes:
        checkpoint_bytes: Replicas sent while training.
        versions: Versions that were whole on every rank at some time.
        recovery_bytes: Shards that came from a peer in recoveries.
        persistent_bytes: Written to the persistent tier.
        persistent_versions: Versions that are whole there.
        persistent_failures: Why a version did not get there, one entry each.
    """

    checkpoint_bytes: int
    versions: int
    recovery_bytes: int
    persistent_bytes: int
    persistent_versions: tuple[int, ...]
    persistent_failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """What the ranks agreed on once they had profiled the job, and followed from then on.

    Attributes:
        at_s: When.
        profile: The mean of what all ranks saw.
        schedule: Rank 0's; a rank whose shard has another size has another one.
        calibration: The wire and the memory, as they were measured for the schedule.
    """

    at_s: float
    profile: Profile
    schedule: ChunkSchedule
    calibration: Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Whether two runs had the same losses, bit by bit; true where they did.

    Attributes:
        compared: How many losses both runs have.
        first_difference: The first place where they part, for people; None if there is none.
    """

    compared: int
    first_difference: str | None

    def __bool__(self) -> bool:
        return self.compared > 0 and self.first_difference is None

    def __str__(self) -> str:
        if self:
            return f"bit-identical: {self.compared} losses compared, none differs"
        if self.first_difference is None:
            return "nothing to compare: neither run logged a loss"
        return f"not identical: {self.first_difference}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """Losses were no numbers for a while.

    Attributes:
        began: Where that was noticed first.
        ended: The first iteration in which all were numbers again; `None`: they never were.
    """

    began: LossNotFinite
    ended: int | None = None

    def __str__(self) -> str:
        until = "to the end" if self.ended is None else f"until iteration {self.ended}"
        return f"{self.began}, {until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was computed again on other machines.

    Attributes:
        iterations: Those of which all machines computed the same.
        newest: The newest of them; `None` for none.
        took_s: What that took, all together.
        wrong: Each time that machines came to different numbers, in order of the log.
    """

    iterations: int = 0
    newest: int | None = None
    took_s: float = 0.0
    wrong: tuple[WrongSums, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run did.

    Attributes:
        name: The run's name.
        simulated: Whether the log was written by the simulator.
        script: What it ran.
        nodes: Nodes that trained at the same time.
        ranks: Training processes.
        started_at_s: When the job was submitted.
        ended_at_s: When it ended, or when the log does.
        outcome: How it ended; `"unfinished"` if the log does not say.
        reason: Why it failed.
        cause: The same for programs; `None` where it did not fail.
        output: The last lines of the worker because of which it failed.
        exits: Workers that ended in the try because of which it failed.
        iterations: In order of number, then rank.
        recoveries: In order of time.
        divergences: What was not the same when it was done again, in order of the log.
        not_finite: When losses were NaN or infinite, in order of the log.
        rewinds: When training went back to a version in memory, in order of the log.
        verified: What was computed again on other machines.
        resizes: When it went on with another number of nodes, in order of the log.
        copies_placed: When copies were placed anew because the risk had changed.
        injections: All that the injector did.
        wasted: None until there is a recovery to measure.
        traffic: Bytes sent.
        roots: The nodes that were root, in order.
        notes: Remarks in the log.
        plans: When chunks left, by the schemes that profile a job; in order of time.
        unread: Events of the log that made no sense.
    """

    name: str
    simulated: bool
    script: str
    nodes: int
    ranks: int
    started_at_s: float
    ended_at_s: float
    outcome: Outcome
    reason: str
    cause: FailureCause | None
    output: tuple[str, ...]
    exits: tuple[WorkerExit, ...]
    iterations: tuple[Iteration, ...]
    recoveries: tuple[Recovery, ...]
    injections: tuple[Injection, ...]
    wasted: WastedTime | None
    traffic: Traffic
    roots: tuple[str, ...]
    notes: tuple[str, ...]
    plans: tuple[TrafficPlan, ...] = ()
    unread: int = 0
    divergences: tuple[Diverged, ...] = ()
    not_finite: tuple[NotFinite, ...] = ()
    rewinds: tuple[Rewound, ...] = ()
    verified: Verified = Verified()
    resizes: tuple[Resized, ...] = ()
    copies_placed: tuple[ReplicasPlaced, ...] = ()

    @property
    def duration_s(self) -> float:
        """From the job's submission to its end."""
        return self.ended_at_s - self.started_at_s

    @property
    def losses(self) -> Mapping[tuple[int, int], float]:
        """Every loss by (iteration, rank)."""
        return {(i.number, i.rank): i.loss for i in self.iterations if i.loss is not None}

    def losses_match(self, other: "RunReport") -> Comparison:
        """Compare the losses with those of another run, bit by bit."""
        here, there = self.losses, other.losses
        difference = None
        for iteration, rank in sorted({*here, *there}):
            mine, theirs = (_hex(side.get((iteration, rank))) for side in (here, there))
            if mine != theirs:
                difference = f"iteration {iteration}, rank {rank}: {mine} and {theirs}"
                break
        return Comparison(compared=len(here.keys() & there.keys()), first_difference=difference)

    def to_json(self) -> dict[str, Any]:
        """Plain values; losses stand there as hexadecimal floats too, to compare bit by bit."""
        record = asdict(self)
        record["duration_s"] = self.duration_s
        for iteration in record["iterations"]:
            iteration["loss_hex"] = _hex(iteration["loss"])
        record["divergences"] = [msgspec.to_builtins(one) for one in self.divergences]
        record["not_finite"] = [
            {"began": msgspec.to_builtins(one.began), "ended": one.ended} for one in self.not_finite
        ]
        record["rewinds"] = [msgspec.to_builtins(one) for one in self.rewinds]
        wrong = [msgspec.to_builtins(one) for one in self.verified.wrong]
        record["verified"] = {**record["verified"], "wrong": wrong}
        record["copies_placed"] = [msgspec.to_builtins(one) for one in self.copies_placed]
        record["resizes"] = [msgspec.to_builtins(one) for one in self.resizes]
        for recovery, values in zip(self.recoveries, record["recoveries"], strict=True):
            values |= {
                "divergences": [msgspec.to_builtins(one) for one in recovery.divergences],
                "duration_s": recovery.duration_s,
                "retrieval_s": recovery.retrieval_s,
                "wasted_s": recovery.wasted_s,
            }
        if self.wasted is not None:
            record["wasted"]["predicted_s"] = self.wasted.predicted_s
            record["wasted"]["measured_mean_s"] = self.wasted.measured_mean_s
        return record


def _hex(loss: float | None) -> str | None:
    return None if loss is None else float(loss).hex()
