"""Tables of a run so far: iterations, logged values, recoveries and their cost.

Values for views, plain data. Times are seconds since the run's start. Names and what workers
printed are those of the log, not yet escaped.
"""

from dataclasses import dataclass
from typing import Literal

from gemini_lab.report.tables.now import Memory, Origin, Replicas, Status

Part = Literal[
    "first_start",
    "training",
    "exposed",
    "redo",
    "between",
    "detect",
    "fence",
    "serialise",
    "start",
    "retrieve",
    "warm_up",
    "waiting",
    "other",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a recovery; times are seconds since the failure."""

    step: str
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow:
    """One recovery, or what a model says of one.

    Attributes:
        label: For the axis; unique in its table.
        origin: Measured, simulated or model.
        cause: What failed, or what the model assumes.
        steps: In order of time; the lost progress, to be done again, stands last.
        down_s: From the failure to the end of the first iteration; `None` while it lasts.
        wasted_s: Lost progress and retrieval; `None` while unknown.
        lost_iterations: Iterations done again.
        source: Version and tier that were loaded, for people.
        error: Which worker raised what, if one did.
        output: The last lines that this worker printed, in order.
    """

    label: str
    origin: Origin
    cause: str
    steps: tuple[StepRow, ...]
    down_s: float | None
    wasted_s: float | None
    lost_iterations: int
    source: str
    error: str = ""
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """Recoveries of this run, of earlier ones, and the persistent baseline.

    Attributes:
        rows: This run's newest ones first in order of time, then others, then the model.
        total: Recoveries of this run, shown or not.
        notes: What is left out or assumed.
    """

    rows: tuple[RecoveryRow, ...]
    total: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at an iteration.

    Attributes:
        iteration: Its number.
        text: What happened.
        is_planned: Whether somebody had asked for it: it is no failure.
    """

    iteration: int
    text: str
    is_planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost of checkpoints, as a share of an iteration without them (0.01 is 1 %).

    Attributes:
        share: The estimate.
        low: Lower end of its 95 % bootstrap interval; `None` where only waiting was summed up.
        high: Its upper end.
        how: What was compared with what.
    """

    share: float
    low: float | None
    high: float | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSeries:
    """Iterations of one kind.

    Attributes:
        name: For people.
        run: The earlier run that they are of; empty for this one.
        kind: `"with"` or `"without"` checkpoints, or `"first"` after a start.
        numbers: Iteration of each point that is shown.
        durations_s: Of the slowest rank, for each point.
        median_s: Over all iterations of the kind; `None` without any.
        low_s: Lower end of the median's 95 % bootstrap interval.
        high_s: Its upper end.
        count: All iterations of the kind, shown or not.
    """

    name: str
    run: str
    kind: Literal["with", "without", "first"]
    numbers: tuple[int, ...]
    durations_s: tuple[float, ...]
    median_s: float | None
    low_s: float | None
    high_s: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Iteration times with and without checkpoints, and where failures were."""

    series: tuple[IterationSeries, ...]
    marks: tuple[Mark, ...]
    overhead: Overhead | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedRow:
    """Wasted time of one failure, in the parts of Eq. (1).

    Attributes:
        label: For the axis; unique in its table.
        origin: Measured, simulated or model.
        parts: Name and seconds, in order.
        how: Where the numbers come from.
    """

    label: str
    origin: Origin
    parts: tuple[tuple[str, float], ...]
    how: str

    @property
    def total_s(self) -> float:
        """All parts together."""
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wasted:
    """Wasted time, measured beside Eq. (1).

    Attributes:
        rows: What is known so far.
        each_s: What each measured failure wasted.
        notes: What is missing, or assumed.
    """

    rows: tuple[WastedRow, ...]
    each_s: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentRow:
    """One part of a run's wall time.

    Attributes:
        part: Which.
        label: The same in words.
        seconds: In all.
        source: Where in the log they come from, for people.
    """

    part: Part
    label: str
    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The parts of a run's wall time.

    Attributes:
        rows: In the order of a bar; no moment is in two of them, and they add up to `wall_s`.
        wall_s: From the job's submission to its end, or to now.
    """

    rows: tuple[SpentRow, ...]
    wall_s: float

    def seconds(self, *parts: Part) -> float:
        """Of some parts together."""
        return sum(row.seconds for row in self.rows if row.part in parts)

    def share(self, *parts: Part) -> float:
        """Of the wall time, from 0 to 1."""
        return self.seconds(*parts) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def overhead(self) -> float:
        """The share of the wall time that was no training that counts, from 0 to 1."""
        return 1.0 - self.share("training") if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One value that a run logged, over its iterations.

    Attributes:
        name: What the script called it.
        run: The earlier run that logged it; empty for this one.
        numbers: Iteration of each point that is shown.
        means: Over the ranks, for each point.
        count: All iterations with such a value, shown or not.
    """

    name: str
    run: str
    numbers: tuple[int, ...]
    means: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Whether a value was the same in an earlier run, bit by bit.

    Attributes:
        name: What the script called it.
        run: The earlier run.
        compared: Values, of all ranks, that both runs have.
        iterations: Iterations of which both runs have values.
        first: The first iteration that differs, and the mean in this run and in the other;
            `None` where none does.
    """

    name: str
    run: str
    compared: int
    iterations: int
    first: tuple[int, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Values that scripts logged, failures among them, and the same values of earlier runs.

    Attributes:
        curves: This run's, the loss first; then those of earlier runs under the same names.
        marks: The iteration in which each failure struck.
        matches: One for each earlier run and name that both have.
        ranks: Training processes.
        notes: What is left out.
        is_simulated: Whether no script ran.
    """

    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    matches: tuple[Match, ...]
    ranks: int
    notes: tuple[str, ...]
    is_simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One snapshot; each view draws one part of it."""

    status: Status
    curves: Curves
    spent: Spent
    replicas: Replicas
    memory: Memory
    recoveries: Recoveries
    iterations: Iterations
    wasted: Wasted
