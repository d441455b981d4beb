"""Iteration times with and without checkpoints, of a run and of earlier ones beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.report.reducers.pace import Floats, Kind, Pace
from gemini_lab.report.tables.past import Iterations, IterationSeries, Mark, Overhead

POINTS: Final = 600
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
    """An earlier run to hold this one against.

    Attributes:
        name: For the legend.
        pace: Its iterations.
        is_without: Whether it is the same job without checkpoints.
    """

    name: str
    pace: Pace
    is_without: bool


def iterations(
    pace: Pace, *, marks: Sequence[Mark] = (), baselines: Sequence[Baseline] = ()
) -> Iterations:
    """Iteration times of a run, and of earlier ones beside it."""
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
    return Iterations(
        series=tuple(series),
        marks=tuple(marks),
        notes=tuple(notes),
        overhead=overhead(kinds["with"][1], without, kinds["with"][2]),
    )


def _series(
    name: str, run: str, kind: Kind, numbers: npt.NDArray[np.int64], durations_s: Floats
) -> IterationSeries:
    shown = sample(durations_s, POINTS)
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
    """Indices of at most `most` values, in order: evenly spread ones, and the largest."""
    if values.size <= most:
        return np.arange(values.size)
    largest = np.argpartition(values, -most // 4)[-most // 4 :]
    spread = np.linspace(0, values.size - 1, most - largest.size).astype(np.int64)
    return np.union1d(largest, spread)


def median_draws(values: Floats) -> Floats:
    """Medians of bootstrap resamples, shape `(RESAMPLES,)`.

    The median's place in a resample of n is that of the middle one of n uniform draws, which is
    Beta((n+1)/2, (n+1)/2): one number is drawn for each resample instead of n.
    """
    half = (values.size + 1) / 2
    places = np.random.default_rng(values.size).beta(half, half, RESAMPLES)
    indices = np.minimum((places * values.size).astype(np.int64), values.size - 1)
    draws: Floats = np.sort(values)[indices]
    return draws


def overhead(with_s: Floats, without_s: Floats, waited_s: Floats) -> Overhead | None:
    """What checkpoints cost an iteration.

    Args:
        with_s: Durations of iterations during which a version was sent.
        without_s: Durations of iterations during which none was.
        waited_s: How long each of the former waited for its version.
    """
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
