"""In-memory checkpoints for distributed training, after GEMINI (SOSP '23).

The names below load when they are first used, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemini_lab.job import Job
    from gemini_lab.lab import Lab
    from gemini_lab.placement import Placement, plan_placement
    from gemini_lab.protection import protect
    from gemini_lab.run import Run
    from gemini_lab.settings import Settings

_HOMES = {
    "Job": "gemini_lab.job",
    "Lab": "gemini_lab.lab",
    "Placement": "gemini_lab.placement",
    "Run": "gemini_lab.run",
    "Settings": "gemini_lab.settings",
    "plan_placement": "gemini_lab.placement",
    "protect": "gemini_lab.protection",
}

__all__ = ["Job", "Lab", "Placement", "Run", "Settings", "plan_placement", "protect"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gemini_lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
