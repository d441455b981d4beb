"""How long a cluster takes to know what to do about a loss: with a root agent, and by gossip."""

from collections.abc import Sequence

from gemini_lab.simulator.coordination import Coordination
from gemini_lab_bench.figures.figure import Figure, Point


def figure(costs: Sequence[Coordination]) -> Figure:
    """Draw the time from a node's silence until it counts as lost, and until all can go on.

    Args:
        costs: What `coordinate` gave.
    """
    points = []
    for cost in costs:
        values = (("lost", cost.detect_s.mean), ("version agreed", cost.back_s))
        points += [
            Point(
                f"{cost.design}: {what}",
                cost.nodes,
                seconds,
                "simulation",
                f"a node falls silent, {cost.nodes} nodes",
            )
            for what, seconds in values
        ]
    return Figure(
        name="coordination",
        title="A node falls silent: who finds out, and when all agree",
        x_label="nodes, N",
        y_label="s after the silence began",
        points=tuple(points),
        notes=tuple(_note(cost) for cost in costs),
        log_x=True,
    )


def _note(cost: Coordination) -> str:
    return (
        f"{cost.design}, {cost.nodes:,} nodes: {_count(cost.false_per_day)} healthy nodes a day "
        f"declared lost; {cost.busiest_messages_per_s:,.0f} messages a second at the busiest "
        f"place; to agree, {_count(cost.busiest_bytes / 1e6)} MB over the busiest link"
    )


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
