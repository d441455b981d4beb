"""In-memory checkpoints for distributed training, after GEMINI (SOSP '23).

The names below load when they are first used, so that importing the package costs nothing.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gemini_lab.engine.protection import protect
    from gemini_lab.injector import (
        BitFlip,
        LinkCut,
        NodeFreeze,
        NodeLoss,
        NodesLoss,
        RackLoss,
        RootLoss,
        Scenario,
        StoreFull,
        WorkerCrash,
        WorkerHang,
    )
    from gemini_lab.job import Job
    from gemini_lab.lab.lab import Lab
    from gemini_lab.lab.run import Run
    from gemini_lab.placement import Placement, plan_placement
    from gemini_lab.report import RunReport
    from gemini_lab.settings import Settings
    from gemini_lab.simulator import plan

_HOMES: Final = {
    "BitFlip": "gemini_lab.injector",
    "Job": "gemini_lab.job",
    "Lab": "gemini_lab.lab.lab",
    "LinkCut": "gemini_lab.injector",
    "NodeFreeze": "gemini_lab.injector",
    "NodeLoss": "gemini_lab.injector",
    "NodesLoss": "gemini_lab.injector",
    "Placement": "gemini_lab.placement",
    "RackLoss": "gemini_lab.injector",
    "RootLoss": "gemini_lab.injector",
    "Run": "gemini_lab.lab.run",
    "RunReport": "gemini_lab.report",
    "Scenario": "gemini_lab.injector",
    "Settings": "gemini_lab.settings",
    "StoreFull": "gemini_lab.injector",
    "WorkerCrash": "gemini_lab.injector",
    "WorkerHang": "gemini_lab.injector",
    "plan": "gemini_lab.simulator",
    "plan_placement": "gemini_lab.placement",
    "protect": "gemini_lab.engine.protection",
}

__all__ = [
    "BitFlip",
    "Job",
    "Lab",
    "LinkCut",
    "NodeFreeze",
    "NodeLoss",
    "NodesLoss",
    "Placement",
    "RackLoss",
    "RootLoss",
    "Run",
    "RunReport",
    "Scenario",
    "Settings",
    "StoreFull",
    "WorkerCrash",
    "WorkerHang",
    "plan",
    "plan_placement",
    "protect",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gemini_lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext gemini_lab` calls: the magics `%gemini` and `%%gemini`."""
    from gemini_lab.display import add_magics  # noqa: PLC0415 - IPython is optional

    add_magics(shell)


if "IPython" in sys.modules:
    from gemini_lab.display import show_in_ipython

    show_in_ipython()
