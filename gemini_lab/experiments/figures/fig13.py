"""Fig. 13: models of 10 to 40 B on 16 p3dn: do their checkpoints fit the idle time?"""

from gemini_lab.experiments.figures.figure import Figure, Point
from gemini_lab.simulator.catalog import MODELS

NODES = 16
RATE_GBIT_PER_S = {"GPT-2 10B": 42.0, "GPT-2 20B": 53.0, "GPT-2 40B": 55.0}
"""What checkpoint traffic gets of the 100 Gbit/s link: fitted to the paper's checkpoint times."""
SHARE_OF_IDLE = (0.70, 0.77)
"""Checkpoint time by idle time on p3dn, over the three models."""
IDLE_40B_S = 0.126 * 45.3
"""12.6 % of the 45.3 s of Fig. 13a."""


def figure() -> Figure:
    """Checkpoint time an iteration, and the idle time that it has to fit."""
    points = []
    for name, rate in RATE_GBIT_PER_S.items():
        checkpoint_s = MODELS[name].checkpoint_bytes * 8 / NODES / (rate * 1e9)
        low, high = (checkpoint_s / share for share in reversed(SHARE_OF_IDLE))
        points += [
            Point(
                series="checkpoint time",
                x=name,
                y=checkpoint_s,
                origin="model",
                how="12 B x params / 16 / fitted rate (42, 53, 55 Gbit/s)",
            ),
            Point(
                series="idle time",
                x=name,
                y=(low + high) / 2,
                low=low,
                high=high,
                origin="model",
                how="checkpoint time / (0.70 to 0.77), the paper's share",
            ),
        ]
    points.append(
        Point(
            series="idle time",
            x="GPT-2 40B",
            y=IDLE_40B_S,
            origin="paper",
            how="12.6 % of 45.3 s, Fig. 13",
        )
    )
    return Figure(
        name="fig13",
        title="Fig. 13: checkpoint and idle time, 16 p3dn",
        x_label="model",
        y_label="s an iteration",
        points=tuple(points),
        notes=(
            (
                "The checkpoint fits with 23 to 30 % of the idle time to spare; so Gemini's "
                "iterations take as long as those without checkpoints (paper: 1.00 to 1.02 "
                "times)."
            ),
            (
                "Fitted: the rates. Of the iteration times only that of 40B is known here (45.3 s "
                "in Fig. 13a, 43.5 s in Fig. 16), so no idle time of the paper stands at 10B and "
                "20B."
            ),
            "The 10B row of Table 2 is computed with hidden size 5120; its 2560 gives 3.75 B.",
        ),
        kind="bars",
    )
