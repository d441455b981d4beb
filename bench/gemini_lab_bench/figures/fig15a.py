"""Fig. 15a: effective training time ratio on 16 nodes, by software failures a day."""

from gemini_lab.simulator import paper_workload
from gemini_lab_bench.figures.figure import Figure, Point
from gemini_lab_bench.figures.ratio import NOTES, gain_note, points_at

PAPER = {"Gemini": (0.994, 0.950), "HighFreq": (0.839, 0.713), "Strawman": (0.922, 0.38)}
"""At 1 and at 8 failures a day."""


def figure(*, days: float = 60.0, seeds: int = 10) -> Figure:
    """Return the paper's linear formula and the event simulation, 1 to 8 failures a day."""
    workload = paper_workload()
    points: list[Point] = []
    for failures in range(1, 9):
        more, gain = points_at(
            failures,
            failures_per_day=failures,
            workload=workload,
            days=days,
            seeds=seeds,
            software_share=1.0,
        )
        points += more
    points += [
        Point(name, x, y, "paper", "Fig. 15a, pixels and published notebook")
        for name, ends in PAPER.items()
        for x, y in zip((1, 8), ends, strict=True)
    ]
    return Figure(
        name="fig15a",
        title="Fig. 15a: effective training time ratio, 16 nodes, software failures",
        x_label="failures a day",
        y_label="ratio",
        points=tuple(points),
        notes=(
            *NOTES,
            (
                "The paper's text: HighFreq loses 14.5 % without any failure. That is 81 / (9 x "
                "62), a share of compute; as a share of wall time it is 12.7 %."
            ),
            gain_note(gain, "8 failures a day"),
        ),
        tolerance=0.01,
        is_absolute=True,
        seeds=f"0 to {seeds - 1}, one a history",
    )
