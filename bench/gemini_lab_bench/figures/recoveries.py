"""Where the time of real recoveries goes, beside the paper's Fig. 14.

The paper's recovery takes minutes and one on a laptop takes seconds, so both are drawn as shares.
"""

from collections.abc import Mapping
from typing import Final

from gemini_lab.report import Recovery
from gemini_lab.units import format_seconds
from gemini_lab_bench.figures import fig14
from gemini_lab_bench.figures.figure import Figure, Origin, Point

STEPS: Final = {
    "detect": "detection",
    "fence": "agreement",
    "inventory": "agreement",
    "plan": "agreement",
    "serialise": "serialisation",
    "reserve": "reservation",
    "start": "restart",
    "retrieve": "retrieval",
    "warm_up": "warm-up",
}
"""What a step in the log is called in the figure, in the order of time."""


def figure(recoveries: Mapping[str, Recovery]) -> Figure:
    """Return one bar a recovery, cut into the steps of Fig. 14, in per cent of its length."""
    points = _row("paper", fig14.PAPER, origin="paper", how="Fig. 14, with a standby")
    for name, recovery in recoveries.items():
        seconds: dict[str, float] = {}
        for step in recovery.steps:
            part = STEPS[step.name]
            seconds[part] = seconds.get(part, 0.0) + step.duration_s
        points += _row(name, seconds, origin="measured", how="steps in the run's event log")
    order = list(dict.fromkeys(STEPS.values()))
    return Figure(
        name="recoveries",
        title="Where the time of a recovery goes",
        x_label="% of the recovery",
        y_label="",
        points=tuple(sorted(points, key=lambda point: order.index(point.series))),
        notes=(
            "Agreement: fencing old workers, asking who holds what, planning; untold in the paper.",
            "Serialisation is the paper's alone: here memory keeps a version as it is read.",
            "The paper's retrieval takes less than 3 s and is drawn as 3 s.",
        ),
        kind="timeline",
        unit="%",
    )


def _row(name: str, seconds: Mapping[str, float], *, origin: Origin, how: str) -> list[Point]:
    whole_s = sum(seconds.values())
    return [
        Point(
            part,
            f"{name}, {format_seconds(whole_s)}",
            100 * part_s / whole_s,
            origin,
            f"{how}: {part_s:.3g} s",
        )
        for part, part_s in seconds.items()
    ]
