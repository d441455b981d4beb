"""Marks where a run failed, or was moved on purpose, over what is drawn by iterations."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gemini_lab.report.tables.past import Mark
from gemini_lab_widgets.views.palette import GREY, RED, shown

COLUMNS: Final = "x text colour fade"
_FEW: Final = 12
"""So many lines hide nothing; more are paler, as what they cross is what people look at."""
_PALEST: Final = 0.15


def columns(marks: Sequence[Mark]) -> dict[str, list[Any]]:
    """What is drawn of them, by column: red for failures, grey for what was asked for."""
    fade = min(1.0, max(_PALEST, _FEW / max(1, len(marks))))
    return {
        "x": [mark.iteration for mark in marks],
        "text": [shown(mark.text, longest=80) for mark in marks],
        "colour": [GREY if mark.is_planned else RED for mark in marks],
        "fade": [fade] * len(marks),
    }


def last(marks: Sequence[Mark], iteration: int) -> int:
    """The last iteration to draw: `iteration`, or a mark's where training came no further."""
    return max([iteration, *(mark.iteration for mark in marks)])


def words(marks: Sequence[Mark]) -> str:
    """How many there are: `2 failures and 1 planned move`."""
    count = Counter(mark.is_planned for mark in marks)
    said = [
        f"{count[is_planned]:,} {one}{'s' if count[is_planned] != 1 else ''}"
        for is_planned, one in ((False, "failure"), (True, "planned move"))
        if count[is_planned]
    ]
    return " and ".join(said) or "no failures"
