"""What Figs. 13a, 13b and 16 share: five models on 16 p3dn, read off the figures' pixels."""

from typing import Final

from gemini_lab.simulator.catalog import MODELS
from gemini_lab.simulator.workload import Workload
from gemini_lab_bench.figures.figure import Origin
from gemini_lab_bench.figures.traffic_model import NODES, TrafficModel, fitted

ITERATION_S: Final = {
    "GPT-2 10B": (10.9, 11.1),
    "GPT-2 20B": (22.6, 22.7),
    "GPT-2 40B": (45.3, 45.5),
    "RoBERTa 40B": (47.8, 48.0),
    "BERT 40B": (46.4, 46.8),
}
"""Without checkpoints, and with Gemini (Fig. 13a)."""
IDLE_S: Final = {
    "GPT-2 10B": (2.0, 1.4),
    "GPT-2 20B": (3.2, 2.3),
    "GPT-2 40B": (5.7, 4.4),
    "RoBERTa 40B": (6.4, 4.5),
    "BERT 40B": (6.0, 4.5),
}
"""Idle without checkpoints, and checkpoint time (Fig. 13b)."""
FITTED_ON: Final = "GPT-2 40B"
MACHINE: Final[TrafficModel] = fitted(
    FITTED_ON, iteration_s=ITERATION_S[FITTED_ON][0], idle_s=IDLE_S[FITTED_ON][0]
)
CHECKPOINT_BYTES_PER_S: Final = 55e9 / 8
"""What checkpoint traffic gets of the 100 Gbit/s link: fitted to that model's 4.4 s."""
COPY_SHARE: Final = 1.45
"""Rate of copies to CPU memory by that of checkpoint traffic; fitted to Fig. 16's 45.0 s."""
SPAN_SHARES: Final = (1.6 / 5.7, *[1.025 / 5.7] * 4)
"""How idle time is cut into spans: 1.6 s in the largest is the paper's, five are fitted."""


def origin_of(name: str) -> Origin:
    """Return whether the model's times were put in, or follow from another one's."""
    return "fitted" if name == FITTED_ON else "model"


def workload(name: str, *, iteration_s: float, idle_s: float) -> Workload:
    """Return a job of these times."""
    return Workload(
        nodes=NODES,
        params=MODELS[name].params,
        iteration_s=iteration_s,
        idle_spans_s=tuple(share * idle_s for share in SPAN_SHARES),
        network_bytes_per_s=CHECKPOINT_BYTES_PER_S,
        copy_bytes_per_s=COPY_SHARE * CHECKPOINT_BYTES_PER_S,
        store_bytes_per_s=20e9 / 8,
    )
