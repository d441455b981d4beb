"""How far something that takes minutes is."""

import sys
import time
from typing import Final

from gemini_lab.units import format_seconds

_BEGAN_S: Final = time.monotonic()


def say(what: str) -> None:
    """Tell it on stderr, with the time since this process began to measure."""
    text = f"{format_seconds(time.monotonic() - _BEGAN_S)}: {what}"
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for whoever waits
