"""Every second of a run explained: what its wall time went into.

Each moment counts once, for the last of the parts in `PARTS` that claims it; what nothing claims
is *other*. So the parts add up to the wall time, and how much is other tells how far they explain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.exposure import Interval
from gemini_lab.report.reducers.spans import lost_training

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
    "planned",
    "other",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentRow:
    """One part of a run's wall time."""

    part: Part
    label: str
    seconds: float
    source: str  # where in the log they come from, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """The parts of a run's wall time."""

    # In the order of a bar; no moment is in two of them, and they add up to `wall_s`.
    rows: tuple[SpentRow, ...]
    wall_s: float  # from the job's submission to its end, or to now

    def seconds(self, *parts: Part) -> float:
        return sum(row.seconds for row in self.rows if row.part in parts)

    def share(self, *parts: Part) -> float:
        return self.seconds(*parts) / self.wall_s if self.wall_s > 0 else 0.0


GROUPS: Final[dict[str, Part]] = {
    "detect": "detect",
    "fence": "fence",
    "inventory": "fence",
    "plan": "fence",
    "serialise": "serialise",
    "start": "start",
    "rejoin": "start",
    "retrieve": "retrieve",
    "warm_up": "warm_up",
    "reserve": "waiting",
}
"""The part to which each step of a recovery belongs."""
STEPS_SHOWN: Final[tuple[Part, ...]] = tuple(dict.fromkeys(GROUPS.values()))
PARTS: Final[dict[Part, tuple[str, str]]] = {
    "other": ("other", "time that nothing in the log explains"),
    "first_start": ("first start", "from the job's submission until its first iteration began"),
    "training": ("training", "iterations that count, as long as the slowest rank took"),
    "exposed": ("checkpoint waits", "updates that waited for their version, on the slowest rank"),
    "redo": ("lost progress", "from the version that was loaded to the failure: done again later"),
    "between": ("other", "between the steps of a recovery"),
    "detect": ("detection", "from a failure, where it was injected, until it was noticed"),
    "fence": ("fencing and planning", "old workers end, agents say what they hold, the root plans"),
    "serialise": ("serialisation", "what memory held is written to the persistent tier"),
    "start": ("restart", "workers start and connect again"),
    "retrieve": ("retrieval", "shards are fetched, checked and loaded"),
    "warm_up": ("warm-up", "the first iteration after a recovery, up to its end"),
    "waiting": ("waiting", "for a machine, or for newer versions that may come back"),
    "planned": ("planned moves", "drains, resizes and new replicas that somebody asked for"),
}
"""Each part in words, and where its seconds come from; later ones win over earlier ones."""
FAILURES: Final[tuple[Part, ...]] = (
    "redo",
    "detect",
    "fence",
    "serialise",
    "start",
    "retrieve",
    "warm_up",
    "waiting",
)
"""What failures cost."""
SHOWN: Final[tuple[Part, ...]] = (
    "training",
    "exposed",
    *FAILURES,
    "planned",
    "first_start",
    "other",
)
"""In the order of a bar."""


def spent(run: RunReducer, *, now_s: float | None = None) -> TimeShares:
    """Return the parts of a run's wall time, up to its end or to `now_s` of the log's clock."""
    start_s = run.course.started_at_s
    end_s = run.course.ended_at_s
    if end_s is None:
        end_s = max(run.newest_s or start_s, now_s or start_s)
    return spent_within(run, start_s, end_s)


def spent_within(run: RunReducer, start_s: float, end_s: float) -> TimeShares:
    """Return the parts of the time between two moments of the log's clock."""
    if run.course.job is None or not end_s > start_s:
        return TimeShares(rows=(), wall_s=0.0)
    layers = _layers(run, start_s, end_s)
    seconds = paint(list(layers.values()), start_s, end_s)
    by_part = dict(zip(layers, seconds, strict=True))
    by_part["other"] = end_s - start_s - sum(seconds) + by_part.pop("between")
    rows = [
        SpentRow(part=part, label=PARTS[part][0], seconds=by_part[part], source=PARTS[part][1])
        for part in SHOWN
        if by_part[part] > 0
    ]
    return TimeShares(rows=tuple(rows), wall_s=end_s - start_s)


def _layers(run: RunReducer, start_s: float, end_s: float) -> dict[Part, npt.NDArray[np.float64]]:
    """Return the spans that each part claims, shape `(n, 2)`, later parts over earlier ones."""
    outages = run.spans.outages()
    starts_s, ends_s, waited_s = run.pace.spans()
    began_s = float(starts_s.min(initial=end_s))  # in whichever try
    spans: dict[Part, Sequence[Interval]] = {
        "redo": [span for lost in lost_training(outages, run.pace).values() for span in lost],
        "between": [(one.failed_s, one.resumed_s) for one in outages],
    }
    for part in STEPS_SHOWN:
        spans[part] = [
            span for number, step, span in run.spans.steps if number and GROUPS.get(step) == part
        ]
    spans["detect"] = [*spans["detect"], *((one.failed_s, one.noticed_s) for one in outages)]
    spans["waiting"] = [*spans["waiting"], *run.spans.waits()]
    spans["planned"] = [(one.failed_s, one.resumed_s) for one in outages if one.is_planned]
    return {
        "first_start": np.array([[start_s, began_s]]),
        "training": np.stack([starts_s, ends_s], axis=1),
        "exposed": np.stack([ends_s - waited_s, ends_s], axis=1),
        **{part: np.array(found, np.float64).reshape(-1, 2) for part, found in spans.items()},
    }


def paint(layers: Sequence[npt.NDArray[np.float64]], start_s: float, end_s: float) -> list[float]:
    """Return how long each layer is on top between two moments; later layers lie over earlier ones.

    Each layer has the spans in which it is there, shape `(n, 2)`; they may overlap.
    """
    clipped = [np.clip(layer, start_s, end_s) for layer in layers]
    clipped = [layer[layer[:, 1] > layer[:, 0]] for layer in clipped]
    edges = np.unique(np.concatenate([np.array([start_s, end_s]), *(c.ravel() for c in clipped)]))
    top = np.full(edges.size - 1, -1)
    for number, layer in enumerate(clipped):
        opened, closed = np.searchsorted(edges, layer[:, 0]), np.searchsorted(edges, layer[:, 1])
        depth = np.bincount(opened, minlength=edges.size) - np.bincount(
            closed, minlength=edges.size
        )
        top[np.cumsum(depth)[:-1] > 0] = number
    lengths = np.diff(edges)
    return [float(lengths[top == number].sum()) for number in range(len(layers))]
