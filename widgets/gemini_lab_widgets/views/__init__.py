"""The Bokeh views of a run: each draws one part of the tables, and counts nothing."""

from gemini_lab_widgets.views.bar_views import MemoryView, RecoveryView, WastedView
from gemini_lab_widgets.views.curves import CurvesView
from gemini_lab_widgets.views.iteration_times import IterationsView
from gemini_lab_widgets.views.replica_map import ReplicasView
from gemini_lab_widgets.views.status_strip import StatusView
from gemini_lab_widgets.views.time_bar import SpentView
from gemini_lab_widgets.views.view import View

__all__ = [
    "VIEWS",
    "CurvesView",
    "IterationsView",
    "MemoryView",
    "RecoveryView",
    "ReplicasView",
    "SpentView",
    "StatusView",
    "View",
    "WastedView",
]

VIEWS: tuple[type[View], ...] = (
    StatusView,
    CurvesView,
    SpentView,
    ReplicasView,
    IterationsView,
    RecoveryView,
    MemoryView,
    WastedView,
)
"""All of them, in the order in which a page shows them."""
