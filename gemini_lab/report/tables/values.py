"""What the views draw: one snapshot of a run.

`gemini_lab.report.tables.tables_of` makes a `Tables`; a view takes the one part that it draws and
counts nothing.
"""

from dataclasses import dataclass

from gemini_lab.report.tables.now import Memory, Replicas, Status
from gemini_lab.report.tables.past import Curves, Iterations, Recoveries, Spent, Wasted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One snapshot; each view draws one part of it."""

    status: Status
    curves: Curves
    spent: Spent
    replicas: Replicas
    memory: Memory
    recoveries: Recoveries
    iterations: Iterations
    wasted: Wasted
