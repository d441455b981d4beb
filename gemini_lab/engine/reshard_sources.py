"""The shards of a version of another number of ranks, in the memory of the nodes that train.

All ranks work on them together: first each shard's layout and small state go to everybody, then
every rank has the parts that it needs, from its own node's memory or from a rank on another node.
What is read is verified by the checksums in the slab, and what is sent by one of its own.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, chunk_digest
from gemini_lab.recovery.plan import Cut, PlanPart
from gemini_lab.seats import Seats
from gemini_lab.shard.layout import ShardLayout, framed
from gemini_lab.shard.recut import Move
from gemini_lab.transfer.group import CheckpointGroup, TransferHandle
from gemini_lab.units import MIB

MESSAGE_BYTES: Final = 16 * MIB
"""So much at most goes to each rank at a time; it bounds what sending takes in memory."""

OldSlabs = tuple[Sequence[Slab], Sequence[ShardLayout]]
"""A node's slabs of another number of ranks, and what lies where in the shards in them."""


class UnusableCopyError(IntegrityError):
    """A copy that the plan counted on cannot be used, so another plan is needed without it."""

    def __init__(
        self,
        *,
        shard: int,
        version: int,
        holder: str | None,  # the node that had it; `None` for the persistent tier
        reason: str,
        is_unread: bool = False,  # whether the persistent tier did not return it: no damage
    ) -> None:
        where = "the persistent tier" if holder is None else holder
        super().__init__(
            f"version {version} of shard {shard} from {where} cannot be used: {reason}"
        )
        self.shard, self.version, self.holder = shard, version, holder
        self.reason, self.is_unread = reason, is_unread


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of an old shard that go to one place of a new one."""

    shard: int
    start: int
    size: int


class OldShards:
    """One rank's sources of old shards; all ranks make one together.

    Attributes:
        local_bytes: Read from this node's memory so far.
        peer_bytes: And from that of others.

    Raises:
        UnusableCopyError: A copy is damaged, or gone.
    """

    def __init__(
        self,
        plan: PlanPart,
        version: int,
        old: OldSlabs,
        *,
        rank: int,
        seats: Seats,
        group: CheckpointGroup,
    ) -> None:
        self._cuts, self._rank, self._seats, self._group = plan.cuts, rank, seats, group
        self._version = version
        self._node = seats.node_of(rank)
        slabs, layouts = old
        self._here = dict(self._held(plan, slabs))
        known = {layout.rank: layout for layout in layouts}
        told = [self._told(cut, known) for cut in plan.cuts]
        sizes = [sum(column) for column in zip(*group.all_gather([*map(len, told)]), strict=True)]
        heard = [self._broadcast(*each) for each in zip(plan.cuts, told, sizes, strict=True)]
        # What lies where in each shard, in order.
        self.layouts: list[ShardLayout] = [layout for layout, _ in heard]
        self.smalls: list[bytes] = [small for _, small in heard]  # the small state of each, framed
        self.local_bytes = self.peer_bytes = 0
        self.peers = Counter[str]()  # how much of that, by node

    @property
    def near(self) -> list[int]:
        return [*self._here]

    def copy(self, moves: Sequence[Move], target: memoryview) -> None:
        """Carry out this rank's moves; all ranks call it together."""
        needs: dict[int, list[Move]] = {rank: [] for rank in self._seats.ranks}
        for move in moves:
            needs[self._reader(move.shard, self._rank)].append(move)
        for move in needs.pop(self._rank):
            data = self._read(move.shard, move.source_bytes, move.size_bytes)
            target[move.target_bytes : move.target_bytes + move.size_bytes] = data
            self.local_bytes += move.size_bytes
        self._exchange(needs, target)

    # -- who reads what --------------------------------------------------------------------------

    def _reader(self, shard: int, rank: int) -> int:
        """Return the rank that reads a shard for another one: itself, where its node has it."""
        node = self._seats.node_of(rank)
        reader = self._cuts[shard].reader(node, number=self._seats.position_of(rank))
        if reader == node:
            return rank
        return self._seats.ranks_on(reader)[self._seats.local_rank_of(rank)]

    def _held(self, plan: PlanPart, slabs: Sequence[Slab]) -> Iterator[tuple[int, ReadBuffer]]:
        """Yield the copies of the version that the plan counts on here."""
        for slab in slabs:
            for info in slab.copies():
                is_it = (info.version, info.lineage) == (plan.version, plan.lineage)
                if is_it and self._node in plan.cuts[info.shard].holders:
                    with suppress(IntegrityError):  # it is gone since: `_read` says so
                        yield info.shard, slab.read(info.shard, info.version, info.lineage)

    def _read(self, shard: int, start: int, size: int) -> memoryview:
        if shard not in self._here:
            raise self._unusable(shard, "it is not there any more")
        try:
            return self._here[shard].verified(start, start + size)
        except IntegrityError as error:
            raise self._unusable(shard, str(error)) from error

    def _unusable(self, shard: int, reason: str, holder: str | None = None) -> UnusableCopyError:
        return UnusableCopyError(
            shard=shard, version=self._version, holder=holder or self._node, reason=reason
        )

    # -- layouts and small states ----------------------------------------------------------------

    def _teller(self, cut: Cut) -> int:
        """Return the rank that tells everybody of a shard: they take turns."""
        node = cut.holders[cut.shard % len(cut.holders)]
        ranks = self._seats.ranks_on(node)
        return ranks[cut.shard % len(ranks)]

    def _told(self, cut: Cut, known: Mapping[int, ShardLayout]) -> bytes:
        """Return what this rank reports of a shard; nothing if another one does."""
        if self._teller(cut) != self._rank:
            return b""
        if cut.shard not in known:
            raise self._unusable(cut.shard, "what lies where in it is not known")
        layout = known[cut.shard]
        small = self._read(cut.shard, layout.small_offset_bytes, layout.small_capacity_bytes)
        return zlib.compress(msgspec.msgpack.encode((layout, framed(small))), 1)

    def _broadcast(self, cut: Cut, told: bytes, size_bytes: int) -> tuple[ShardLayout, bytes]:
        teller = self._teller(cut)
        if teller == self._rank:
            data = torch.frombuffer(bytearray(told), dtype=torch.uint8)
            # One after the other in all ranks' order of shards, so sends and receives pair up.
            for send in [self._group.isend(data, to) for to in self._others()]:
                send.wait()
        else:
            data = torch.empty(size_bytes, dtype=torch.uint8)
            self._group.recv(data, teller)
        found = zlib.decompress(data.numpy().tobytes())
        return msgspec.msgpack.decode(found, type=tuple[ShardLayout, bytes])

    def _others(self) -> list[int]:
        return [rank for rank in self._seats.ranks if rank != self._rank]

    # -- parts -----------------------------------------------------------------------------------

    def _exchange(self, needs: Mapping[int, Sequence[Move]], target: memoryview) -> None:
        """Ask other ranks for parts, send what they ask for, in as many rounds as it takes."""
        wanted = {rank: [*_pieces(moves)] for rank, moves in needs.items()}
        asked = self._ask({rank: [piece for piece, _ in some] for rank, some in wanted.items()})
        gives = {rank: _batches(ranges) for rank, ranges in asked.items()}
        gets = {rank: _batches([p for p, _ in some]) for rank, some in wanted.items()}
        places = {rank: iter([place for _, place in some]) for rank, some in wanted.items()}
        ours = max(map(len, (*gives.values(), *gets.values())), default=0)
        rounds = max(rounds for (rounds,) in self._group.all_gather([ours]))
        for number in range(rounds):
            sends = [
                send
                for rank, batches in gives.items()
                if number < len(batches)
                for send in self._send(batches[number], rank)
            ]
            for rank, batches in gets.items():
                if number < len(batches):
                    self._receive(batches[number], rank, places[rank], target)
            for send in sends:
                send.wait()

    def _ask(self, ranges: Mapping[int, Sequence[Range]]) -> dict[int, list[Range]]:
        """Tell every other rank what is wanted of it; gives what they want of this one."""
        counts = [len(ranges.get(rank, ())) for rank in self._seats.ranks]
        heard = self._group.all_gather(counts)
        tables = {
            rank: torch.tensor([(r.shard, r.start, r.size) for r in some], dtype=torch.int64)
            for rank, some in ranges.items()
            if some
        }
        sends = [self._group.isend(table, rank) for rank, table in tables.items()]
        asked: dict[int, list[Range]] = {}
        for rank in self._others():
            table = torch.zeros((heard[rank][self._rank], 3), dtype=torch.int64)
            if len(table):
                self._group.recv(table, rank)
            asked[rank] = [Range(*row) for row in table.tolist()]
        for send in sends:
            send.wait()
        return asked

    def _send(self, batch: Sequence[Range], to: int) -> list[TransferHandle]:
        data = b"".join(self._read(one.shard, one.start, one.size) for one in batch)
        # Gloo has no unsigned words.
        digest = np.array([chunk_digest(data)], np.uint64).view(np.int64)
        packed = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return [
            self._group.isend(torch.from_numpy(digest), to),
            self._group.isend(packed, to),
        ]

    def _receive(
        self, batch: Sequence[Range], source: int, places: Iterator[int], target: memoryview
    ) -> None:
        size_bytes = sum(one.size for one in batch)
        digest = np.zeros(1, np.int64)
        data = np.empty(size_bytes, np.uint8)
        self._group.recv(torch.from_numpy(digest), source)
        self._group.recv(torch.from_numpy(data), source)
        if chunk_digest(data) != int(digest.view(np.uint64)[0]):
            holder = self._seats.node_of(source)
            raise self._unusable(batch[0].shard, "its parts differ from their checksum", holder)
        at = 0
        for one in batch:
            place = next(places)
            target[place : place + one.size] = data[at : at + one.size].data
            at += one.size
        self.peer_bytes += size_bytes
        self.peers[self._seats.node_of(source)] += size_bytes


def _pieces(moves: Sequence[Move]) -> Iterator[tuple[Range, int]]:
    """Yield moves in parts of a message's size at most, and where each of them goes."""
    for move in moves:
        for at in range(0, move.size_bytes, MESSAGE_BYTES):
            size = min(MESSAGE_BYTES, move.size_bytes - at)
            yield Range(move.shard, move.source_bytes + at, size), move.target_bytes + at


def _batches(ranges: Sequence[Range]) -> list[list[Range]]:
    """Return ranges in messages, in order; sender and receiver come to the same."""
    batches: list[list[Range]] = []
    room = 0
    for one in ranges:
        if one.size > room:
            batches.append([])
            room = MESSAGE_BYTES
        batches[-1].append(one)
        room -= one.size
    return batches
