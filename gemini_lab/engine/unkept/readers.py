"""Who reads a loader's iterator: what of Python's own stands between it and the script's loop.

`itertools.cycle` keeps an epoch's batches by itself; `enumerate`, `islice`, and `zip` with a range,
count from where they were made. All may read it through `map`, a generator such as a progress
bar's, or one another.
"""

import gc
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from types import FrameType, GeneratorType
from typing import Final

from gemini_lab.engine.unkept.liveness import counted_by

_BETWEEN: Final = (map, filter, zip, enumerate, chain, cycle, islice, GeneratorType, tuple)
"""Some hold in a tuple what they read."""
_RANGES: Final = (type(iter(range(1))), type(iter(range(1 << 64))))
_DEEPEST: Final = 6


def is_cycled(iterator: object) -> bool:
    """Whether `cycle` reads an iterator, however many stand between them."""
    return any(type(one) is cycle for one in _readers(iterator))


def is_enumerated(iterator: object) -> bool:
    """Whether `enumerate` reads an iterator, however many stand between them."""
    return any(type(one) is enumerate for one in _readers(iterator))


def is_cut_short(iterator: object) -> bool:
    """Whether `islice` takes a number of batches of it, or `zip` as many as a range has."""
    return any(
        type(one) is islice
        or (type(one) is zip and any(type(part) in _RANGES for part in _parts(one)))
        for one in _readers(iterator)
    )


def _readers(iterator: object) -> list[object]:
    """What of Python's own reads an iterator, and what reads that."""
    if iterator is None:
        return []
    found, waiting, known = list[object](), [iterator], {id(iterator)}
    for _ in range(_DEEPEST):
        holders = [one for one in gc.get_referrers(*waiting) if type(one) in _BETWEEN]
        waiting = [one for one in holders if id(one) not in known]
        known |= {id(one) for one in waiting}
        found += waiting
        if not waiting:
            break
    return found


def _parts(reader: object) -> Iterator[object]:
    """What it reads."""
    for one in gc.get_referents(reader):
        yield from one if type(one) is tuple else [one]


def counters(frames: Sequence[FrameType]) -> list[str]:
    """Variables in which loops that ask for their next value count, and by which they decide."""
    found = [(frame.f_code, counted_by(frame.f_code, frame.f_lasti)) for frame in frames]
    return [
        f"{name!r}" if code.co_name == "<module>" else f"{name!r} of {code.co_qualname}()"
        for code, name in found
        if name is not None
    ]
