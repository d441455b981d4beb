"""Stage 4: what breaks, where and when."""

from gemini_lab.injector.failures import (
    FAILURES,
    BitFlip,
    Failure,
    LinkCut,
    NodeLoss,
    NodesLoss,
    RackLoss,
    RootLoss,
    StoreFull,
    WorkerCrash,
    WorkerHang,
)
from gemini_lab.injector.scenario import Planned, Scenario

__all__ = [
    "FAILURES",
    "BitFlip",
    "Failure",
    "LinkCut",
    "NodeLoss",
    "NodesLoss",
    "Planned",
    "RackLoss",
    "RootLoss",
    "Scenario",
    "StoreFull",
    "WorkerCrash",
    "WorkerHang",
]
