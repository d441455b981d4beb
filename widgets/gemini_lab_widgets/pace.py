"""How fast iterations are, with checkpoints on their way and without: columns that only grow."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gemini_lab_widgets.tables import Iterations, IterationSeries, Mark, Overhead

WINDOW: Final = 8192
"""Newest iterations that events may still add to."""
POINTS: Final = 600
"""Points of a series that are shown, at most."""
ENOUGH: Final = 3
"""Iterations of a kind that a comparison needs."""
RESAMPLES: Final = 2000

Floats = npt.NDArray[np.float64]
Kind = Literal["with", "without", "first"]
NAMES: Final[dict[Kind, str]] = {
    "with": "with checkpoints",
    "without": "without checkpoints",
    "first": "first after a start",
}


class Pace:
    """Duration of each iteration: the slowest rank's, and whether a version was on its way.

    Iteration n computes while version n-1 is sent. An epoch's first iteration warms up and counts
    apart; iterations that are done again after a failure are rows of their own.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._number, self._epoch = array("q"), array("q")
        self._ended_s, self._duration_s, self._waited_s = array("d"), array("d"), array("d")
        self._is_sent = array("b")
        self._first: dict[int, int] = {}  # first iteration of each epoch
        self.checkpoint_s = array("d")
        self.late = 0

    def _row(self, epoch: int, number: int) -> int | None:
        row = self._rows.get((epoch, number))
        if row is not None:
            return row
        if len(self._rows) == WINDOW:
            if (epoch, number) < next(iter(self._rows)):
                self.late += 1
                return None
            self._rows.popitem(last=False)
        row = self._rows[epoch, number] = len(self._number)
        self._number.append(number)
        self._epoch.append(epoch)
        for column in (self._ended_s, self._duration_s, self._waited_s):
            column.append(0.0)
        self._is_sent.append(0)
        return row

    def ended(
        self, *, epoch: int, number: int, at_s: float, duration_s: float, waited_s: float
    ) -> None:
        """One rank ended an iteration."""
        row = self._row(epoch, number)
        if row is None:
            return
        self._ended_s[row] = max(self._ended_s[row], at_s)
        self._duration_s[row] = max(self._duration_s[row], duration_s)
        self._waited_s[row] = max(self._waited_s[row], waited_s)
        self._first[epoch] = min(number, self._first.get(epoch, number))

    def sent(self, *, epoch: int, version: int, duration_s: float) -> None:
        """A version is whole on one rank; it was sent during the next iteration."""
        self.checkpoint_s.append(duration_s)
        row = self._row(epoch, version + 1)
        if row is not None:
            self._is_sent[row] = 1

    def reached_s(self, number: int) -> list[float]:
        """When an iteration ended, once for each time that it was done."""
        rows = np.flatnonzero((np.array(self._number) == number) & (np.array(self._ended_s) > 0))
        return [self._ended_s[row] for row in rows.tolist()]

    def checkpoint_median_s(self) -> float | None:
        """t_ckpt: median time until a version was whole on a rank."""
        return float(np.median(self.checkpoint_s)) if self.checkpoint_s else None

    def interval_median_s(self) -> float | None:
        """1/f: median time from one version in memory to the next one's."""
        durations_s = np.array(self._duration_s)
        durations_s = durations_s[durations_s > 0]
        if not durations_s.size:
            return None
        sent = max(1, int(np.array(self._is_sent)[np.array(self._duration_s) > 0].sum()))
        return float(np.median(durations_s)) * max(1.0, round(durations_s.size / sent))

    def kinds(self) -> dict[str, tuple[npt.NDArray[np.int64], Floats, Floats]]:
        """Numbers, durations and waiting times of iterations by kind, all of shape `(n,)`."""
        number, epoch = np.array(self._number), np.array(self._epoch)
        durations_s, waited_s = np.array(self._duration_s), np.array(self._waited_s)
        done = durations_s > 0
        sent = np.array(self._is_sent) == 1
        epochs, which = np.unique(epoch, return_inverse=True)
        firsts = np.array([self._first.get(e, 0) for e in epochs.tolist()], dtype=np.int64)
        is_first = number == (firsts[which] if number.size else number)
        picks = {"with": done & sent & ~is_first, "without": done & ~sent & ~is_first,
                 "first": done & is_first}  # fmt: skip
        return {k: (number[p], durations_s[p], waited_s[p]) for k, p in picks.items()}


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
        series=tuple(series), marks=tuple(marks), notes=tuple(notes),
        overhead=overhead(kinds["with"][1], without, kinds["with"][2]),
    )  # fmt: skip


def _series(
    name: str, run: str, kind: Kind, numbers: npt.NDArray[np.int64], durations_s: Floats
) -> IterationSeries:
    shown = sample(durations_s, POINTS)
    low_s, high_s = np.quantile(median_draws(durations_s), (0.025, 0.975)).tolist()
    return IterationSeries(
        name=name, run=run, kind=kind, numbers=tuple(numbers[shown].tolist()),
        durations_s=tuple(durations_s[shown].tolist()), median_s=float(np.median(durations_s)),
        low_s=low_s, high_s=high_s, count=int(durations_s.size),
    )  # fmt: skip


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
            share=float(waited_s.sum() / (with_s - waited_s).sum()), low=None, high=None,
            how="time that updates waited for checkpoints; nothing to compare with",
        )  # fmt: skip
    ratios = median_draws(with_s) / np.random.default_rng(0).permutation(median_draws(without_s))
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return Overhead(
        share=float(np.median(with_s) / np.median(without_s)) - 1, low=low - 1, high=high - 1,
        how=f"medians of {with_s.size} iterations with and {without_s.size} without checkpoints",
    )  # fmt: skip
