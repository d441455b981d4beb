"""Tables of iterations: what scripts logged, and how long each took, beside earlier runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.iteration_pace import Floats, IterationPace, Kind
from gemini_lab.report.reducers.logged import LoggedValues
from gemini_lab.report.tables.recoveries import FailureMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One value that a run logged, over its iterations."""

    name: str
    run: str  # the earlier run that logged it; empty for this one
    numbers: tuple[int, ...]  # iteration of each point that is shown
    means: tuple[float, ...]
    count: int  # all iterations with such a value, shown or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Whether a value was the same in an earlier run, bit by bit."""

    name: str
    run: str
    compared: int  # values, of all ranks, that both runs have
    iterations: int  # iterations of which both runs have values
    # The first iteration that differs, and the mean in this run and in the other; `None` where none
    # does.
    first: tuple[int, float, float] | None
    # The first iteration that the two did on different numbers of nodes, so that its sums are added
    # in another order; `None` where there is none. It is not compared, and none after it.
    resized: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTable:
    """Values that scripts logged, failures among them, and the same values of earlier runs."""

    # This run's, the loss first; then those of earlier runs under the same names.
    curves: tuple[Curve, ...]
    marks: tuple[FailureMark, ...]
    matches: tuple[Match, ...]  # one for each earlier run and name that both have
    ranks: int
    notes: tuple[str, ...]
    is_simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost of checkpoints, as a share of an iteration without them (0.01 is 1 %)."""

    share: float
    # Lower end of its 95 % bootstrap interval; `None` where only waiting was summed up.
    low: float | None
    high: float | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSeries:
    """Iterations of one kind."""

    name: str
    run: str  # the earlier run that they are of; empty for this one
    # `"with"` or `"without"` checkpoints, or `"first"` after a start.
    kind: Literal["with", "without", "first"]
    numbers: tuple[int, ...]  # iteration of each point that is shown
    durations_s: tuple[float, ...]
    median_s: float | None  # over all iterations of the kind; `None` without any
    low_s: float | None  # lower end of the median's 95 % bootstrap interval
    high_s: float | None
    count: int  # all iterations of the kind, shown or not


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTable:
    """Iteration times with and without checkpoints, and where failures were."""

    series: tuple[IterationSeries, ...]
    marks: tuple[FailureMark, ...]
    overhead: Overhead | None
    notes: tuple[str, ...]


MOST_POINTS: Final = 1_200
"""Points of all curves together that are shown, about."""


def curves(
    run: RunReducer, *, marks: Sequence[FailureMark] = (), earlier: Sequence[RunReducer] = ()
) -> CurveTable:
    """Return a run's logged values, and the same values of earlier runs.

    Iterations that some rank has not ended yet wait, so that no mean is over a part of the ranks.
    """
    names, until = run.logged.names, run.reached.done()
    mine = {name: run.logged.told(name, until=until) for name in names}
    theirs = [
        (one, name, one.logged.told(name, until=one.reached.done()))
        for one in earlier
        for name in names
        if name in one.logged.names
    ]
    each = max(2, MOST_POINTS // max(1, len(mine) + len(theirs)))
    notes = []
    for name, told in mine.items():
        odd = told.numbers[~np.isfinite(told.means)]
        if odd.size:
            notes.append(
                f"{name} was no finite number {odd.size} times, first in iteration {odd[0]}"
            )
    notes += [
        f"from iteration {first:,} on {one.name} has another number of nodes, which adds sums in "
        "another order: later values are not compared with it"
        for one in earlier
        if (first := parted(run, one)) is not None
    ]
    if run.logged.left_out:
        notes.append(f"only the first {len(names)} names are shown")
    return CurveTable(
        curves=(
            *(_curve(name, "", told, each) for name, told in mine.items()),
            *(_curve(name, one.name, told, each) for one, name, told in theirs),
        ),
        marks=tuple(marks),
        matches=tuple(
            match(name, mine[name], told, run=one.name, resized=parted(run, one))
            for one, name, told in theirs
        ),
        ranks=run.course.ranks,
        notes=tuple(notes),
        is_simulated=run.course.is_simulated,
    )


def parted(run: RunReducer, other: RunReducer) -> int | None:
    """Return the first iteration that two runs did on different numbers of nodes."""
    sizes = run.sizes.nodes, other.sizes.nodes
    for iteration in sorted({iteration for one in sizes for iteration, _ in one}):
        mine, theirs = ([nodes for begin, nodes in one if begin <= iteration] for one in sizes)
        if mine and theirs and mine[-1] != theirs[-1]:
            return iteration
    return None


def match(
    name: str, mine: LoggedValues, theirs: LoggedValues, *, run: str, resized: int | None = None
) -> Match:
    """Return whether two runs logged the same, in the iterations that both have."""
    both, here, there = np.intersect1d(
        mine.numbers, theirs.numbers, assume_unique=True, return_indices=True
    )
    if resized is not None:
        alike = both < resized
        both, here, there = both[alike], here[alike], there[alike]
    differs = np.flatnonzero(mine.digests[here] != theirs.digests[there])
    first = None
    if differs.size:
        at = differs[0]
        first = int(both[at]), float(mine.means[here][at]), float(theirs.means[there][at])
    return Match(
        name=name,
        run=run,
        compared=int(np.minimum(mine.counts[here], theirs.counts[there]).sum()),
        iterations=int(both.size),
        first=first,
        resized=resized,
    )


def _curve(name: str, run: str, told: LoggedValues, most: int) -> Curve:
    finite = np.isfinite(told.means)
    numbers, means = told.numbers[finite], told.means[finite]
    kept = thinned(means, most)
    return Curve(
        name=name,
        run=run,
        numbers=tuple(numbers[kept].tolist()),
        means=tuple(means[kept].tolist()),
        count=int(told.numbers.size),
    )


def thinned(values: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.int64]:
    """Return indices of about `most` values: least and largest of each stretch, and the last."""
    if values.size <= most:
        return np.arange(values.size)
    bounds = np.linspace(0, values.size, max(1, most // 2) + 1).astype(np.int64)
    kept = [values.size - 1]
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        kept += [start + int(values[start:end].argmin()), start + int(values[start:end].argmax())]
    return np.unique(np.array(kept, np.int64))


SHOWN: Final = 600
"""Points of a series that are shown, at most."""
ENOUGH: Final = 3
"""Iterations of a kind that a comparison needs."""
RESAMPLES: Final = 2000
NAMES: Final[dict[Kind, str]] = {
    "with": "with checkpoints",
    "without": "without checkpoints",
    "first": "first after a start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier run to hold this one against."""

    name: str
    pace: IterationPace
    is_without: bool  # whether it is the same job without checkpoints


