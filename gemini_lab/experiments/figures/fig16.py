"""Fig. 16: five ways to send a checkpoint, GPT-2 40B on 16 p3dn."""

from gemini_lab.errors import CapacityError
from gemini_lab.experiments.figures.figure import Figure, Point
from gemini_lab.pipeliner.schedule import Scheme
from gemini_lab.simulator.catalog import MODELS
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab.simulator.workload import Workload

PAPER: dict[Scheme, tuple[str, float | None]] = {
    "none": ("none", 43.5),
    "blocking": ("blocking", 48.0),
    "naive": ("naive interleave", None),
    "interleaved": ("interleave", 45.0),
    "gemini": ("Gemini", 43.5),
}


def workload() -> Workload:
    """Its job: 43.5 s an iteration, 5.7 s of idle time, 1.6 s of it in the largest span.

    Checkpoint traffic gets 55 of 100 Gbit/s (Fig. 13b). Fitted to the 45.0 s of plain
    interleaving: five spans, and copies at 1.45 times that rate.
    """
    rate = 55e9 / 8
    return Workload(
        nodes=16,
        params=MODELS["GPT-2 40B"].params,
        iteration_s=43.5,
        idle_spans_s=(1.6, *[1.025] * 4),
        network_bytes_per_s=rate,
        copy_bytes_per_s=1.45 * rate,
        store_bytes_per_s=20e9 / 8,
    )


def figure() -> Figure:
    """The iteration time that each scheme's schedule is modelled to have."""
    points = []
    for scheme, (name, seconds) in PAPER.items():
        try:
            ours = chunk_schedule(workload(), scheme=scheme).predicted_iteration_s
            text = ""
        except CapacityError:
            ours, text = None, "OOM"
        points += [
            Point(
                series="iteration time",
                x=name,
                y=seconds,
                origin="paper",
                how="Fig. 16, pixels",
                text="" if seconds else "OOM",
            ),
            Point(
                series="iteration time",
                x=name,
                y=ours,
                origin="model",
                text=text,
                how="Algorithm 2's chunks on a modelled wire, sub-buffers and copy engine",
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
                "Fitted, since they are not published: five spans (1.6 s and four of 1.025 s) and "
                "a copy rate of 1.45 times the wire's. With many short spans plain interleaving "
                "would cost nothing, since a copy then hides behind training traffic."
            ),
        ),
        kind="bars",
    )
