"""Reports, tables and metrics of a run, from its event log and nothing else.

    a run's state   reducer takes in entries, by its parts in `reducers`; follower reads a log that
                    grows, for pages, metrics and commands, and saves the state of a long one
    the timeline    bars are its rows, pyramid their levels of detail, blocks the storage on disk
    a report        build makes it, values and recovery are its parts, text and columns print it
    for views       `tables` of the state; moments, the state at any time; output, the last lines of
                    workers; culprits, the worker that ended first
    for others      metrics for Prometheus and for curves; trace for Perfetto
    comparisons     twice, two runs; measured, a run's durations; predicted, by the simulator

The events themselves are classes in `log`.
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
