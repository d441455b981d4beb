"""Every so many iterations, what each rank computed is computed once more by another machine.

Where an iteration is to be verified, its gradients are compared before they go into the weights:

1. Each rank records its calls of the model, and a checksum of what came out: the model's outputs,
   and its own gradients before they are added up over the ranks (`gradient_replay`).
2. Before the update, each sends what it recorded to a rank of the next machine, which has the same
   weights now, and computes these gradients too. All ranks learn all checksums.
3. The update is recorded as well: its shard and gradients go to a rank of the next machine, whose
   optimizer makes it on copies (`update_replay`). Ranks under DDP make one and the same update, so
   there checksums suffice.
4. Where answers differ, one more replay, on the machine after the next. What all that says of
   machines, `recovery.wrong_sums` decides, on all ranks alike.

What is not covered: what the network library adds up (reductions, the norm by which gradients are
clipped), and what the script computes outside of the model and the optimizer, such as a loss of
its own. Where the same work gives other bits on the same machine, nothing can be told: that is
looked at in the first iteration, which is computed once more on its own machine.

The newest version whose iteration was verified stays in memory, beside the others: where a machine
is found to compute wrong, training goes on from there. That a version is verified travels with it
and with all later ones.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from gemini_lab.engine.contract import StateView
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.verify.gradient_replay import CallRecorder, gradients_again
from gemini_lab.engine.verify.update_replay import (
    StepRecorder,
    packed,
    room_for,
    unpacked,
    update_again,
)
from gemini_lab.errors import UnsupportedError
from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.recovery.wrong_sums import Answer, Verdict, Work, judge, shifts
from gemini_lab.seats import Seats, listed
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup

_OWN: Final = 0  # a shift by no machine


Parcel = tuple[bytes, list[torch.Tensor]]
"""What is needed to compute a piece of work: a head, and large tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Machines that computed an iteration wrong."""

    work: Work
    verdict: Verdict  # which
    replays: int


class Verifier:
    """Has one rank's iterations computed again; all ranks call it at the same places."""

    def __init__(
        self,
        framework: Framework,
        wire: CheckpointGroup,
        *,
        rank: int,
        seats: Seats,
        every: int,  # each iteration of a number that this divides is verified
        # Whether the run begins: its first iteration then shows whether that can be.
        is_first: bool,
        # In it, what the model's hooks communicate is no part of the iteration.
        apart: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._framework = framework
        self._wire = wire
        self._rank, self._seats, self._every = rank, seats, every
        self._is_to_be_tried = is_first
        self._apart = apart
        self._recorder = CallRecorder(framework)
        self._updates = StepRecorder(framework)
        self.is_recording = False
        self.took_s = 0.0  # what that took
        self.replays = 0  # how often the iteration that is verified was computed again

    def begin(self, iteration: int) -> None:
        """Begin to compute for an iteration; called often in each."""
        is_due = self._is_to_be_tried or iteration % self._every == 0
        if is_due and not self.is_recording:
            self.is_recording, self.replays = True, 0
            self._recorder.begin()

    def before_update(self) -> Found | None:
        """Verify the gradients, before they change the weights."""
        if not self.is_recording:
            return None
        started_s = time.perf_counter()
        recorded, digest = self._recorder.end()
        if not self._recorder.was_called and self._is_to_be_tried:
            raise UnsupportedError(_APART)
        found = self._compare(
            "gradient",
            digest,
            (recorded, []),
            lambda head, _: gradients_again(self._framework, head),
        )
        self._updates.begin()
        self.took_s = time.perf_counter() - started_s
        return found

    def after_update(self) -> Found | None:
        """Verify the update."""
        if not self.is_recording:
            return None
        started_s = time.perf_counter()
        steps, digest = self._updates.end()
        if self._framework.shares_updates:
            found = self._compare_shared(digest)
        else:
            found = self._compare(
                "update",
                digest,
                packed(steps),
                lambda head, tensors: update_again(self._framework, unpacked(head, tensors)),
            )
        self.is_recording = self._is_to_be_tried = False
        self.took_s += time.perf_counter() - started_s
        return found

    # -- asking others ---------------------------------------------------------------------------

    def _compare(
        self,
        work: Work,
        digest: int,
        parcel: Parcel,
        compute: Callable[[bytes, Sequence[torch.Tensor]], int],
    ) -> Found | None:
        """Recompute a piece of work until it is clear which rank is wrong, or cannot be."""
        first = list(self._answers([digest], shift=0))
        answers = list(first)
        verdict, replays = Verdict(), 0
        planned = shifts(self._seats.nodes)
        for shift in (_OWN, *planned) if self._is_to_be_tried else planned:
            head, tensors = self._swap(parcel, shift)
            with self._apart():
                again = compute(head, tensors)
            told = list(self._answers([again], shift=shift))
            if shift == _OWN and self._is_to_be_tried:
                self._require_repeatable(work, first, told)
            answers += told
            verdict, replays = judge(answers), replays + 1
            if verdict.is_clean and shift != _OWN:
                break
        self.replays = max(self.replays, replays)
        if verdict.is_clean:
            return None
        if self._is_to_be_tried and not verdict.wrong:
            raise UnsupportedError(_MOVED.format(work=work, ranks=listed(verdict.ranks)))
        return Found(work=work, verdict=verdict, replays=replays)

    def _compare_shared(self, digest: int) -> Found | None:
        """Compare an update that all machines were to make alike."""
        # Ranks under DDP make one update, so that checksums suffice and nothing is computed again.
        table = self._wire.all_gather([digest])
        verdict = judge(
            Answer(rank=0, node=self._seats.node_of(rank), digest=one)
            for rank, (one,) in enumerate(table)
        )
        return None if verdict.is_clean else Found(work="update", verdict=verdict, replays=0)

    def _answers(self, ours: Sequence[int], *, shift: int) -> Iterator[Answer]:
        """Return what every rank computed of the rank that many machines before it."""
        for rank, (digest,) in enumerate(self._wire.all_gather(ours)):
            node = self._seats.node_of(rank)
            yield Answer(rank=self._moved(rank, -shift), node=node, digest=digest)

    def _moved(self, rank: int, shift: int) -> int:
        return (rank + shift * self._seats.workers_per_node) % self._seats.world_size

    def _swap(self, parcel: Parcel, shift: int) -> Parcel:
        """Send what was recorded to the rank that many machines on; gives what comes from before.

        Ranks wait for one another here, so an end of one ends all.
        """
        to, source = self._moved(self._rank, shift), self._moved(self._rank, -shift)
        if to == self._rank:
            return parcel
        head, tensors = parcel
        sizes = self._wire.all_gather([len(head)])
        theirs = torch.empty(sizes[source][0], dtype=torch.uint8)
        self._exchange([_bytes(head)], [theirs], to=to, source=source)
        told = theirs.numpy().tobytes()
        rooms = room_for(told) if tensors else []
        self._exchange(
            [_flat(one.cpu()) for one in tensors],
            [_flat(one) for one in rooms],
            to=to,
            source=source,
        )
        return told, rooms

    def _exchange(
        self,
        ours: Sequence[torch.Tensor],
        theirs: Sequence[torch.Tensor],
        *,
        to: int,
        source: int,
    ) -> None:
        works = [self._wire.isend(one, to) for one in ours if one.numel()]
        works += [self._wire.irecv(one, source) for one in theirs if one.numel()]
        for work in works:
            work.wait()

    def _require_repeatable(
        self, work: Work, first: Sequence[Answer], again: Sequence[Answer]
    ) -> None:
        ranks = [
            one.rank for one, other in zip(first, again, strict=True) if one.digest != other.digest
        ]
        if ranks:
            raise UnsupportedError(_DIFFERS.format(work=work, ranks=listed(ranks)))


_DIFFERS: Final = (
    "verify_every has iterations computed twice and compared, and here the {work} of rank {ranks} "
    "came out differently on the same machine: kernels that are not deterministic (try "
    "torch.use_deterministic_algorithms(True)), a model that is called other than as a whole, or "
    "state of it that changes with each call; leave verify_every out, or change that"
)
_APART: Final = (
    "verify_every has iterations computed twice and compared, and the model was not called as a "
    "whole, or not in training mode; call it so, or leave verify_every out"
)
_MOVED: Final = (
    "verify_every has iterations computed again on another machine, and the {work} of rank {ranks} "
    "came out differently on each: the model has something of its own on every rank that is no "
    "weight, buffer, argument or random state, or machines are of different kinds; leave "
    "verify_every out, or change that"
)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


_VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedVersion:
    """A version of whose iteration all machines computed the same."""

    version: int  # its number; that of the first version counts as verified
    lineage: Lineage


class Verification:
    """Has a worker's iterations verified."""

    def __init__(
        self,
        verifier: Verifier,
        slab: Slab,
        *,
        rank: int,
        on_wrong: str,  # what is done where machines compute wrong, as the settings say
        newest: VerifiedVersion,
        emit: Callable[[events.AnyEvent], None],
        stand_still: Callable[[], object],  # waits to be ended
    ) -> None:
        self._verifier = verifier
        self._slab = slab
        self._rank, self._on_wrong = rank, on_wrong
        self._emit, self._stand_still = emit, stand_still
        self._coming: VerifiedVersion | None = None  # verified, and not whole yet
        self._is_wrong = False  # whether the weights hold what was computed wrong
        self._keep(newest)

    def begin(self, iteration: int) -> None:
        """Begin to compute for an iteration."""
        self._verifier.begin(iteration)

    def before_update(self, iteration: int, *, rewinds: int) -> None:
        """Verify an iteration's gradients; the version before it is whole everywhere."""
        if self._coming is not None:
            self._keep(self._coming)
            self._coming = None
        self._act_on(self._verifier.before_update(), iteration, rewinds=rewinds)

    def after_update(self, iteration: int, lineage: Lineage, *, is_sent: bool) -> None:
        """Verify the update; its version is sent soon, if it is due."""
        if not self._verifier.is_recording:
            return
        self._act_on(self._verifier.after_update(), iteration, rewinds=lineage.rewinds)
        if self._is_wrong:
            return
        if is_sent:
            self._coming = VerifiedVersion(version=iteration, lineage=lineage)
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

    def _keep(self, newest: VerifiedVersion) -> None:
        self._newest = newest
        # A pinned version is no candidate when a buffer is chosen to be written over.
        self._slab.pinned = newest.version, newest.lineage

    # -- with each version -----------------------------------------------------------------------

    def to_small(self) -> dict[str, object]:
        """Return what of it travels in the version that is made now."""
        newest = self._coming or self._newest
        return {_VERIFIED: [newest.version, newest.lineage.word]}

    def go_back(self, small: StateView) -> None:
        """Go on from a version that carries this."""
        self._coming = None
        self._is_wrong = False
        if (known := verified_in(small)) is not None:
            self._keep(known)


def verified_in(small: StateView) -> VerifiedVersion | None:
    """Return the newest verified version, as a version knows it; `None` where it does not."""
    if _VERIFIED not in small:
        return None
    version, word = small[_VERIFIED]
    return VerifiedVersion(version=version, lineage=Lineage.from_word(word))
