"""Training goes back to a version in its nodes' memory, on all ranks together.

No process is started: each rank reads its own shard out of its own node's slab, at the top of the
script's loop, where no version is on its way. All agree first on one version that every rank has
whole, verified and of one lineage. What was made after it is discarded everywhere once the event
says so, by which every agent knows: see `recovery.discarded_versions`.
"""

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.script_loops import LoopPlace, place_in
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.errors import ConfigError, GeminiError, UnsupportedError
from gemini_lab.log import events
from gemini_lab.memory.slab import ReadBuffer, Slab
from gemini_lab.recovery.guard import LOSS, Guard, Sight
from gemini_lab.recovery.messages import GoBack
from gemini_lab.shard.lineage import MOST_REWINDS, Lineage
from gemini_lab.transfer.replicator import Replicator

_NOTHING: Final = -1
GUARD: Final = "guard"
"""Under this name a version carries what the guard knows."""
Offer = tuple[int, int]
"""A version that a rank could go back to: its number, its lineage as a signed word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A version to which training is to go back."""

    version: int  # the newest that will do
    skips: bool  # whether the batches that were read since do not come again
    cause: Literal["script", "guard", "person"]  # who wants it
    reason: str = ""


class Rewinder:
    """Takes iterations of one rank back; all ranks call it at the same places."""

    def __init__(
        self,
        state: EngineState,
        slab: Slab,
        replicator: Replicator,
        *,
        guard: Guard | None,
        emit: Callable[[events.AnyEvent], None],
    ) -> None:
        self.guard = guard
        self._state = state
        self._slab = slab
        self._rank = state.layout.rank
        self._replicator = replicator
        self._emit = emit
        self._judged = state.version  # the newest iteration that needs no judgement any more

    def judge(self, newest: events.Iteration | None) -> Wish | None:
        """Judge the last iteration on all ranks together; return what is to be done about it."""
        iteration = self._state.version
        if self.guard is None or iteration == self._judged:
            return None
        self._judged = iteration
        loss = None if newest is None else newest.value(LOSS)
        ours = Sight(loss=loss, is_finite=self._state.is_finite())
        seen = [_decoded(one) for one in self._replicator.exchange(_encoded(ours))]
        reason = self.guard.judge(iteration, seen)
        if not reason:
            return None
        return Wish(
            version=self.guard.goal(iteration),
            skips=True,
            cause="guard",
            reason=f"iteration {iteration}: {reason}",
        )

    def go_back(
        self, wish: Wish, *, lineage: Lineage, place: LoopPlace, is_computing: bool
    ) -> tuple[Lineage, StateDict] | None:
        """Put the newest version back that will do, and leave what came after it.

        Returns:
            The new lineage, and what the version carried beside the engine's state; `None` if the
            user asked for what cannot be, of which the log tells.

        Raises:
            GeminiError: No version will do; for a guard, the root agent ends the run.
            ConfigError: The ranks wish for different things.
        """
        started_s = time.perf_counter()
        iteration = self._state.version
        self._state.framework.drop_gradients(is_computing=is_computing)
        copy = self._find(wish, run=lineage.run, place=place)
        if copy is None:
            refusal = self._refusal(wish)
            if wish.cause == "person":
                return None
            raise refusal
        # A lineage's word has so many bits for the number.
        if lineage.rewinds == MOST_REWINDS:
            raise GeminiError(
                f"training went back {MOST_REWINDS} times since its workers were started; they are "
                "restarted"
            )
        version = copy.info.version
        extra = self._state.take_back(copy.data, with_data=not wish.skips)
        known = guard_in(extra)
        if self.guard is not None and known is not None:
            self.guard.go_back(known)
        self._replicator.go_back(version)
        self._judged = version
        self._emit(
            events.Rewound(
                iteration=iteration,
                version=version,
                rewinds=lineage.rewinds + 1,
                skips=wish.skips,
                cause=wish.cause,
                reason=wish.reason,
                duration_s=time.perf_counter() - started_s,
            )
        )
        # Only now: its agent knows, whatever becomes of this worker.
        for later in self._slab.copies():
            if later.version > version:
                self._slab.discard(later.shard, later.version, later.lineage)
        return replace(lineage, rewinds=lineage.rewinds + 1), extra

    def _refusal(self, wish: Wish) -> GeminiError:
        mine = sorted({c.version for c in self._slab.copies() if c.shard == self._rank})
        why = wish.reason or f"the {wish.cause} asked for it"
        wanted = f"up to {wish.version}" if wish.version >= 0 else "from before the first"
        text = (
            f"{why}, but no version {wanted} that "
            f"was sealed at the loop's top is whole on every rank (in memory here: {mine}; "
            "those of earlier epochs or loops will not do); raise keep_in_memory to keep more"
        )
        if wish.cause != "script":  # which gets the error
            iteration = self._state.version
            self._emit(events.RewindFailed(iteration=iteration, cause=wish.cause, reason=text))
        return GeminiError(text)

    # -- which version ---------------------------------------------------------------------------

    def _find(self, wish: Wish, *, run: int, place: LoopPlace) -> ReadBuffer | None:
        """Return the newest version that will do on every rank, in this one's memory."""
        self._replicator.wait()
        self._require_one_wish(wish)
        offers = list(self._usable(wish, run=run, place=place))
        while True:
            everybodys = self._replicator.exchange(_padded(offers, self._slab.buffers))
            pairs = (zip(one[::2], one[1::2], strict=True) for one in everybodys)
            found = set.intersection(*map(set[Offer], pairs))
            chosen = max(found - {(_NOTHING, _NOTHING)}, default=None)
            if chosen is None:
                return None
            lineage = Lineage.from_word(chosen[1] % 2**64)
            copy = self._slab.read(self._rank, chosen[0], lineage)
            is_whole = not copy.bad_chunks()
            if all(whole for (whole,) in self._replicator.exchange([int(is_whole)])):
                return copy
            offers.remove(chosen)

    def _require_one_wish(self, wish: Wish) -> None:
        wishes = self._replicator.exchange([wish.version, wish.skips])
        if any(other != wishes[0] for other in wishes):
            told = ", ".join(f"{version} (skip={bool(skips)})" for version, skips in wishes)
            raise ConfigError(
                f"the ranks want to go back to different versions: {told}; call protected.rewind "
                "on every rank, with the same numbers"
            )

    def _usable(self, wish: Wish, *, run: int, place: LoopPlace) -> Iterator[Offer]:
        """Yield the versions here that would do for this rank."""
        for info in self._slab.copies():
            is_ours = info.shard == self._rank and info.lineage.run == run
            if not is_ours or info.version > wish.version:
                continue
            copy = self._slab.read(self._rank, info.version, info.lineage)
            small = self._state.peek(copy.data)
            if small is None or not small.get("at_top") or place_in(small["extra"]) != place:
                continue
            if wish.skips or self._state.script.can_move_back(small["data"]):
                yield info.version, _signed(info.lineage.word)


