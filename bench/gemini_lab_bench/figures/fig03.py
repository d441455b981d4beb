"""Fig. 3: which machines keep which shard, in a group, in a ring and in the mixed placement."""

from gemini_lab.placement import plan_placement, recovery_probability
from gemini_lab_bench.figures.figure import Figure, Point

DRAWN = {
    "group, N = 4": ("group", ({0, 1}, {0, 1}, {2, 3}, {2, 3})),
    "ring, N = 4": ("ring", ({0, 1}, {1, 2}, {2, 3}, {3, 0})),
    "mixed, N = 5": ("mixed", ({0, 1}, {0, 1}, {2, 3}, {3, 4}, {4, 2})),
}
"""Strategy, and the machines that keep each shard, counted from 0, as the paper's arrows go."""


def figure() -> Figure:
    """Return how many shards lie on just the machines that the paper draws."""
    points, notes = [], []
    for x, (strategy, drawn) in DRAWN.items():
        placement = plan_placement(nodes=len(drawn), strategy=strategy)
        same = sum(
            set(ours) == theirs for ours, theirs in zip(placement.holders, drawn, strict=True)
        )
        points += [
            Point("shards as drawn", x, len(drawn), "paper", "Fig. 3"),
            Point("shards as drawn", x, same, "model", "`plan_placement`"),
        ]
        notes.append(f"{x}: memory survives {recovery_probability(placement, 2)} of all pairs")
    return Figure(
        name="fig03",
        title="Fig. 3: who keeps which shard, m = 2",
        x_label="placement",
        y_label="shards",
        points=tuple(points),
        notes=("; ".join(notes) + " that are lost.",),
        kind="bars",
        tolerance=0.0,
        is_absolute=True,
    )
