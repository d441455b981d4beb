"""The same placements, schedules and plans at a thousand machines.

    questions       what_if (`plan`) by forecast (with bills) and interval; simulate, also of
                    the injector's scenarios; replay, of a real run's failures
    what is given   workload, with traffic, by the names of the catalog; policy, and as policies
                    peers; times, which logs teach
    what breaks     outages (drawn, or of an own cluster's trace)
    one run         training, by recovering, on a run_state: machines (their seats and
                    copies), segments (without failures), durations (of recoveries)
    what comes out  outcome; recorder tells it in a real run's events

Placements, schedules and recovery plans come from the stages themselves.
"""

from gemini_lab.simulator.forecast import Bill, Price, Sensitivity, bill, tornado
from gemini_lab.simulator.interval import Interval
from gemini_lab.simulator.outages import (
    FailureRate,
    Outage,
    llama_3,
    opt_175b,
    poisson_failures,
    read_trace,
)
from gemini_lab.simulator.outcome import Outcome, SimulatedRecovery
from gemini_lab.simulator.peers import POLICIES, gemini_lab_auto
from gemini_lab.simulator.policy import Policy, Stream
from gemini_lab.simulator.replay import Replay, replay
from gemini_lab.simulator.simulate import compare, outages_of, simulate
from gemini_lab.simulator.times import Measured, Spread, Steps, Times
from gemini_lab.simulator.what_if import WhatIf, plan
from gemini_lab.simulator.workload import Workload, paper_workload

__all__ = [
    "POLICIES",
    "Bill",
    "FailureRate",
    "Interval",
    "Measured",
    "Outage",
    "Outcome",
    "Policy",
    "Price",
    "Replay",
    "Sensitivity",
    "SimulatedRecovery",
    "Spread",
    "Steps",
    "Stream",
    "Times",
    "WhatIf",
    "Workload",
    "bill",
    "compare",
    "gemini_lab_auto",
    "llama_3",
    "opt_175b",
    "outages_of",
    "paper_workload",
    "plan",
    "poisson_failures",
    "read_trace",
    "replay",
    "simulate",
    "tornado",
]
