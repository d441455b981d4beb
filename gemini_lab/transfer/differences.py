"""Replicas that peers keep current themselves: they get what made a version, not the version.

What made version v of version v - 1 is a reduced gradient and the numbers of a step, a third of
what Adam keeps. A peer has v - 1 in one buffer of its slab and makes v in another; v - 1 stays as
it is until v is whole. That v is what its owner has is never taken for granted: both compute the
checksums of its chunks, the owner from its own state, the peer from what it made. Only where they
are equal is v whole. Where they are not, the shard itself comes, as it would have without all this.

All ranks do the same with each version, as they agree right before it: a difference where every
rank has one to send, the version before is whole everywhere and of the same history, and whoever
makes versions is ready. So the first version after every start, recovery and rewind is sent in
full, and so is every one after a version that was not sent.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import torch

from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, WriteBuffer
from gemini_lab.memory.slab_form import Chunked, Words
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.route import BackgroundRoute, Route
from gemini_lab.transfer.version import (
    OutgoingVersion,
    Peers,
    SentBytes,
    VersionBuffers,
    Wire,
)

TRIED: Final = 100
MOST_DIFFERING: Final = 3
"""So many versions that differ, of the newest `TRIED`, end it: one may be a flipped bit on the wire
or in memory, which a full copy mends, but arithmetic that differs does so again and again."""


class Maker(Protocol):
    """Makes versions of one shard that is kept here, in a process of its own."""

    @property
    def room(self) -> Chunked: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_lost(self) -> bool:
        """Return whether it never can be any more."""

    def begin(self, base: ReadBuffer, into: WriteBuffer) -> None:
        """Begin to make a version of the one before, `base`, and of what lies in the room."""

    def finish(self) -> Words:
        """Return the checksums of the chunks of what was made, when it is.

        Raises:
            GeminiError: It could not be made.
        """

    def close(self) -> None: ...


@dataclass(slots=True)
class ReplicaTrust:
    """Whether versions are still made of differences, by how often what was made differed."""

    is_lost: bool = False  # whether they are not, until this job's next start
    _newest: deque[bool] = field(default_factory=lambda: deque(maxlen=TRIED))

    def note(self, *, differing: int, lost: int) -> str:
        """Count a version that was made so on all ranks; return why no other one is, or nothing."""
        if self.is_lost:
            return ""
        self._newest.append(differing > 0)
        reason = ""
        if lost:
            reason = f"{lost} of the processes that made replicas are gone"
        elif sum(self._newest) >= MOST_DIFFERING:
            reason = (
                f"replicas of {sum(self._newest)} of the newest {len(self._newest)} versions "
                "differed from what their owners have; are the CPUs of all nodes of one kind?"
            )
        self.is_lost = bool(reason)
        return reason


class Differences:
    """One rank's part in versions that are sent as differences; on the replicator's thread."""

    def __init__(
        self,
        wire: Wire,
        peers: Peers,
        slab: Slab,
        *,
        own: Chunked,  # what leaves: each version's difference lies there
        makers: Mapping[int, Maker],  # by rank whose shard is kept here, who makes its versions
        full_every: int | None = None,  # of so many versions one is sent in full
    ) -> None:
        self._wire, self._peers, self._slab = wire, peers, slab
        self._own, self._makers = own, makers
        self._full_every = full_every
        self._base: tuple[int, Lineage] | None = None  # the newest version that is whole everywhere
        self._since_full = 0
        self._failed: dict[int, str] = {}
        self._trust = ReplicaTrust()

    @property
    def are_wanted(self) -> bool:
        return not self._trust.is_lost

    def agree(self, version: OutgoingVersion) -> bool:
        """Return whether all ranks send this version as a difference; all call it together."""
        told = self._wire.group.all_gather([version.version, int(self._can_send(version))])
        if others := {number for number, _ in told} - {version.version}:
            raise IntegrityError(
                f"version {min(others)} is sent while version {version.version} is due; all ranks "
                "must call engine.step() equally often"
            )
        return all(can for _, can in told)

    def _can_send(self, version: OutgoingVersion) -> bool:
        is_next = self._base == (version.version - 1, version.lineage)
        is_full_due = self._full_every is not None and self._since_full + 1 >= self._full_every
        is_ready = all(maker.is_ready for maker in self._makers.values())
        has_one = version.difference is not None
        return self.are_wanted and is_next and not is_full_due and is_ready and has_one

    def exchange(
        self, route: Route, version: OutgoingVersion, incoming: Mapping[int, WriteBuffer]
    ) -> tuple[SentBytes, ...]:
        """Send and receive differences, and begin to have versions made of them."""
        rooms: VersionBuffers[Chunked] = VersionBuffers(
            own=self._own, incoming={rank: maker.room for rank, maker in self._makers.items()}
        )
        sent = route.exchange(lambda _: None, rooms)  # a difference is all there already
        self._failed.clear()
        for rank, maker in self._makers.items():
            try:
                base = self._slab.read(rank, version.version - 1, version.lineage)
                maker.begin(base, incoming[rank])
            except GeminiError as error:
                self._failed[rank] = str(error)
        return sent

    def settle(
        self,
        buffers: VersionBuffers[WriteBuffer],  # all of the own shard, and versions of others
        digests: Mapping[int, Words],  # the owners' checksums of those
    ) -> tuple[dict[int, str], tuple[SentBytes, ...]]:
        """Get in full what was not made as its owner has it.

        Returns:
            By shard kept here, why it came in full; and what left in full.
        """
        found = {rank: self._flaw(rank, digests[rank]) for rank in self._makers}
        reasons = {rank: reason for rank, reason in found.items() if reason}
        # All ranks ask, also those without a flaw: their peers wait for the answer.
        needy = self._needy(reasons)
        if not (needy or reasons):
            return reasons, ()
        again = replace(
            self._peers,
            sends_to=needy,
            receives_from={rank: self._peers.receives_from[rank] for rank in reasons},
        )
        wanted: VersionBuffers[Chunked] = VersionBuffers(
            own=buffers.own, incoming={rank: buffers.incoming[rank] for rank in reasons}
        )
        return reasons, BackgroundRoute(self._wire, again).exchange(lambda _: None, wanted)

    def told(self, reasons: Mapping[int, str]) -> list[int]:
        """Return what this rank tells the others, for `note`."""
        return [len(reasons), sum(maker.is_lost for maker in self._makers.values())]

    def note(
        self, version: OutgoingVersion, told: Sequence[Sequence[int]], *, is_full: bool
    ) -> str:
        """Note that a version is whole everywhere; return why all are sent in full from here on."""
        self._base = (version.version, version.lineage)
        self._since_full = 0 if is_full else self._since_full + 1
        differing, lost = (sum(numbers) for numbers in zip(*told, strict=True))
        return self._trust.note(differing=differing, lost=lost)

    def close(self) -> None:
        for maker in self._makers.values():
            maker.close()

    def _flaw(self, rank: int, digests: Words) -> str:
        """Return why what was made of a shard is not what its owner has; nothing if it is."""
        if rank in self._failed:
            return self._failed[rank]
        try:
            made = self._makers[rank].finish()
        except GeminiError as error:
            return str(error)
        wrong = int(np.count_nonzero(made != digests))
        return f"{wrong} of its {len(digests)} chunks have other checksums" if wrong else ""

    def _needy(self, reasons: Mapping[int, str]) -> tuple[int, ...]:
        """Return the peers that need this rank's shard in full; tell the owners of other shards."""
        group, peers = self._wire.group, self._peers
        answers = {peer: torch.zeros(1, dtype=torch.int64) for peer in peers.sends_to}
        works = [group.isend(torch.tensor([int(rank in reasons)]), rank) for rank in self._makers]
        works += [group.irecv(answer, peer) for peer, answer in answers.items()]
        group.finish(works)
        return tuple(peer for peer in peers.sends_to if int(answers[peer]))
