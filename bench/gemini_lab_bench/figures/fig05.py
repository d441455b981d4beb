"""Figs. 4 and 5: what each way to send a checkpoint does to an iteration, as the paper draws it."""

from typing import Final

from gemini_lab.errors import CapacityError
from gemini_lab.pipeliner.schedule import NO_DELAY, ChunkSchedule, Scheme
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab_bench.figures.figure import Figure, Origin, Point
from gemini_lab_bench.figures.models_p3dn import workload

FITS: Final = "the buffer suffices"
BETWEEN: Final = "leaves in idle spans"
LONGER: Final = "the iteration gets longer"
DRAWN: Final[dict[Scheme, tuple[str, dict[str, bool]]]] = {
    "blocking": ("Fig. 4b", {FITS: True, BETWEEN: False, LONGER: True}),
    "naive": ("Fig. 5b", {FITS: False}),
    "interleaved": ("Fig. 5c", {FITS: True, BETWEEN: True, LONGER: True}),
    "gemini": ("Figs. 4c and 5d", {FITS: True, BETWEEN: True, LONGER: False}),
}
"""Which drawing shows the scheme, and what it shows."""


def figure() -> Figure:
    """Yes or no: what is drawn beside what the real schedules of a job do."""
    points = []
    for scheme, (where, drawn) in DRAWN.items():
        done = _done(scheme)
        for series, theirs in drawn.items():
            x = f"{scheme}, {where}"
            is_fitted = (scheme, series) == ("interleaved", LONGER)
            origin: Origin = "fitted" if is_fitted else "model"
            how = "`plan_chunks`, GPT-2 40B on 16 p3dn"
            points += [
                Point(series, x, theirs, "paper", where),
                Point(series, x, done[series], origin, how),
            ]
    return Figure(
        name="fig05",
        title="Figs. 4 and 5: what each scheme does to an iteration",
        x_label="scheme",
        y_label="1: yes, 0: no",
        points=tuple(points),
        notes=(
            (
                "Figs. 4 and 5 are drawings without numbers: what they show becomes yes or no. "
                "How much longer an iteration gets is Fig. 16's, where it is fitted that plain "
                "interleaving is felt."
            ),
            (
                "The scheme none is Figs. 4a and 5a. Notebook 04 draws the same schedules chunk by "
                "chunk, and those of a real run. Fig. 2 is the paper's architecture, without "
                "numbers: this system's stands in the documentation's architecture page."
            ),
        ),
        kind="bars",
        tolerance=0.0,
        is_absolute=True,
    )


def _done(scheme: Scheme) -> dict[str, bool]:
    """Return what the schedule of the scheme does, or that there is none."""
    job = workload("GPT-2 40B", iteration_s=43.5, idle_s=5.7)
    try:
        schedule: ChunkSchedule = chunk_schedule(job, scheme=scheme, algorithm="paper")
    except CapacityError:
        return {FITS: False}
    longer = schedule.predicted_iteration_s / schedule.iteration_s - 1
    return {
        FITS: True,
        BETWEEN: all(chunk.span is not None for chunk in schedule.chunks),
        LONGER: longer > NO_DELAY,
    }
