"""The small state after another world size: one rule for each kind of value.

What all ranks had alike, every rank has. Of what differs, a rank has its own if there was a rank of
its number; else what is drawn is drawn again, and anything else is refused. If tensor or pipeline
parallel ranks hold different tensors, each data-parallel group inherits from its own.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import xxhash

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.random_states import seeded_random_states
from gemini_lab.engine.rank_agreement import gather
from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import encode
from gemini_lab.shard.layout import ShardLayout

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DataParallelGroups:
    """The data-parallel groups of a job: the ranks of one hold, or shard, the same tensors."""

    groups: tuple[tuple[int, ...], ...]  # their ranks, in order of the first

    @classmethod
    def agreed(cls, own: Collection[int]) -> "DataParallelGroups | None":
        """Return the groups of all ranks, which call it together.

        Args:
            own: The ranks of this rank's group; empty if it does not know.

        Returns:
            `None` if not every rank is in one group, and these are of one length.
        """
        size = max(size for (size,) in gather([len(own)]))
        if not size:
            return None
        told = gather([*sorted(own), *[-1] * (size - len(own))])
        groups = {tuple(group) for group in told}
        members = sorted(rank for group in groups for rank in group)
        return cls(tuple(sorted(groups))) if members == [*range(len(told))] else None

    @property
    def model_parallel_size(self) -> int:
        return len(self.groups)

    def model_parallel_rank(self, rank: int) -> int:
        """Return the number of a rank's group."""
        return next(number for number, group in enumerate(self.groups) if rank in group)

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of a rank's group."""
        return self.groups[self.model_parallel_rank(rank)]

    def part(self, holders: Collection[int]) -> int:
        """Return the part of a tensor that ranks hold: the number of the first of their groups."""
        return min(map(self.model_parallel_rank, holders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """A rank that goes on from a version of another number of ranks.

    All numbers of ranks are those of its data-parallel group.
    """

    rank: int
    ranks: int  # how many there are now
    layouts: Sequence[ShardLayout]  # of the version's shards, by their ranks
    model_parallel_size: int = 1  # how many such groups there are
    # What could not be taken over as it was, for the script's author.
    remarks: list[str] = field(default_factory=list)

    @property
    def ranks_then(self) -> int:
        return len(self.layouts)

    @property
    def _start_as_then(self) -> str:
        return f"start it with {self.ranks_then * self.model_parallel_size} ranks"

    @property
    def _word(self) -> str:
        return "data-parallel rank" if self.model_parallel_size > 1 else "rank"

    def remark(self, text: str) -> None:
        """Keep something that the script's author should know, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def refusal(self, reason: str) -> ConfigError:
        then, now = (n * self.model_parallel_size for n in (self.ranks_then, self.ranks))
        return ConfigError(f"a version of {then} ranks cannot be loaded by {now}: {reason}")

    def shared(self, values: Sequence[Value], what: str, *, way_out: str = "") -> Value:
        """Return what all ranks had alike.

        Raises:
            ConfigError: They had not.
        """
        if not are_alike(values):
            way_out = way_out or self._start_as_then
            raise self.refusal(f"{what} differs between its ranks; {way_out}")
        return values[0]

    def own(self, values: Sequence[Value], what: str) -> Value:
        """Return what the rank of this number had, if ranks differ.

        Raises:
            ConfigError: There was none.
        """
        if are_alike(values):
            return values[0]
        if self.ranks > self.ranks_then:
            raise self.refusal(
                f"{what} differs between its ranks, and new ranks have none; "
                f"{self._start_as_then}, or keep there what is the same on all"
            )
        self.remark(
            f"{what} differs between ranks: that of the {self._word}s from {self.ranks} on is "
            "left behind"
        )
        return values[self.rank]

    def lent(self, values: Sequence[Value], what: str) -> Value:
        """Return what the rank of this number had, or another rank if this one is new."""
        if are_alike(values):
            return values[0]
        self.remark(
            f"{what} differ between ranks: {self._word} r has those of {self._word} r modulo "
            f"{self.ranks_then}"
        )
        return values[self.rank % self.ranks_then]

    def drawn(self, values: Sequence[Value], renew: Callable[[int], Value]) -> Value:
        """Return a generator's state; a new rank's is seeded by its number and another's."""
        if are_alike(values):
            if self.ranks_then == 1:
                self.remark(
                    "all ranks continue with the random states of the only one that there was: "
                    "what is to differ between them (dropout, augmentation), seed it by rank"
                )
            return values[0]
        if self.ranks > self.ranks_then:
            self.remark(
                f"what the {self._word}s from {self.ranks_then} on draw at random (dropout, "
                "augmentation) is seeded by their numbers: they are new"
            )
        if self.rank < self.ranks_then:
            return values[self.rank]
        seed = encode([values[self.rank % self.ranks_then], self.rank])
        return renew(xxhash.xxh3_64_intdigest(seed) >> 1)

    def random(self, states: Sequence[StateView]) -> StateDict:
        """Return the states of the generators that all code shares."""

        def seeded(name: str, seed: int) -> object:
            return seeded_random_states(seed)[name]

        return {
            name: self.drawn([one[name] for one in states], partial(seeded, name))
            for name in states[0]
        }


def are_alike(values: Sequence[object]) -> bool:
    """Return whether they are equal to the bit."""
    first, *others = map(encode, values)
    return all(one == first for one in others)