def guard_in(small: StateView) -> StateView | None:
    """Return the guard's knowledge in a version's extras; `None` if there was no guard."""
    found: StateView | None = small.get(GUARD)
    return found


def encode_order(order: GoBack | None) -> tuple[int, int]:
    """Return an order to go back as two numbers: which one, and how."""
    return (0, 0) if order is None else (order.number, order.steps << 1 | order.skip)


def wish_of(how: int, *, version: int) -> Wish:
    """Return the user's wish at the end of an iteration that made a version."""
    steps, skips = how >> 1, bool(how & 1)
    return Wish(version=version - steps, skips=skips, cause="person")


def require_loop(*, is_in_loop: bool) -> None:
    """Refuse a loop that does not tell where its iterations end."""
    if not is_in_loop:
        raise UnsupportedError(
            "training can only go back at the top of its loop, and this loop does not tell where "
            "that is; loop `for step in protected.steps(N)` or `for epoch in protected.epochs(N)`, "
            'or leave out protected.rewind, "on_not_finite": "rewind" and rewind_on_spike'
        )


def require_steps(steps: int, *, version: int, can_rewind: bool) -> None:
    """Refuse a rewind to before the start, or in a loop that tells no ends of iterations."""
    require_loop(is_in_loop=can_rewind)
    if not 0 <= steps <= version:
        raise ConfigError(
            f"protected.rewind(steps={steps}): {version} iterations are done, so 0 to {version} of "
            "them can be taken back"
        )


def _encoded(sight: Sight) -> list[int]:
    loss = sight.loss
    # Ranks exchange whole numbers: a float's bits come through exactly, also a NaN's.
    (bits,) = struct.unpack("<q", struct.pack("<d", 0.0 if loss is None else loss))
    return [int(loss is not None), bits, int(sight.is_finite)]


def _decoded(values: Sequence[int]) -> Sight:
    has_loss, bits, is_finite = values
    (loss,) = struct.unpack("<d", struct.pack("<q", bits))
    return Sight(loss=loss if has_loss else None, is_finite=bool(is_finite))


def _padded(offers: Sequence[Offer], count: int) -> list[int]:
    flat = [number for offer in offers for number in offer]
    return flat + [_NOTHING] * (2 * count - len(flat))


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
