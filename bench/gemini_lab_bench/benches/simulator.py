"""The `simulator` bench: 30 days of every policy, and how that grows with N."""

from gemini_lab.simulator.outages import opt_175b, poisson_failures
from gemini_lab.simulator.peers import POLICIES
from gemini_lab.simulator.simulate import compare
from gemini_lab.simulator.workload import paper_workload
from gemini_lab_bench.rows import Row, growth, single, timed

SIZES = (1_000, 3_000, 10_000)
DAYS = 30.0


def bench(repeats: int) -> list[Row]:
    """Time each N at OPT-175B's failure rate, all policies together; then give the exponent.

    Failures grow with N, and a recovery costs what the groups that lost something do: expect a
    power near 1.
    """
    rows = []
    for nodes in SIZES:
        workload = paper_workload(nodes=nodes, standbys=nodes // 100)
        outages = poisson_failures(nodes=nodes, days=DAYS, rate=opt_175b())
        rows.append(
            Row(
                name="compare",
                values=timed(
                    lambda w=workload, o=outages: compare(w, o, days=DAYS),  # type: ignore[misc]
                    repeats=repeats,
                    warm_ups=0,
                ),
                settings={"nodes": nodes, "days": DAYS, "policies": len(POLICIES)},
            )
        )
    exponent = growth(SIZES, [row.median for row in rows])
    return [*rows, single("compare grows with N to the power", exponent)]
