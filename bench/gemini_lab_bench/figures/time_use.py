"""Where the time of simulated runs goes, policy by policy."""

from collections.abc import Callable, Sequence
from typing import Final

from gemini_lab.simulator import Outcome
from gemini_lab.simulator.outages import DAY_S
from gemini_lab_bench.figures.figure import Figure, Point

COUNTS: Final = "training that counts"
PARTS: Final[dict[str, Callable[[Outcome], float]]] = {
    COUNTS: lambda outcome: outcome.productive_s,
    "done again": lambda outcome: outcome.lost_s,
    "slower or standing still": lambda outcome: max(0.0, outcome.overhead_s),
    "recovering": lambda outcome: sum(outcome.down_s.values()),
}
"""Seconds of each, which add up to the run's length."""


def figure(outcomes: Sequence[Outcome], *, title: str, losses_only: bool = False) -> Figure:
    """Return one bar a run, cut into `PARTS`, in per cent of the run's length.

    The first part is the effective training time ratio. `"slower or standing still"` is what
    checkpoints cost training that counts: stalls, longer iterations, fewer nodes.

    With `losses_only`, training that counts is not drawn, so that small losses show.
    """
    points = [
        Point(
            part,
            outcome.policy.name,
            None if losses_only and part == COUNTS else 100 * seconds(outcome) / outcome.wall_s,
            "simulation",
            f"{outcome.failures} failures in {outcome.wall_s / DAY_S:g} simulated days",
            text="not drawn" if losses_only and part == COUNTS else "",
        )
        for outcome in outcomes
        for part, seconds in PARTS.items()
    ]
    return Figure(
        name="time_use",
        title=title,
        x_label="% of the time" + " that is lost" * losses_only,
        y_label="",
        points=tuple(points),
        kind="timeline",
        unit="%",
    )
