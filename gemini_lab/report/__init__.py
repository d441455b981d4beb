"""Reports, tables and metrics of a run, from its event log and nothing else.

    a run's state   reducer takes in entries, by its parts in `reducers`; follower reads a log that
                    grows, for pages, metrics and commands, and saves the state of a long one
    the timeline    bars are its rows, pyramid their levels of detail, blocks the storage on disk
    a report        build makes it, values and recovery are its parts, text prints it
    for views       `tables` of the state; moments, the state at any time
    for others      metrics for Prometheus and for curves; trace for Perfetto
    comparisons     compare_runs, two; predicted, a run beside the simulator's, which loads that

The events themselves are classes in `log`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gemini_lab.report.build import build_report, load_report, save_events
from gemini_lab.report.recovery import Injection, Receipt, Recovery, Step, WastedTime
from gemini_lab.report.text import render
from gemini_lab.report.trace import chrome_trace
from gemini_lab.report.values import Comparison, Iteration, RunReport, Traffic, TrafficPlan

if TYPE_CHECKING:
    from gemini_lab.report.predicted import (
        Predicted,
        PredictedRow,
        load_measured,
        measure,
        predict,
    )

__all__ = [
    "Comparison",
    "Injection",
    "Iteration",
    "Predicted",
    "PredictedRow",
    "Receipt",
    "Recovery",
    "RunReport",
    "Step",
    "Traffic",
    "TrafficPlan",
    "WastedTime",
    "build_report",
    "chrome_trace",
    "load_measured",
    "load_report",
    "measure",
    "predict",
    "render",
    "save_events",
]


def __getattr__(name: str) -> Any:
    """Load what needs the simulator when it is asked for: a run and its report do not."""
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.predicted"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
