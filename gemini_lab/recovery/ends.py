"""Ranks that come to an end while others train on: of which iteration each is, and what is over.

All ranks do every iteration together. So a rank whose loop, epoch or script is over after
iteration k, while another one has begun k + 1, will not be where that one waits for it. At the
ordinary end all have done the same iterations, and whoever is still busy begins no other one.

That a rank's data were over once proves nothing: some scripts begin the next pass, each rank at its
own time. Where ranks stand still or lost their peers in a collective, it tells why.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.recovery.messages import End, EndReached

WAYS: Final[Mapping[End, str]] = {
    "data": "has no batch left",
    "epoch": "has come to the end of its epoch",
    "loop": "has left its loop",
    "script": "has ended its script",
}
PLURAL: Final[Mapping[End, str]] = {
    "data": "have no batch left",
    "epoch": "have come to the end of their epoch",
    "loop": "have left their loop",
    "script": "have ended their scripts",
}
LISTED: Final = 8
WAY_OUT: Final = (
    "have every rank do the same number of iterations: as many batches for each (drop_last=True, a "
    "DistributedSampler), and decide together where a loop or the script ends"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What is seen of ranks that do not get on.

    Attributes:
        words: What each does, and where in the script.
        in_step: Those that compute an iteration.
        waiting: Those that have waited in a collective for long.
    """

    words: Mapping[int, str] = field(default_factory=dict)
    in_step: Collection[int] = ()
    waiting: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Ranks that are not in the same iteration any more.

    Attributes:
        ended: Those that came to an end.
        iteration: The newest that the first of them has done.
        behind: Those that have begun another one.
        what: What is over.
        seen: All that in words.
    """

    ended: tuple[int, ...]
    iteration: int
    behind: tuple[int, ...]
    what: End
    seen: str

    @property
    def is_certain(self) -> bool:
        """Whether these ranks will not come to where the others are."""
        return self.what != "data"

    @property
    def comes_again(self) -> bool:
        """Whether another start would come to the same: the ranks' data are of unequal length."""
        return self.what == "epoch"


class Ends:
    """Where each rank is, and what of it is over."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._over: dict[int, EndReached] = {}

    def restart(self, ranks: Iterable[int], *, iteration: int) -> None:
        """All ranks begin, after `iteration`."""
        self._done = dict.fromkeys(ranks, iteration)
        self._begun, self._over = {}, {}

    def hear(self, said: EndReached) -> None:
        """A rank has come to an end."""
        self._over[said.rank] = said
        self._done[said.rank] = said.iteration

    def finish(self, rank: int) -> None:
        """A rank's script ended, or its process with exit status 0."""
        done = self._done.get(rank, 0)
        self.hear(EndReached(rank=rank, epoch=0, iteration=done, what="script"))

    def begin(self, rank: int, iteration: int) -> None:
        """A rank has begun an iteration: whatever was over before, it trains."""
        self._begun[rank] = iteration
        self._over.pop(rank, None)

    def end(self, rank: int, iteration: int) -> None:
        """A rank has done an iteration."""
        self.begin(rank, iteration)
        self._done[rank] = iteration

    def apart(
        self, places: Places, nodes: Callable[[int], str], *, gone: int | None = None
    ) -> Apart | None:
        """Return which ranks came to an end while others train on; `None` if none did.

        Args:
            places: What is seen of the ranks.
            nodes: Where a rank runs.
            gone: A rank whose process ended well, and not where its script ends.
        """
        begun = {rank: self._done[rank] + 1 for rank in places.in_step if rank in self._done}
        begun |= self._begun
        if gone is not None:
            self.finish(gone)
        for what in reversed(WAYS):
            over = [one for _, one in sorted(self._over.items()) if one.what == what]
            least = min((one.iteration for one in over), default=0)
            ended = [one.rank for one in over if one.iteration == least]
            behind = [rank for rank, number in sorted(begun.items()) if over and number > least]
            if over and what == "script" and not behind:
                behind = self._left_alone(places)
            if gone is not None:
                ended, least = [gone], self._done.get(gone, 0)
                behind = [rank for rank in self._done if rank not in self._over]
            if behind or gone is not None:
                seated = listed([f"{rank} on {nodes(rank)}" for rank in ended])
                has, word = (WAYS[what], "rank") if len(ended) == 1 else (PLURAL[what], "ranks")
                others = listed([self._told(rank, begun, places) for rank in behind], "; ")
                seen = f"{word} {seated} {has} after iteration {least}"
                return Apart(
                    ended=tuple(ended),
                    iteration=least,
                    behind=tuple(behind),
                    what=what,
                    seen=f"{seen}, while {others}" if others else seen,
                )
        return None

    def _left_alone(self, places: Places) -> list[int]:
        """Return who waits in a collective for ranks whose scripts are over, if all others do."""
        others = [rank for rank in self._done if rank not in self._over]
        return others if all(rank in places.waiting for rank in others) else []

    def _told(self, rank: int, begun: Mapping[int, int], places: Places) -> str:
        done, place = self._done.get(rank, 0), places.words.get(rank, "")
        number = begun.get(rank, done)
        is_in = f"is in iteration {number}" if number > done else f"has done {number} iterations"
        return f"rank {rank} {is_in}" + (f" ({place})" if place else "")


def listed(names: Sequence[str], comma: str = ", ") -> str:
    """Return the first few of these, and how many more there are."""
    more = len(names) - LISTED
    return comma.join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
