"""Values of a report: plain data, with the few sums that people ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gemini_lab.log.events import (
    CodeSeen,
    Diverged,
    FailureCause,
    LossNotFinite,
    NodeAiling,
    RankSlow,
    ReplicasPlaced,
    Resized,
    Rewound,
    WrongSums,
)
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.profile import Profile
from gemini_lab.report.recovery import Injection, Recovery, WastedTime, WorkerExit

Outcome = Literal["finished", "failed", "stopped", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineAnswer:
    """One question about a run, and its answer."""

    question: str
    short: str  # the answer in a few characters
    detail: str  # what it rests on
    mood: Literal["good", "bad", "neutral", "unknown"]  # `"unknown"` if the log does not answer it
    view: str  # the view that shows where the answer comes from, by its place on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One rank's part of an iteration that counts: neither lost nor overtaken by a later try.

    Attributes:
        number: Iterations done with this one; the state after it is the version of this number.
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
class Traffic:
    """Bytes that left a node for another one, and what went to the persistent tier.

    Attributes:
        checkpoint_bytes: Replicas sent while training.
        versions: Versions that were whole on every rank at some time.
        recovery_bytes: Shards that came from a peer in recoveries.
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
    """The traffic plan that ranks agreed on after profiling.

    Attributes:
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
    """Losses were no numbers for a while."""

    began: LossNotFinite  # where that was noticed first
    # The first iteration in which all were numbers again; `None`: they never were.
    ended: int | None = None

    def __str__(self) -> str:
        until = "to the end" if self.ended is None else f"until iteration {self.ended}"
        return f"{self.began}, {until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedIterations:
    """Computations repeated on other machines."""

    iterations: int = 0  # those of which all machines computed the same
    newest: int | None = None  # the newest of them; `None` for none
    took_s: float = 0.0
    # Each time that machines came to different numbers, in order of the log.
    wrong: tuple[WrongSums, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The report of a run.

    Attributes:
        nodes: Nodes that trained at the same time.
        started_at_s: When the job was submitted.
        ended_at_s: When it ended, or when the log does.
        outcome: How it ended; `"unfinished"` if the log does not say.
        cause: The same for programs; `None` where it did not fail.
        iterations: In order of number, then rank.
        code_changes: Starts with other code than before, in order of the log.
        divergences: What was not the same when it was done again, in order of the log.
        not_finite: When losses were NaN or infinite, in order of the log.
        ailments: Ranks that were slow, and faults that machines told of, in order of the log.
        rewinds: When training went back to a version in memory, in order of the log.
        resizes: When it went on with another number of nodes, in order of the log.
        began_from: The version of an earlier run that its first start loaded; `None` if none.
        lost_standbys: Machines that waited, were lost and did not come back, in order.
        places: What each rank is among ranks that differ; empty if all are alike.
        wasted: None until there is a recovery to measure.
        plans: When chunks left, by the schemes that profile a job; in order of time.
        answers: Whether it has the same numbers, and what checkpoints and failures cost it.
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
    code_changes: tuple[CodeSeen, ...] = ()
    divergences: tuple[Diverged, ...] = ()
    not_finite: tuple[NotFinite, ...] = ()
    rewinds: tuple[Rewound, ...] = ()
    ailments: tuple[RankSlow | NodeAiling, ...] = ()
    verified: VerifiedIterations = VerifiedIterations()
    resizes: tuple[Resized, ...] = ()
    copies_placed: tuple[ReplicasPlaced, ...] = ()
    began_from: int | None = None
    lost_standbys: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    answers: tuple[HeadlineAnswer, ...] = ()

    def __str__(self) -> str:
        done = max((one.number for one in self.iterations), default=0)
        recoveries = len(self.recoveries)
        return (
            f"run {self.name}: {self.outcome}, {done} iteration{'s' * (done != 1)}, "
            f"{recoveries} recover{'y' if recoveries == 1 else 'ies'}"
        )

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
                pair = f"{mine or 'no loss'} and {theirs or 'no loss'}"
                difference = f"iteration {iteration}, rank {rank}: {pair}"
                break
        return Comparison(compared=len(here.keys() & there.keys()), first_difference=difference)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with losses as hexadecimal floats, too, to compare bit by bit."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        record["duration_s"] = self.duration_s
        for iteration in record["iterations"]:
            iteration["loss_hex"] = _hex(iteration["loss"])
        for recovery, values in zip(self.recoveries, record["recoveries"], strict=True):
            values |= {
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
