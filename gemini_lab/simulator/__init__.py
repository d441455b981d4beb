"""The same placements, schedules and plans at a thousand machines."""

from gemini_lab.simulator.failures import (
    FailureRate,
    Outage,
    llama_3,
    opt_175b,
    poisson_failures,
    read_trace,
)
from gemini_lab.simulator.outcome import Outcome, Recovery
from gemini_lab.simulator.policy import POLICIES, Policy, Stream
from gemini_lab.simulator.scenario import outages_of
from gemini_lab.simulator.simulate import compare, simulate
from gemini_lab.simulator.what_if import WhatIf, plan
from gemini_lab.simulator.workload import Workload, paper_workload

__all__ = [
    "POLICIES",
    "FailureRate",
    "Outage",
    "Outcome",
    "Policy",
    "Recovery",
    "Stream",
    "WhatIf",
    "Workload",
    "compare",
    "llama_3",
    "opt_175b",
    "outages_of",
    "paper_workload",
    "plan",
    "poisson_failures",
    "read_trace",
    "simulate",
]
