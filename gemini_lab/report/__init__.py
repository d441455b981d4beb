"""Reports of a run, from its event log and nothing else.

    the reducer     reducer takes entries in, by its parts in `reducers`; the timeline's bars are in
                    `bars`, `pyramid` and `blocks`; culprits, who ended on its own account
    a report        values and recovery are what it says, build makes it; text and columns print it
    for views       `tables` of the reducer's parts; moments, a run as it was; output, what workers
                    printed
    a growing log   follower reads it for all of these, and goes on from an earlier reader's state
    for others      metrics, scalars, trace
    beside it       twice, two runs; measured, what a log teaches; predicted, by the simulator

What is told here was said in events, whose classes are in `log`.
"""

from gemini_lab.report.build import build_report, load_report
from gemini_lab.report.measured import load_measured, measure
from gemini_lab.report.predicted import Predicted, PredictedRow, predict
from gemini_lab.report.recovery import Injection, Receipt, Recovery, Step, WastedTime
from gemini_lab.report.text import render
from gemini_lab.report.trace import chrome_trace
from gemini_lab.report.values import Comparison, Iteration, RunReport, Traffic, TrafficPlan

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
]
