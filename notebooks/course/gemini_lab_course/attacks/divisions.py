"""A division of a version under attack: each piece of state once, in equal parts on its holders."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from numbers import Integral
from typing import Final

from gemini_lab_course.attacks.outcome import BesideOurs, StageFault, counted
from gemini_lab_course.attacks.search import Attacked, NotOneError

SIZES: Final = {"a": 12, "b": 7, "c": 1}
"""Pieces and their bytes: one that divides, one that leaves a rest, and one of a single byte."""
MOST_RANKS: Final = 4
FEW: Final = 3
"""So many ranks at most have all the pieces."""
Division = tuple[Mapping[str, int], ...]
"""For each rank the bytes of each piece that a version keeps there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionCase:
    """Ranks and the pieces that each holds; a piece on several ranks is the same there.

    Attributes:
        held: For each rank the bytes of its pieces.
    """

    held: Division

    @property
    def arguments(self) -> dict[str, object]:
        """Copies, which a function may change."""
        return {"held": [dict(pieces) for pieces in self.held]}

    @property
    def sizes(self) -> dict[str, int]:
        """All pieces, once."""
        return {piece: size for pieces in self.held for piece, size in pieces.items()}

    def holders(self, piece: str) -> list[int]:
        """Return the ranks that hold a piece."""
        return [rank for rank, pieces in enumerate(self.held) if piece in pieces]

    def __str__(self) -> str:
        told = (
            f"{piece} ({counted(size, 'byte')}) on {_named(self.holders(piece))}"
            for piece, size in self.sizes.items()
        )
        return f"{counted(len(self.held), 'rank')}, {', '.join(told)}"


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def cases() -> Iterator[DivisionCase]:
    """Few ranks first, then few pieces."""
    for ranks in range(1, MOST_RANKS + 1):
        every = [
            group for size in range(1, ranks + 1) for group in combinations(range(ranks), size)
        ]
        for pieces in range(1, len(SIZES) + (ranks <= FEW)):
            for chosen in product(every, repeat=pieces):
                placed = list(zip(SIZES, chosen, strict=False))
                held = (
                    {piece: SIZES[piece] for piece, group in placed if rank in group}
                    for rank in range(ranks)
                )
                yield DivisionCase(held=tuple(held))


def divided(held: Sequence[Mapping[str, int]]) -> Division:
    """Return the package's own division; what does not divide goes to the first holders."""
    case = DivisionCase(held=tuple(held))
    kept: list[dict[str, int]] = [{} for _ in held]
    for piece, size in case.sizes.items():
        holders = case.holders(piece)
        for place, rank in enumerate(holders):
            kept[rank][piece] = size // len(holders) + (place < size % len(holders))
    return tuple(kept)


def read(answer: object) -> Division:
    """Return a division.

    Raises:
        NotOneError: The answer is none.
    """
    words = "a list with a dictionary for each rank, from its pieces to the bytes kept there"
    if not isinstance(answer, (list, tuple)) or not all(isinstance(one, dict) for one in answer):
        raise NotOneError(f"the answer has to be {words}")
    for kept in answer:
        for piece, size in kept.items():
            if not isinstance(size, Integral) or isinstance(size, bool) or size < 0:
                raise NotOneError(f"a number of bytes is whole, and {piece!r} has {size!r:.40}")
    return tuple({piece: int(size) for piece, size in kept.items() if size} for kept in answer)


def fault(case: DivisionCase, answer: Division) -> StageFault | None:
    """Return what is wrong with a division: first what loses state, then what costs."""
    if len(answer) != len(case.held):
        ranks = counted(len(case.held), "rank")
        return StageFault(why=f"the case has {ranks}, and the answer has {len(answer)}")
    for rank, kept in enumerate(answer):
        strange = [piece for piece in kept if piece not in case.held[rank]]
        if strange:
            return StageFault(why=f"rank {rank} is to keep {strange[0]!r:.40}, and has none of it")
    for piece, size in case.sizes.items():
        holders = case.holders(piece)
        parts = [answer[rank].get(piece, 0) for rank in holders]
        if sum(parts) != size:
            why = f"{piece} has {counted(size, 'byte')}, and {sum(parts)} are kept in all"
            return StageFault(why=why, shards=tuple(holders))
        if max(parts) - min(parts) > 1:
            least, most = holders[parts.index(min(parts))], holders[parts.index(max(parts))]
            why = f"of {piece} rank {most} keeps {max(parts)}, and rank {least} only {min(parts)}"
            return StageFault(why=why, shards=tuple(holders))
    return None


def figures(mine: Callable[[DivisionCase], Division | None]) -> tuple[BesideOurs, ...]:
    """Return what the largest rank keeps of a hundred bytes that several ranks hold alike."""
    found = []
    for ranks in (1, 4):
        case = DivisionCase(held=tuple({"a": 100} for _ in range(ranks)))
        kept = mine(case)
        if kept is not None:
            most, ours = (max(sum(one.values()) for one in d) for d in (kept, divided(case.held)))
            what = f"most bytes of a rank, 100 on {counted(ranks, 'rank')}"
            found.append(
                BesideOurs(what=what, yours=most, reference=ours, optimum=-(-100 // ranks))
            )
    return tuple(found)


DIVISION: Final = Attacked(
    name="division",
    scope=f"up to {MOST_RANKS} ranks and {len(SIZES)} pieces",
    read=read,
    fault=fault,
    figures=figures,
)
"""The stage as it is attacked."""
