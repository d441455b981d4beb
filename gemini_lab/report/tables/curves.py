"""What scripts logged, of a run and of earlier ones beside it, and whether it is the same."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.logged import Told
from gemini_lab.report.tables.past import Curve, Curves, Mark, Match

POINTS: Final = 1_200
"""Points of all curves together that are shown, about."""


def curves(
    run: RunReducer, *, marks: Sequence[Mark] = (), earlier: Sequence[RunReducer] = ()
) -> Curves:
    """What a run logged, and the same values of earlier runs.

    Iterations that some rank has not ended yet wait, so that no mean is over a part of the ranks.
    """
    names, until = run.logged.names, run.reached.done()
    mine = {name: run.logged.told(name, until=until) for name in names}
    theirs = [
        (one.name, name, one.logged.told(name, until=one.reached.done()))
        for one in earlier
        for name in names
        if name in one.logged.names
    ]
    each = max(2, POINTS // max(1, len(mine) + len(theirs)))
    notes = []
    for name, told in mine.items():
        odd = told.numbers[~np.isfinite(told.means)]
        if odd.size:
            notes.append(
                f"{name} was no finite number {odd.size} times, first in iteration {odd[0]}"
            )
    if run.logged.left_out:
        notes.append(f"only the first {len(names)} names are shown")
    return Curves(
        curves=(
            *(_curve(name, "", told, each) for name, told in mine.items()),
            *(_curve(name, other, told, each) for other, name, told in theirs),
        ),
        marks=tuple(marks),
        matches=tuple(match(name, mine[name], told, run=other) for other, name, told in theirs),
        ranks=run.course.ranks,
        notes=tuple(notes),
        is_simulated=run.course.is_simulated,
    )


def match(name: str, mine: Told, theirs: Told, *, run: str) -> Match:
    """Whether two runs logged the same, in the iterations that both have."""
    both, here, there = np.intersect1d(
        mine.numbers, theirs.numbers, assume_unique=True, return_indices=True
    )
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
    )


def _curve(name: str, run: str, told: Told, most: int) -> Curve:
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
    """Indices of about `most` values: the least and the largest of every stretch, and the last."""
    if values.size <= most:
        return np.arange(values.size)
    bounds = np.linspace(0, values.size, max(1, most // 2) + 1).astype(np.int64)
    kept = [values.size - 1]
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        kept += [start + int(values[start:end].argmin()), start + int(values[start:end].argmax())]
    return np.unique(np.array(kept, np.int64))
