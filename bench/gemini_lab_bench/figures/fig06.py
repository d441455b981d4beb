"""Fig. 6: from where shards come after failures of three kinds, by the real recovery planner."""

from gemini_lab.placement import plan_placement
from gemini_lab.simulator.machines import SimulatedCluster
from gemini_lab_bench.figures.figure import Figure, Point

NODES = 4
IN_MEMORY, STORED = 300, 200
CASES: dict[str, tuple[tuple[int, ...], dict[str, int], int]] = {
    "software failure": ((), {"local": 4, "peer": 0, "persistent": 0}, IN_MEMORY),
    "case 1, a node of each group": ((1, 3), {"local": 2, "peer": 2, "persistent": 0}, IN_MEMORY),
    "case 2, a whole group": ((0, 1), {"local": 0, "peer": 0, "persistent": 4}, STORED),
}
"""Lost positions; shards by where they come from; and the version that all go back to."""


def figure() -> Figure:
    """Four nodes in two groups, with a version in memory and an older one in the store."""
    points = []
    for case, (lost, expected, version) in CASES.items():
        cluster = SimulatedCluster(plan_placement(nodes=NODES), standbys=len(lost))
        cluster.memory_version, cluster.persisted = IN_MEMORY, STORED
        for position in lost:
            cluster.lose(position, memory=True)
        plan = cluster.plan(cluster.everything)
        found = [str(source.tier) for source in plan.sources]
        pairs = [(f"shards, {tier}", count, found.count(tier)) for tier, count in expected.items()]
        pairs.append(("version in memory is kept", version == IN_MEMORY, plan.version == IN_MEMORY))
        for series, theirs, ours in pairs:
            points += [
                Point(series, case, theirs, "paper", "6.2 and Fig. 6"),
                Point(series, case, ours, "model", "`plan_recovery`, as the root agent calls it"),
            ]
    return Figure(
        name="fig06",
        title="Fig. 6: where shards come from, four nodes in two groups",
        x_label="failure",
        y_label="shards; 1: yes",
        points=tuple(points),
        notes=(
            (
                f"Version {IN_MEMORY} is in memory, version {STORED} in the store. In case 2 those "
                "with an intact copy load from the store as well: all go on from one version."
            ),
        ),
        kind="bars",
        tolerance=0.0,
        is_absolute=True,
    )
