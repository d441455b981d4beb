"""Fig. 11 scaled down: versions to peers and to a store on real nodes, from bench results."""

from collections.abc import Mapping
from typing import Any, Final

from gemini_lab.units import format_bytes
from gemini_lab_bench.figures import fig11
from gemini_lab_bench.figures.emulated import by_name
from gemini_lab_bench.figures.figure import Figure, Point
from gemini_lab_bench.rows import value_of

PAPER_GBIT_PER_S: Final = 100
"""The paper's link that is as much faster than its store."""
SHORT: Final = 0.15


def eleventh(record: Mapping[str, Any]) -> Figure:
    """Fig. 11: how much sooner a version is whole at peers than in the store, by nodes."""
    rows = by_name(record)
    measured = [row for name, row in rows.items() if ": reduction" in name]
    points = [point for row in measured for point in _reduced(rows, row)]
    points += [
        Point(
            series=f"the paper, {PAPER_GBIT_PER_S} Gbit/s",
            x=nodes,
            y=y,
            origin="paper",
            how="Fig. 11",
        )
        for nodes, y in fig11.PAPER[PAPER_GBIT_PER_S].items()
    ]
    settings = measured[0]["settings"]
    link, store = (settings[f"{what}_bytes_per_s"] for what in ("link", "store"))
    machine = record["machine"]
    return Figure(
        name="fig11-measured",
        title="Fig. 11 for real, scaled down: checkpoint time, remote store by peers",
        x_label="nodes, N",
        y_label="times faster",
        points=tuple(points),
        notes=(
            (
                f"Real nodes; emulated: links of {format_bytes(link)}/s, a store of "
                f"{format_bytes(store)}/s for all, an accelerator's time in the layers. Both times "
                "last from an iteration's end until the version is whole on the last rank, and are "
                "by byte: a shard has a MiB for small state, which in a model so small is much."
            ),
            (
                "Model: N x link / store, of the rates that were set alone. The paper's line is "
                f"its {PAPER_GBIT_PER_S} Gbit/s, of which its formula gives checkpoints 85 %. "
                f"Tolerance: {SHORT:.0%}, as much as the paper leaves of the link to all else."
            ),
            (
                f"{machine['system']}, {machine['cores']} cores, load "
                f"{machine['load_1_min']:.1f} before and {record['load_1_min_after']:.1f} after."
            ),
        ),
        tolerance=SHORT,
    )


def _reduced(rows: Mapping[str, Any], row: Mapping[str, Any]) -> list[Point]:
    """Return the formula's value and the measured one of one number of nodes."""
    nodes, count = row["settings"]["nodes"], len(row["values"])
    return [
        Point(
            series="here",
            x=nodes,
            y=value_of(rows[f"{nodes} nodes: by the formula"]),
            origin="model",
            how="N x link / store",
        ),
        Point(
            series="here",
            x=nodes,
            y=value_of(row),
            low=row.get("low_95"),
            high=row.get("high_95"),
            origin="measured",
            how=f"{count} turn{'s' * (count > 1)}, each the median of several versions",
        ),
    ]
