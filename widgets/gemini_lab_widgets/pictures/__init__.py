"""Pictures of values, reports and the paper's figures: drawn by matplotlib, shown as SVG.

A value knows nothing of its picture. `DRAWN` says who draws what by name, so that neither the
value's module nor matplotlib is imported before a picture is shown.
"""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gemini_lab_widgets.pictures.picture import Picture

DRAWN: Final = {
    "gemini_lab.placement.planner.Placement": f"{__name__}.placement:draw",
    "gemini_lab.profiler.profile.Profile": f"{__name__}.iteration:draw_profile",
    "gemini_lab.pipeliner.schedule.ChunkSchedule": f"{__name__}.chunk_columns:draw",
    "gemini_lab.recovery.plan.RecoveryPlan": f"{__name__}.recovery_steps:draw_plan",
    "gemini_lab.report.recovery.Recovery": f"{__name__}.recovery_steps:draw_recovery",
    "gemini_lab.report.values.RunReport": f"{__name__}.report:draw",
    "gemini_lab.simulator.outcome.Outcome": f"{__name__}.simulated_run:draw",
} | {point.name: point.value for point in entry_points(group="gemini_lab.pictures")}
"""The function that draws a type's values: of this package, or one that another package offers."""


def view(value: object, **options: object) -> "Picture":
    """Return the picture of a value; `view(schedule, profile=profile)` adds the time line.

    Raises:
        TypeError: There is no picture of such a value.
        ConfigError: matplotlib is not installed, or the options go with another value.
    """
    for kind in type(value).__mro__:
        if where := DRAWN.get(f"{kind.__module__}.{kind.__qualname__}"):
            return _drawer(where)(value, **options)
    drawn = ", ".join(sorted(name.rpartition(".")[2] for name in DRAWN))
    raise TypeError(f"there is no picture of a {type(value).__name__}; there is one of {drawn}")


def _drawer(where: str) -> "Callable[..., Picture]":
    from gemini_lab_widgets.pictures.picture import drawn  # noqa: PLC0415 - matplotlib, when wanted

    module, _, name = where.partition(":")
    draw: Callable[..., Picture] = getattr(importlib.import_module(module), name)
    return drawn(draw)
