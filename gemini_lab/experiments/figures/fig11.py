"""Fig. 11: how much sooner a checkpoint is whole in CPU memory than in the remote store."""

from gemini_lab.experiments.figures.figure import Figure, Point

EFFICIENCY = 0.85
STORE_GBIT_PER_S = 20.0
NODES = tuple(range(4, 17, 2))
NETWORKS = (100, 200, 400)


def reduction(*, nodes: int, network_gbit_per_s: float) -> float:
    """All nodes send at once, each at 85 % of its link, against one store of 20 Gbit/s."""
    return network_gbit_per_s * EFFICIENCY * nodes / STORE_GBIT_PER_S


def figure() -> Figure:
    """Reduction of checkpoint time over N, for three networks."""
    points = [
        Point(
            series=f"{network} Gbit/s",
            x=nodes,
            y=reduction(nodes=nodes, network_gbit_per_s=network),
            origin="model",
            how="link x 0.85 x N / 20 Gbit/s",
        )
        for network in NETWORKS
        for nodes in NODES
    ]
    points += [
        Point(series="100 Gbit/s", x=16, y=65, origin="paper", how="section 7.2"),
        Point(series="400 Gbit/s", x=16, y=272, origin="paper", how="Fig. 11"),
    ]
    return Figure(
        name="fig11",
        title="Fig. 11: checkpoint time, remote store by CPU memory",
        x_label="nodes, N",
        y_label="times faster",
        points=tuple(points),
        notes=(
            (
                "The efficiency of 85 % is the one that Fig. 11's 272x needs; with the 60 % that "
                "Fig. 8's 2.5 s mean, N = 16 at 400 Gbit/s gives 192x."
            ),
            "100 Gbit/s: the formula gives 68x; the paper's 65x needs 81 %.",
        ),
    )
