"""The small state after another world size: one rule for each kind of value.

What all ranks had alike, every rank has. Of what differs, a rank has its own if there was a rank of
its number; else what is drawn is drawn anew, and anything else is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import xxhash

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.random_states import seeded_random_states
from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import encode
from gemini_lab.shard.layout import ShardLayout

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """A rank that goes on from a version of another number of ranks."""

    rank: int
    ranks: int  # how many there are now
    layouts: Sequence[ShardLayout]  # of the version's shards, by their ranks
    # What could not be taken over as it was, for the script's author.
    remarks: list[str] = field(default_factory=list)

    @property
    def ranks_then(self) -> int:
        return len(self.layouts)

    def remark(self, text: str) -> None:
        """Keep something that the script's author should know, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def refusal(self, reason: str) -> ConfigError:
        return ConfigError(
            f"a version of {self.ranks_then} ranks cannot be loaded by {self.ranks}: {reason}"
        )

    def shared(self, values: Sequence[Value], what: str, *, way_out: str = "") -> Value:
        """Return what all ranks had alike.

        Raises:
            ConfigError: They had not.
        """
        if not are_alike(values):
            way_out = way_out or f"start it with {self.ranks_then} ranks"
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
                f"{what} differs between its ranks, and new ranks have none; start it with "
                f"{self.ranks_then} ranks, or keep there what is the same on all"
            )
        self.remark(
            f"{what} differs between ranks: that of the ranks from {self.ranks} on is left behind"
        )
        return values[self.rank]

    def lent(self, values: Sequence[Value], what: str) -> Value:
        """Return what the rank of this number had, or another rank if this one is new."""
        if are_alike(values):
            return values[0]
        self.remark(
            f"{what} differ between ranks: rank r has those of rank r modulo {self.ranks_then}"
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
                f"what the ranks from {self.ranks_then} on draw at random (dropout, augmentation) "
                "is seeded by their numbers: they are new"
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
