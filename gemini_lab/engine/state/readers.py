"""Who reads a loader's iterator: what of Python's own stands between it and the script's loop.

`itertools.cycle` keeps an epoch's batches by itself, and `enumerate` counts from where it was made.
Both may read it through `map`, a generator such as a progress bar's, or one another.
"""

import gc
from collections.abc import Sequence
from itertools import chain, cycle, islice
from types import FrameType, GeneratorType
from typing import Final

from gemini_lab.engine.state.liveness import counted_by

_BETWEEN: Final = (map, filter, zip, enumerate, chain, cycle, islice, GeneratorType, tuple)
"""Some hold in a tuple what they read."""
_DEEPEST: Final = 6


def is_read_by(kind: type, iterator: object) -> bool:
    """Whether one of that kind reads an iterator, however many stand between them."""
    waiting, known = [iterator], {id(iterator)}
    for _ in range(_DEEPEST):
        holders = [one for one in gc.get_referrers(*waiting) if type(one) in _BETWEEN]
        if any(type(one) is kind for one in holders):
            return True
        waiting = [one for one in holders if id(one) not in known]
        known |= {id(one) for one in waiting}
        if not waiting:
            break
    return False


def counters(frames: Sequence[FrameType]) -> list[str]:
    """Variables in which loops that ask for their next value count, and by which they decide."""
    found = [(frame.f_code, counted_by(frame.f_code, frame.f_lasti)) for frame in frames]
    return [
        f"{name!r}" if code.co_name == "<module>" else f"{name!r} of {code.co_qualname}()"
        for code, name in found
        if name is not None
    ]
