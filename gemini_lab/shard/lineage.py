"""History to which a version belongs.

After a fall-back, training computes versions anew that another history has had before, and a node
that was silent meanwhile may come back with those. Equal numbers do not make them one version: only
versions of one run, made in one epoch, are ever combined.

Run, epoch, rewinds and number together name one content, so that a digest of the whole beside them
would tell nothing more. Within an epoch the workers start once: the root agent stores that it
starts them before it does, and whoever is root after it begins the next epoch. A worker counts its
updates upwards. To compute an iteration anew, it has to be started anew, in a later epoch, or to go
back together with all others (`protected.rewind`), and then it counts that: what it makes from
there on bears the next number. So each shard of a version is made once, in the same collective
steps as the others, and every other copy of it is a copy of those bytes, with their checksums. What
a rewind left behind is newer by its version and older by its lineage; that it is left, and never to
be gone on from, `recovery.discarded_versions` says. What is read from the
persistent tier becomes a version of the epoch that reads it, and all ranks read it by one manifest,
whose shards are of one lineage. A run's identity is drawn at random, and drawn again for a run that
goes on from another's versions. (A digest could also be known only when a version is whole
everywhere, which is too late for the headers of its copies.) The tests explore these histories:
`gemini_lab_bench.world`.
"""

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from gemini_lab.limits import Count

_EPOCH_BITS: Final = 20
_REWIND_BITS: Final = 12
_EPOCHS: Final = 2**_EPOCH_BITS
MOST_REWINDS: Final = 2**_REWIND_BITS - 1
"""The most rewinds of one start; for the next one the workers start again."""


@dataclass(frozen=True, slots=True, order=True)
class Lineage:
    """The run and the epoch that made a version, and the rewinds in that epoch before it."""

    # The run's identity, 32 bits; 0 where there are no runs, as in simulations.
    run: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    epoch: Count = 0  # the restart after which the version was made
    # How often training went back, between that restart and the version.
    rewinds: Annotated[int, msgspec.Meta(ge=0, lt=2**_REWIND_BITS)] = 0

    @property
    def word(self) -> int:
        """Return all three in 64 bits, as a slab's header has them."""
        line = self.run << _EPOCH_BITS | self.epoch % _EPOCHS
        return line << _REWIND_BITS | self.rewinds

    @classmethod
    def from_word(cls, word: int) -> "Lineage":
        """Return the lineage whose `word` this is."""
        line, rewinds = divmod(word, MOST_REWINDS + 1)
        return cls(run=line >> _EPOCH_BITS, epoch=line % _EPOCHS, rewinds=rewinds)


NO_LINEAGE: Final = Lineage()
"""The lineage if there is only one history."""
