"""The `planner` bench: placing and its exact probability, and how both grow with N."""

from gemini_lab.placement.planner import plan_placement
from gemini_lab.placement.probability import recovery_probability
from gemini_lab_bench.rows import Row, growth, single, timed

SIZES = (1_000, 10_000, 100_000)
LOST = range(51)


def bench(repeats: int) -> list[Row]:
    """Time each N, m = 2 with one node left over, k from 0 to 50; then give the exponents in N."""
    placing, deciding = [], []
    for nodes in (size + 1 for size in SIZES):
        placement = plan_placement(nodes=nodes)
        placing.append(
            Row(
                name="plan_placement",
                values=timed(lambda n=nodes: plan_placement(nodes=n), repeats=repeats),  # type: ignore[misc]
                settings={"nodes": nodes},
            )
        )
        deciding.append(
            Row(
                name="recovery_probability",
                values=timed(
                    lambda p=placement: [recovery_probability(p, k) for k in LOST],  # type: ignore[misc]
                    repeats=repeats,
                ),
                settings={"nodes": nodes, "k": f"0..{LOST[-1]}"},
            )
        )
    exponents = [
        single(
            f"{rows[0].name} grows with N to the power", growth(SIZES, [row.median for row in rows])
        )
        for rows in (placing, deciding)
    ]
    return [*placing, *deciding, *exponents]
