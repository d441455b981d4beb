"""Pictures of values, as SVG with a table beside it: no library, no JavaScript.

A cell of a notebook that ends in such a value shows its picture by itself.
"""

from functools import singledispatch
from typing import Any

from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.placement import Placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.report.values import Recovery, RunReport
from gemini_lab.simulator.outcome import Outcome
from gemini_lab_widgets.drawings import iteration, outcome, placement, recovery, report
from gemini_lab_widgets.drawings.canvas import Picture

__all__ = ["Picture", "view"]


@singledispatch
def view(value: Any, **_: Any) -> Picture:
    """The picture of a value; `view(schedule, profile=profile)` puts chunks on the time line.

    Raises:
        TypeError: There is no picture of such a value.
    """
    drawn = ", ".join(sorted(kind.__name__ for kind in view.registry if kind is not object))
    raise TypeError(f"there is no picture of a {type(value).__name__}; there is one of {drawn}")


view.register(Placement, placement.draw)
view.register(Profile, iteration.draw_profile)
view.register(ChunkSchedule, iteration.draw_schedule)
view.register(RecoveryPlan, recovery.draw_plan)
view.register(Recovery, recovery.draw_recovery)
view.register(RunReport, report.draw)
view.register(Outcome, outcome.draw)
