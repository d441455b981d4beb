"""Verified iterations in a worker: the version that is kept for them, and what is said.

The newest version whose iteration was verified stays in memory, beside the others: where a machine
is found to compute wrong, training goes on from there. That a version is verified travels with it
and with all later ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemini_lab.engine.verify.verifying import Found, Verifier
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.shard.lineage import Lineage

_VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A version of whose iteration all machines computed the same.

    Attributes:
        version: Its number; that of the first version counts as verified.
        lineage: Which of that number.
    """

    version: int
    lineage: Lineage


class Verification:
    """Has a worker's iterations verified.

    Args:
        verifier: Has them computed again.
        slab: Keeps this rank's versions, and others'.
        rank: This one.
        on_wrong: What is done where machines compute wrong, as the settings say.
        newest: The newest version that is verified when this begins.
        emit: Says an event.
        stand_still: Waits to be ended.
    """

    def __init__(
        self,
        verifier: Verifier,
        slab: Slab,
        *,
        rank: int,
        on_wrong: str,
        newest: Verified,
        emit: Callable[[events.AnyEvent], None],
        stand_still: Callable[[], object],
    ) -> None:
        self._verifier = verifier
        self._slab = slab
        self._rank, self._on_wrong = rank, on_wrong
        self._emit, self._stand_still = emit, stand_still
        self._coming: Verified | None = None  # verified, and not whole yet
        self._is_wrong = False  # whether the weights hold what was computed wrong
        self._keep(newest)

    def begin(self, iteration: int) -> None:
        """The model computes for an iteration."""
        self._verifier.begin(iteration)

    def before_update(self, iteration: int, *, rewinds: int) -> None:
        """The gradients of an iteration are there; the version before it is whole everywhere."""
        if self._coming is not None:
            self._keep(self._coming)
            self._coming = None
        self._act_on(self._verifier.before_update(), iteration, rewinds=rewinds)

    def after_update(self, iteration: int, lineage: Lineage, *, is_sent: bool) -> None:
        """The update was made; its version is on its way soon, if it is to be sent."""
        if not self._verifier.is_recording:
            return
        self._act_on(self._verifier.after_update(), iteration, rewinds=lineage.rewinds)
        if self._is_wrong:
            return
        if is_sent:
            self._coming = Verified(version=iteration, lineage=lineage)
        if self._rank == 0:
            self._emit(
                events.SumsVerified(
                    iteration=iteration,
                    replays=self._verifier.replays,
                    duration_s=self._verifier.took_s,
                )
            )

    def _act_on(self, found: Found | None, iteration: int, *, rewinds: int) -> None:
        if found is None:
            return
        self._is_wrong = True
        verdict = found.verdict
        self._emit(
            events.WrongSums(
                iteration=iteration,
                work=found.work,
                ranks=verdict.ranks,
                nodes=verdict.wrong,
                suspects=verdict.suspects,
                replays=found.replays,
                version=self._newest.version,
                goes_back=self._on_wrong == "drain" and bool(verdict.wrong),
                rewinds=rewinds,
            )
        )
        if self._on_wrong != "warn":
            self._stand_still()

    def _keep(self, newest: Verified) -> None:
        self._newest = newest
        self._slab.pinned = newest.version, newest.lineage

    # -- with each version -----------------------------------------------------------------------

    def to_small(self) -> dict[str, object]:
        """Return what of it travels in the version that is made now."""
        newest = self._coming or self._newest
        return {_VERIFIED: [newest.version, newest.lineage.word]}

    def go_back(self, small: Mapping[str, Any]) -> None:
        """Training went back to a version that carries this."""
        self._coming = None
        self._is_wrong = False
        if (known := verified_in(small)) is not None:
            self._keep(known)


def verified_in(small: Mapping[str, Any]) -> Verified | None:
    """The newest verified version, as a version knows it; `None` where it does not."""
    if _VERIFIED not in small:
        return None
    version, word = small[_VERIFIED]
    return Verified(version=version, lineage=Lineage.from_word(word))
