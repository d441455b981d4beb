"""What really is so in a modelled world, whatever its agents believe; and what must hold of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gemini_lab.shard.lineage import Lineage


class BrokenError(AssertionError):
    """Something that must always hold does not."""


@dataclass(slots=True)
class HeldVersion:
    """One buffer of a slab: a copy that is whole once it is committed.

    Attributes:
        state: The history of updates that made it, as `Histories` numbers them.
        is_good: Whether its bytes match their checksums.
        ranks: How many ranks there are where it was made.
    """

    shard: int
    version: int
    lineage: Lineage
    state: int
    is_whole: bool = False
    is_good: bool = True
    ranks: int = 0


class Histories:
    """Model states as the chains of updates that made them.

    An update in another epoch makes another state of the same version: real training would repeat
    it bit by bit, but here two histories must be told apart wherever they are mixed. After a rewind
    it does so in truth, with other batches.
    """

    def __init__(self) -> None:
        self.version = [0]
        self._after: dict[tuple[int, int, int], int] = {}
        self._labels: dict[tuple[int, Lineage], int] = {}

    def update(self, state: int, epoch: int, rewinds: int) -> int:
        """Return the state after one update of `state` in `epoch`, after so many rewinds in it."""
        made = self._after.get((state, epoch, rewinds))
        if made is None:
            made = self._after[state, epoch, rewinds] = len(self.version)
            self.version.append(self.version[state] + 1)
        return made

    def check_label(self, copy: HeldVersion) -> None:
        """Check that a version and lineage name one state, lest copies of two be combined."""
        known = self._labels.setdefault((copy.version, copy.lineage), copy.state)
        if known != copy.state:
            raise BrokenError(f"{copy} bears the name of another state, {known}")
        if self.version[copy.state] != copy.version:
            raise BrokenError(f"{copy} is no version {copy.version}")


@dataclass(slots=True)
class Safety:
    """Whether one whole version exists at every instant, as long as the placement promises it.

    Attributes:
        members: Who sat where when all holders last had one whole version.
        holders: By shard, the positions that keep it.
        lost: Positions whose memory has gone since then.
        is_excused: Whether more went wrong since than the placement survives.
    """

    members: tuple[str | None, ...] = ()
    holders: Sequence[Sequence[int]] = ()
    lost: set[int] = field(default_factory=set)
    is_excused: bool = True

    def note_full(self, members: tuple[str | None, ...], holders: Sequence[Sequence[int]]) -> None:
        """Note that every holder has the same version now."""
        self.members, self.holders = members, holders
        self.lost, self.is_excused = set(), False

    def note_placed(self, holders: Sequence[Sequence[int]]) -> None:
        """Other positions keep shards from now on: until all have them, those count that stay."""
        if len(holders) == len(self.holders):
            both = zip(self.holders, holders, strict=True)
            self.holders = [[one for one in old if one in new] for old, new in both]

    def note_dead(self, node: str) -> None:
        """Forget a node's memory."""
        if node in self.members:
            self.lost.add(self.members.index(node))
        if any(set(positions) <= self.lost for positions in self.holders):
            self.is_excused = True


def whole_states(copies: Iterable[HeldVersion]) -> set[int]:
    """Return the states of which every shard is among these copies."""
    found: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for copy in copies:
        if copy.is_whole and copy.is_good:
            found[copy.state, copy.ranks].add(copy.shard)
    return {state for (state, ranks), have in found.items() if len(have) == ranks}
