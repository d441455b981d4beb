"""Which history a version belongs to.

After a fall-back, training computes versions anew that another history has had before, and a node
that was silent meanwhile may come back with those. Equal numbers do not make them one version: only
versions of one run, made in one epoch, are ever combined.

Run, epoch and number together name one content, so that a digest of the whole beside them would
tell nothing more. Within an epoch the workers start once: the root agent stores that it starts them
before it does, and whoever is root after it begins the next epoch. A worker counts its updates
upwards and never goes back; to compute an iteration anew, it has to be started anew, in a later
epoch. So each shard of a version is made once, in the same collective steps as the others, and
every other copy of it is a copy of those bytes, with their checksums. What is read from the
persistent tier becomes a version of the epoch that reads it, and all ranks read it by one manifest,
whose shards are of one lineage. A run's identity is drawn at random, and drawn again for a run that
goes on from another's versions. (A digest could also be known only when a version is whole
everywhere, which is too late for the headers of its copies.) The tests explore these histories:
`tests/recovery/protocol`.
"""

from dataclasses import dataclass
from typing import Final

_EPOCH_BITS: Final = 32
_EPOCHS: Final = 2**_EPOCH_BITS


@dataclass(frozen=True, slots=True, order=True)
class Lineage:
    """The run that made a version, and the epoch in which it did.

    Attributes:
        run: The run's identity, 32 bits; 0 where there are no runs, as in simulations.
        epoch: The restart after which the version was made.
    """

    run: int = 0
    epoch: int = 0

    @property
    def word(self) -> int:
        """Both in 64 bits, as a slab's header has them."""
        return self.run << _EPOCH_BITS | self.epoch % _EPOCHS

    @classmethod
    def from_word(cls, word: int) -> "Lineage":
        """The lineage whose `word` this is."""
        return cls(run=word >> _EPOCH_BITS, epoch=word % _EPOCHS)


NO_LINEAGE: Final = Lineage()
"""Where there is one history only."""
