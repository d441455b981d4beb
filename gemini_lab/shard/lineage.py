"""Which history a version belongs to.

After a fall-back, training computes versions anew that another history has had before, and a node
that was silent meanwhile may come back with those. Equal numbers do not make them one version: only
versions of one run, made in one epoch, are ever combined.
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
