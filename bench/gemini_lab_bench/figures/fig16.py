"""Fig. 16: five ways to send a checkpoint, GPT-2 40B on 16 p3dn."""

from gemini_lab.errors import CapacityError
from gemini_lab.pipeliner.schedule import Scheme
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab_bench.figures.figure import Figure, Origin, Point
from gemini_lab_bench.figures.models_p3dn import workload

PAPER: dict[Scheme, tuple[str, float | None]] = {
    "none": ("none", 43.5),
    "blocking": ("blocking", 48.0),
    "naive": ("naive interleave", None),
    "interleaved": ("interleave", 45.0),
    "gemini": ("Gemini", 43.5),
}


ORIGINS: dict[Scheme, Origin] = {"none": "input", "interleaved": "fitted"}
"""Of the schemes' times; the others are the model's."""


def figure() -> Figure:
    """Return the iteration time that each scheme's schedule is modelled to have."""
    points = []
    job = workload("GPT-2 40B", iteration_s=43.5, idle_s=5.7)
    for scheme, (name, seconds) in PAPER.items():
        try:
            ours = chunk_schedule(job, scheme=scheme, algorithm="paper").predicted_iteration_s
            text = ""
        except CapacityError:
            ours, text = None, "OOM"
        points += [
            Point(
                "iteration time",
                name,
                seconds,
                "paper",
                "Fig. 16, pixels",
                text="" if seconds else "OOM",
            ),
            Point(
                "iteration time",
                name,
                ours,
                ORIGINS.get(scheme, "model"),
                "Algorithm 2's chunks on a modelled wire, sub-buffers and copy engine",
                text=text,
            ),
        ]
    return Figure(
        name="fig16",
        title="Fig. 16: iteration time by scheme, GPT-2 40B, 16 p3dn",
        x_label="scheme",
        y_label="iteration time, s",
        points=tuple(points),
        notes=(
            (
                "OOM: one piece as large as the largest span does not fit the 128 MiB buffer (the "
                "paper: more than 2 GB a GPU)."
            ),
            (
                "Inputs: 43.5 s an iteration, 5.7 s of it idle, 1.6 s in the largest span. Fitted, "
                "since they are not published: five spans and copies of 1.45 times the wire's "
                "rate, so that plain interleaving takes its 45.0 s; the wire's rate is Fig. 13b's. "
                "`gemini-lab bench schemes` measures the five on your machine. With "
                "many short spans plain interleaving would cost nothing, since a copy then hides "
                "behind training traffic."
            ),
        ),
        kind="bars",
        tolerance=0.01,
    )
