"""The last lines of a worker's output, made readable: the end matters most."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.display import readable

LINES: Final = 12
"""Of a worker's last lines, those that are shown."""
LONGEST: Final = 300
"""Characters of a line that are shown; a traceback's lines are shorter."""
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)(: |$)")
_FRAME: Final = re.compile(r'\s+File "(?!.*(site-packages|lib/python|<frozen)).*", line \d+')
"""A line of a traceback that names a place in a file of the user's own."""


def error_line(output: Sequence[str]) -> str:
    """The line of a worker's output that says what went wrong.

    That is the last one that looks like the end of a traceback (`ValueError: ...`), else the last
    one with anything on it; empty where nothing was printed.
    """
    said = [line for line in map(_plain, output) if line]
    raised = [line for line in said if _RAISED.match(line)]
    return (raised or said or [""])[-1]


def last_lines(output: Sequence[str], most: int = LINES) -> Iterator[str]:
    """The end of a worker's output, without colours and control characters, in order.

    Where a traceback ends deep in a library, its last frame in the user's own files comes first.
    """
    said = [_plain(line) for line in output]
    while said and not said[-1]:
        said.pop()
    before = len(said) - most
    if before > 0:
        yield f"... {before} line{'' if before == 1 else 's'} before"
        own = max((n for n, line in enumerate(said) if _FRAME.match(line)), default=len(said))
        if own < before:
            yield from (*said[own : min(own + 2, before)], "...")
    yield from said[-most:]


def _plain(line: str) -> str:
    text = readable(line).rstrip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
