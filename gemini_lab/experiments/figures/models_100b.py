"""What Figs. 7 and 8 share: three models of 100 B on 16 p4d, read off the figures' pixels."""

from dataclasses import replace
from typing import Final

from gemini_lab.simulator.workload import Workload, paper_workload

ITERATION_S: Final = {"GPT-2": (64.9, 65.2), "RoBERTa": (79.0, 79.2), "BERT": (72.9, 73.2)}
"""Without checkpoints, and with Gemini (Fig. 7)."""
IDLE_S: Final = {"GPT-2": (10.0, 2.5, 7.5), "RoBERTa": (11.7, 2.6, 9.1), "BERT": (11.2, 2.5, 8.7)}
"""Idle without checkpoints, checkpoint time, idle left (Fig. 8)."""


def workload(name: str) -> Workload:
    """The job `name`: its iteration and its idle time are the paper's measurements."""
    base = paper_workload()
    stretch = IDLE_S[name][0] / base.idle_s
    spans = tuple(span * stretch for span in base.idle_spans_s)
    return replace(base, iteration_s=ITERATION_S[name][0], idle_spans_s=spans)