def iterations(
    pace: IterationPace, *, marks: Sequence[FailureMark] = (), baselines: Sequence[Baseline] = ()
) -> IterationTable:
    """Return iteration times of a run, and of earlier ones beside it."""
    kinds = pace.kinds()
    series = [
        _series(name, "", kind, *kinds[kind][:2])
        for kind, name in NAMES.items()
        if kinds[kind][0].size
    ]
    without = kinds["without"][1]
    notes = []
    for baseline in baselines:
        other = baseline.pace.kinds()
        kind: Kind = "without" if baseline.is_without else "with"
        numbers, durations_s, _ = other[kind]
        if numbers.size:
            series.append(
                _series(
                    f"{baseline.name}: {kind} checkpoints",
                    baseline.name,
                    kind,
                    numbers,
                    durations_s,
                )
            )
        if baseline.is_without and without.size < ENOUGH:
            without = durations_s
    if without.size < ENOUGH:
        notes.append("no iterations without checkpoints to compare with")
    if pace.late:
        notes.append(f"{pace.late} events came too late to be counted")
    return IterationTable(
        series=tuple(series),
        marks=tuple(marks),
        notes=tuple(notes),
        overhead=overhead(kinds["with"][1], without, kinds["with"][2]),
    )


def _series(
    name: str, run: str, kind: Kind, numbers: npt.NDArray[np.int64], durations_s: Floats
) -> IterationSeries:
    shown = sample(durations_s, SHOWN)
    low_s, high_s = np.quantile(median_draws(durations_s), (0.025, 0.975)).tolist()
    return IterationSeries(
        name=name,
        run=run,
        kind=kind,
        numbers=tuple(numbers[shown].tolist()),
        durations_s=tuple(durations_s[shown].tolist()),
        median_s=float(np.median(durations_s)),
        low_s=low_s,
        high_s=high_s,
        count=int(durations_s.size),
    )


def sample(values: Floats, most: int) -> npt.NDArray[np.int64]:
    """Return indices of at most `most` values, in order: evenly spread ones, and the largest."""
    if values.size <= most:
        return np.arange(values.size)
    largest = np.argpartition(values, -most // 4)[-most // 4 :]
    spread = np.linspace(0, values.size - 1, most - largest.size).astype(np.int64)
    return np.union1d(largest, spread)


def median_draws(values: Floats) -> Floats:
    """Return medians of bootstrap resamples, shape `(RESAMPLES,)`.

    The median's place in a resample of n is that of the middle one of n uniform draws, which is
    Beta((n+1)/2, (n+1)/2): one number is drawn for each resample instead of n.
    """
    half = (values.size + 1) / 2
    places = np.random.default_rng(values.size).beta(half, half, RESAMPLES)
    indices = np.minimum((places * values.size).astype(np.int64), values.size - 1)
    draws: Floats = np.sort(values)[indices]
    return draws


def overhead(with_s: Floats, without_s: Floats, waited_s: Floats) -> Overhead | None:
    """Return the cost of checkpoints in an iteration."""
    if with_s.size < ENOUGH:
        return None
    if without_s.size < ENOUGH:
        return Overhead(
            share=float(waited_s.sum() / (with_s - waited_s).sum()),
            low=None,
            high=None,
            how="time that updates waited for checkpoints; nothing to compare with",
        )
    ratios = median_draws(with_s) / np.random.default_rng(0).permutation(median_draws(without_s))
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return Overhead(
        share=float(np.median(with_s) / np.median(without_s)) - 1,
        low=low - 1,
        high=high - 1,
        how=f"medians of {with_s.size} iterations with and {without_s.size} without checkpoints",
    )
