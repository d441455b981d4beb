"""What Figs. 7, 8 and 11 share: three models of 100 B on 16 p4d, read off the figures' pixels."""

from dataclasses import replace
from typing import Final

from gemini_lab.simulator.workload import Workload, paper_workload
from gemini_lab_bench.figures.traffic_model import TrafficModel, fitted

ITERATION_S: Final = {"GPT-2": (64.9, 65.2), "RoBERTa": (79.0, 79.2), "BERT": (72.9, 73.2)}
"""Without checkpoints, and with Gemini (Fig. 7)."""
IDLE_S: Final = {"GPT-2": (10.0, 2.5, 7.5), "RoBERTa": (11.7, 2.6, 9.1), "BERT": (11.2, 2.5, 8.7)}
"""Idle without checkpoints, checkpoint time, idle left (Fig. 8)."""
FITTED_ON: Final = "GPT-2"
MACHINE: Final[TrafficModel] = fitted(
    f"{FITTED_ON} 100B", iteration_s=ITERATION_S[FITTED_ON][0], idle_s=IDLE_S[FITTED_ON][0]
)
LINK_GBIT_PER_S: Final = 400.0
LINK_SHARE: Final = paper_workload().network_bytes_per_s * 8e-9 / LINK_GBIT_PER_S
"""What checkpoint traffic gets of a link, by Fig. 8's 2.5 s: the one rate of all figures."""


def workload(name: str) -> Workload:
    """Return the job `name`: its iteration and its idle time are the paper's measurements."""
    base = paper_workload()
    stretch = IDLE_S[name][0] / base.idle_s
    spans = tuple(span * stretch for span in base.idle_spans_s)
    return replace(base, iteration_s=ITERATION_S[name][0], idle_spans_s=spans)
