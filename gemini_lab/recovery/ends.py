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
from gemini_lab.seats import listed

WAYS: Final[dict[End, str]] = {
    "data": "has no batch left",
    "epoch": "has come to the end of its epoch",
    "loop": "has left its loop",
    "script": "has ended its script",
}
WAY_OUT: Final = (
    "have every rank do the same number of iterations: as many batches for each (drop_last=True, a "
    "DistributedSampler), and decide together where a loop or the script ends"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The ranks that make no progress, as they are seen."""

    node_of: Callable[[int], str]  # where a rank runs
    # What each does, and where in the script.
    words: Mapping[int, str] = field(default_factory=dict)
    in_step: Collection[int] = ()  # those that compute an iteration
    waiting: Collection[int] = ()  # those that have waited in a collective for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Ranks that are not in the same iteration any more."""

    ended: tuple[int, ...]  # those that came to an end
    iteration: int  # the newest that the first of them has done
    behind: tuple[int, ...]  # those that have begun another one
    what: End  # what is over
    # Whether these ranks will not come to where the others are, which are in their loops: after its
    # loop a script may do with its model as it likes.
    is_certain: bool
    seen: str  # all that in words

    @property
    def comes_again(self) -> bool:
        """Whether another start would come to the same: the ranks' data are of unequal length."""
        return self.what == "epoch"


class RankEnds:
    """The position of each rank, and what of it is over."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._over: dict[int, EndReached] = {}
        self._left: set[int] = set()  # who has left its loop, and trained no more

    @property
    def are_any(self) -> bool:
        """Whether anything of a rank is over."""
        return bool(self._over)

    def restart(self, ranks: Iterable[int], *, iteration: int) -> None:
        """All ranks begin, after `iteration`."""
        self._done = dict.fromkeys(ranks, iteration)
        self._begun, self._over = {}, {}
        self._left.clear()

    def hear(self, said: EndReached) -> None:
        """A rank has come to an end."""
        self._done[said.rank] = said.iteration
        if said.what in {"break", "loop"}:
            self._left.add(said.rank)
        if said.what != "break":
            self._over[said.rank] = said

    def finish(self, rank: int) -> None:
        """A rank's script ended."""
        if (done := self._done.get(rank)) is not None:  # else another root agent heard of it
            self.hear(EndReached(rank=rank, epoch=0, iteration=done, what="script"))

    def begin(self, rank: int, iteration: int) -> None:
        """A rank has begun an iteration: whatever was over before, it trains."""
        self._begun[rank] = iteration
        self._over.pop(rank, None)

    def end(self, rank: int, iteration: int) -> None:
        """A rank has done an iteration."""
        self.begin(rank, iteration)
        self._done[rank] = iteration
        self._left.discard(rank)

    def apart(self, places: Places) -> Apart | None:
        """Return which ranks came to an end while others train on; `None` if none did.

        Args:
            places: What is seen of the ranks.
        """
        training = self._done.keys() - self._over.keys()
        begun = {rank: self._done[rank] + 1 for rank in places.in_step if rank in training}
        begun |= self._begun
        for what in reversed(WAYS):
            over = [one for _, one in sorted(self._over.items()) if one.what == what]
            if not over:
                continue
            least = min(one.iteration for one in over)
            ended = [one.rank for one in over if one.iteration == least]
            behind = [rank for rank, number in sorted(begun.items()) if number > least]
            is_certain = self._is_certain(what, ended, behind)
            if what == "script" and not behind:
                behind, is_certain = self._left_alone(places), True
            if behind:
                seen = self._seen(ended, behind, WAYS[what], begun, places)
                return Apart(
                    ended=tuple(ended),
                    iteration=least,
                    behind=tuple(behind),
                    what=what,
                    is_certain=is_certain,
                    seen=seen,
                )
        return None

    def gone(self, rank: int, places: Places) -> Apart:
        """Return what is to be said of a rank whose process ended well before its script did."""
        behind = [other for other in self._done if other != rank and other not in self._over]
        return Apart(
            ended=(rank,),
            iteration=self._done.get(rank, 0),
            behind=tuple(behind),
            what="script",
            is_certain=True,
            seen=self._seen([rank], behind, "has ended its process", self._begun, places),
        )

    def _seen(
        self,
        ended: Sequence[int],
        behind: Sequence[int],
        way: str,
        begun: Mapping[int, int],
        places: Places,
    ) -> str:
        least = self._done.get(ended[0], 0)
        seated = listed([f"{rank} on {places.node_of(rank)}" for rank in ended])
        has = f"rank {seated} {way}" if len(ended) == 1 else f"each of ranks {seated} {way}"
        when = f"after iteration {least}" if least else "before any iteration"
        others = listed([self._told(rank, begun, places) for rank in behind], "; ")
        return f"{has} {when}" + (f", while {others}" if others else "")

    def _is_certain(self, what: End, ended: Sequence[int], behind: Sequence[int]) -> bool:
        """Whether ranks that ended left a loop in which the others still are."""
        has_loop = what == "epoch" or any(rank in self._left for rank in ended)
        return has_loop and not any(rank in self._left for rank in behind)

    def _left_alone(self, places: Places) -> list[int]:
        """Return who waits in a collective for ranks whose scripts are over, if all others do."""
        others = [rank for rank in self._done if rank not in self._over]
        return others if all(rank in places.waiting for rank in others) else []

    def _told(self, rank: int, begun: Mapping[int, int], places: Places) -> str:
        done, place = self._done.get(rank, 0), places.words.get(rank, "")
        number = begun.get(rank, done)
        count = f"{done} iteration{'s' * (done != 1)}"
        is_in = f"is in iteration {number}" if number > done else f"has done {count}"
        return f"rank {rank} {is_in}" + (f" ({place})" if place else "")
