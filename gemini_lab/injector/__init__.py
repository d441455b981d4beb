"""Stage 4: what breaks, where and when."""

from gemini_lab.injector.failures import (
    FAILURES,
    BitFlip,
    Failure,
    LinkCut,
    NodeFreeze,
    NodeLoss,
    NodesLoss,
    RackLoss,
    RootLoss,
    StoreFull,
    WorkerCrash,
    WorkerHang,
    WrongSums,
    read_failure,
)
from gemini_lab.injector.orders import Cast, Order, orders
from gemini_lab.injector.scenario import Planned, Scenario

__all__ = [
    "FAILURES",
    "BitFlip",
    "Cast",
    "Failure",
    "LinkCut",
    "NodeFreeze",
    "NodeLoss",
    "NodesLoss",
    "Order",
    "Planned",
    "RackLoss",
    "RootLoss",
    "Scenario",
    "StoreFull",
    "WorkerCrash",
    "WorkerHang",
    "WrongSums",
    "orders",
    "read_failure",
]
