"""What a run's owner wants of the root agent, by way of the store: a key for each kind of word.

A word begins with the number of the job that it is for, and goes on with one that rises from word
to word: the same once more is news. Whichever node is root hears it, and a new root hears it again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gemini_lab.node.config import DRAIN_KEY, NONE_COME_KEY
from gemini_lab.recovery.protocol import (
    DrainWanted,
    Happening,
    JobCancelled,
    NoMachineComes,
    ProgressGivenUp,
    ResizeWanted,
    RewindWanted,
    SaveWanted,
)
from gemini_lab.units import LARGEST, most_of

CANCEL_KEY: Final = "cancel"
SAVE_KEY: Final = "save"
GIVE_UP_KEY: Final = "give_up"
REWIND_KEY: Final = "rewind"
RESIZE_KEY: Final = "resize"
MOST_NUMBERS: Final = 4
DIGITS: Final = 19  # of the largest of them
_LENGTHS: Final = {CANCEL_KEY: 1, REWIND_KEY: 4, RESIZE_KEY: 3}
"""How many numbers a word has, by its key; of others two, the job's and its own."""
_RISING: Final = frozenset({SAVE_KEY, GIVE_UP_KEY, REWIND_KEY, RESIZE_KEY})


def new_word(items: Mapping[str, str], job: int, *numbers: int) -> str:
    """A word for this job, whose number is above those in the store's content.

    An owner's clock may have been ahead, and a root agent takes what does not rise for old.
    """
    words = [word for key, word in items.items() if key in _RISING or key.startswith(DRAIN_KEY)]
    told = [numbers_in(word)[1:2] for word in words]
    rising = max([time.time_ns(), *(1 + number for [number] in filter(None, told))])
    return " ".join(map(str, (job, rising, *numbers)))


def numbers_in(word: str) -> list[int]:
    """Return the numbers that a word is made of; none if it is no word of an owner's.

    Whoever can write into the store may have written it: what all ranks compute with is bounded.
    """
    parts = word.split(" ", MOST_NUMBERS)
    if not all(part.isdecimal() and part.isascii() and len(part) <= DIGITS for part in parts):
        return []
    numbers = list(map(int, parts))
    is_one = all(n <= limit for n, limit in zip(numbers, (LARGEST, 2**62, LARGEST), strict=False))
    return numbers if is_one else []


class Words:
    """Hears each word once, in one root agent's time."""

    def __init__(self) -> None:
        self._heard: dict[str, str] = {}  # by key, the word that was heard last
        self._none_come: str | None = None  # that no machine comes; what was said before is old

    def hear(
        self, items: Mapping[str, str], *, job: int | None, at_s: float
    ) -> Iterator[Happening]:
        """What is new for this job in the store's content."""
        if (said := self._news(items, CANCEL_KEY, job)) is not None and job is not None:
            yield JobCancelled(at_s=at_s, number=job)
        if self._news(items, SAVE_KEY, job):
            yield SaveWanted()
        if said := self._news(items, GIVE_UP_KEY, job):
            yield ProgressGivenUp(at_s=at_s, number=said[0])
        if said := self._news(items, REWIND_KEY, job):
            number, steps, skip = said
            yield RewindWanted(number=number, steps=steps, skip=bool(skip))
        if said := self._news(items, RESIZE_KEY, job):
            number, nodes = said
            if 1 <= nodes <= most_of("nodes"):
                yield ResizeWanted(at_s=at_s, number=number, nodes=nodes)
        word = items.get(NONE_COME_KEY, "")
        if self._none_come not in {None, word}:
            yield NoMachineComes(at_s=at_s)
        self._none_come = word
        yield from self._drains(items, job=job, at_s=at_s)

    def _drains(
        self, items: Mapping[str, str], *, job: int | None, at_s: float
    ) -> Iterator[Happening]:
        """Nodes that are to go, in the order in which that was said."""
        said = {key: self._news(items, key, job) for key in items if key.startswith(DRAIN_KEY)}
        numbers = {key: numbers[0] for key, numbers in said.items() if numbers}
        for key in sorted(numbers, key=lambda key: numbers[key]):
            node = key.removeprefix(DRAIN_KEY)
            yield DrainWanted(at_s=at_s, node=node, number=numbers[key])

    def _news(self, items: Mapping[str, str], key: str, job: int | None) -> Sequence[int] | None:
        """The numbers that follow the job's in a word that was not heard yet; `None`: no such."""
        word = items.get(key)
        if word is None or word == self._heard.get(key):
            return None
        meant = numbers_in(word)
        if len(meant) != _LENGTHS.get(key, 2) or meant[0] != job:
            return None
        self._heard[key] = word
        return meant[1:]
