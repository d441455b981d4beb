"""Wasted time where all checkpoints go to a remote store (section 2.2): the table, and Fig. 1.

And whether Eq. (1) holds of real failures, from what `gemini-lab bench wasted` measured.
"""

from collections.abc import Mapping
from typing import Any, Final

from gemini_lab.recovery.wasted_time import saturated_wasted_time_s
from gemini_lab.simulator.catalog import MODELS
from gemini_lab.simulator.policy import Policy, Stream
from gemini_lab.simulator.segments import TrainingSegment
from gemini_lab_bench.figures.emulated import by_name, load
from gemini_lab_bench.figures.figure import Figure, Point
from gemini_lab_bench.rows import value_of

STORE_BYTES_PER_S = 20e9 / 8
SLIDES = {"Gopher": (3.4, 23, 57), "MT-NLG": (6.4, 43, 108), "PaLM": (6.5, 44, 110)}
"""Size in TB, t_ckpt and mean wasted time in minutes, as the talk's slides round them."""
PAPER = {"MT-NLG": (None, 42, 105)}
CLOSE: Final = 0.25
"""Tolerance of what was measured; the figure's note gives the reason."""


def figure() -> Figure:
    """Return minutes to checkpoint and minutes wasted by a failure, at 20 Gbit/s."""
    points = []
    for name, (size, checkpoint, wasted) in SLIDES.items():
        model = MODELS[name]
        checkpoint_s = model.checkpoint_bytes / STORE_BYTES_PER_S
        ours = (
            ("size, TB", size, model.checkpoint_bytes / 1e12, "12 bytes a parameter"),
            ("t_ckpt, min", checkpoint, checkpoint_s / 60, "size / (20 Gbit/s)"),
            ("wasted, min", wasted, saturated_wasted_time_s(checkpoint_s) / 60, "2.5 t_ckpt"),
        )
        for (series, slide, value, formula), printed in zip(
            ours, PAPER.get(name, (None,) * 3), strict=True
        ):
            how, shown = ("the talk's slides", slide) if printed is None else ("2.2", printed)
            points += [
                Point(series, name, shown, "paper", how),
                Point(series, name, value, "model", formula),
            ]
    return Figure(
        name="eq1",
        title="Eq. (1) with a saturated store: T_wasted = 2.5 t_ckpt",
        x_label="model",
        y_label="TB or minutes",
        points=tuple(points),
        notes=(
            (
                "The paper prints 42 and 105 minutes for MT-NLG; its slides say 43 and 108. 12 "
                "bytes a parameter give 42.4 and 106.0."
            ),
            (
                "Fig. 1 is an illustration: checkpoints after iterations 100, 200 and 300, a "
                "failure in 310 before the third is whole. Our progress model rolls back to "
                f"{rollback()}."
            ),
        ),
        kind="bars",
        tolerance=0.03,
    )


def rollback() -> int | None:
    """Return the version of Fig. 1: a checkpoint every 100 iterations takes 15; failure at 310."""
    stream = Stream(every=100, delay_s=15.0)
    policy = Policy(name="Fig. 1", source="", assumptions="", persistent=stream, persistent_s=0.0)
    return TrainingSegment(version=0, iteration_s=1.0, policy=policy).newest_whole(stream, 310.0)


def of_real_failures(record: Mapping[str, Any]) -> Figure:
    """Return what workers wasted that were killed at any time, beside what Eq. (1) says of them."""
    rows = by_name(record)
    expected_s = value_of(rows["the same by Eq. (1)"])
    wasted = rows["wasted by a failure, measured"]["values"]
    beyond = rows["lost beyond t_ckpt, in intervals (0.5)"]["values"]
    return Figure(
        name="eq1-measured",
        title="Eq. (1) for real: workers killed at any time",
        x_label="",
        y_label="s, or intervals 1/f",
        points=(
            _said("wasted by a failure, s", expected_s, "t_ckpt + 1/(2f) + t_rtvl, as measured"),
            _of_kills("wasted by a failure, s", wasted),
            _said("lost beyond t_ckpt, intervals", 0.5, "half of one, where kills come evenly"),
            _of_kills("lost beyond t_ckpt, intervals", beyond),
        ),
        notes=(
            (
                f"Tolerance {CLOSE:.0%}, for the whole interval: a kill wastes anything over an "
                "interval, so that 100 kills tell the mean to a tenth."
            ),
            f"Real processes. {record['machine']['system']}, {load(record)}.",
        ),
        kind="bars",
        tolerance=CLOSE,
    )


def _said(series: str, value: float, how: str) -> Point:
    return Point(series, "mean", value, "model", how)


def _of_kills(series: str, values: list[float]) -> Point:
    how = f"mean of {len(values)} kills, 95 % interval (t)"
    return Point.mean(series, "mean", values, "measured", how)
