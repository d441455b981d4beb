"""Names and what they mean, as text for a terminal of 80 columns."""

import textwrap
from collections.abc import Mapping
from typing import Final

WIDTH: Final = 80
APART: Final = "  "


def columns(meanings: Mapping[str, str]) -> str:
    """Each name with its meaning, which goes on below itself where a line does not take it."""
    indent = len(APART) * 2 + max(map(len, meanings), default=0)
    return "\n".join(
        line
        for name, text in meanings.items()
        for line in textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"{APART}{name}".ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
    )
