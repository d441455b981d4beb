"""Resharding to another world size: which bytes of old shards go where in new ones.

Pieces say which elements of which weight, or of which of the optimizer's tensors, lie where in a
shard. So the shards of any two numbers of ranks have one coordinate in common: the element. What is
in no piece is padding, and is zero in a new shard. The small state is not bytes to be moved but has
rules of its own: see `engine.recast`.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from gemini_lab.errors import ConfigError
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout, WeightPiece, differences

State = tuple[str, int, str]
"""A weight's name, its part, and the optimizer's name for what is kept for it; empty for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Bytes that lie side by side in an old shard and in a new one."""

    shard: int  # the old shard
    source_bytes: int  # where they begin in its payload
    target_bytes: int  # where they begin in the new payload
    size_bytes: int  # how many they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut:
    """Plan of one new shard without its small state; each byte is written once."""

    moves: tuple[Move, ...]  # what comes from old shards, in order of `target_bytes`
    zeros: tuple[tuple[int, int], ...]  # offset and size of each run of padding, in order

    def moves_from(self, shard: int) -> list[Move]:
        """Return the moves out of one old shard, in the order of their offsets there."""
        found = (move for move in self.moves if move.shard == shard)
        return sorted(found, key=lambda move: move.source_bytes)


def plan_recut(
    old: Sequence[ShardLayout], new: ShardLayout, *, near: Collection[int] = ()
) -> Recut:
    """Plan the shard `new` from all shards of a version of another world size.

    Args:
        old: The layouts of all shards of the version, in order.
        new: The layout of a shard as it is to be.
        near: Old shards to read from where several have the same, such as those that lie in the
            reader's own memory.

    Raises:
        ConfigError: They are not of one model and optimizer, or do not say where all of it lies.
    """
    require_recuttable(old, new)
    kept = _Kept.of(old, wanted=_reaches(new), near=near)
    moves = sorted(_moves(kept, old, new), key=lambda move: move.target_bytes)
    return Recut(moves=tuple(_joined(moves)), zeros=tuple(_gaps(moves, new)))


def require_recuttable(old: Sequence[ShardLayout], new: ShardLayout) -> None:
    """Refuse shards that are not of the same model, or that cannot be resharded.

    Raises:
        ConfigError: They are such.
    """
    ranks = f"a version of {len(old)} ranks cannot be loaded by {new.world_size}"
    if fixed := next(
        (one for one in (*old, new) if one.uneven and not one.model_parallel_size), None
    ):
        raise ConfigError(
            f"{ranks}: {fixed.uneven}, and nothing tells which ranks are data-parallel; start it "
            f"with {len(old)} ranks, or have fully_shard or DistributedDataParallel share each "
            "part of the model over its own ranks"
        )
    alike = next((one for one in old if one.model_parallel_rank == new.model_parallel_rank), old[0])
    if found := differences(alike.model_identity, new.model_identity):
        raise ConfigError(
            f"{ranks}: the model or its optimizer changed since: {'; '.join(found[:5])}; start the "
            "script as it was, or start a new run"
        )
    if unplaced := [*dict.fromkeys(name for one in (*old, new) for name in one.unplaced)]:
        raise ConfigError(
            f"{ranks}: where the elements of {', '.join(unplaced[:3])} lie in the whole is not "
            f"known; start with {len(old)} ranks, or shard weights along their first dimension"
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """Elements of one state in an old shard: `start` to `end`, from a byte of its payload on."""

    start: int
    end: int
    shard: int
    source_bytes: int
    itemsize: int

    def part(self, start: int, end: int) -> "_Held":
        """Return a part of them."""
        at_bytes = self.source_bytes + (start - self.start) * self.itemsize
        return _Held(start, end, self.shard, at_bytes, self.itemsize)


@dataclass(slots=True)
class _Kept:
    """Holders of each state's elements: runs that do not overlap, in order."""

    runs: dict[State, list[_Held]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(
        cls,
        layouts: Sequence[ShardLayout],
        *,
        wanted: Mapping[State, tuple[int, int]],
        near: Collection[int],
    ) -> Self:
        """Return the holders of the wanted elements; of equal holders the near one counts."""
        kept = cls()
        for layout in sorted(layouts, key=lambda one: (one.rank not in near, one.rank)):
            for piece in layout.pieces:
                start, end = wanted.get(_state(piece), (0, 0))
                if piece.weight_offset < end and start < piece.weight_offset + piece.numel:
                    kept._add(_state(piece), _held(piece, layout))
        return kept

    def _add(self, state: State, held: _Held) -> None:
        """Add the elements that have no holder yet."""
        runs = self.runs[state]
        first = bisect_right(runs, held.start, key=lambda run: run.end)
        last = bisect_left(runs, held.end, key=lambda run: run.start)
        at, added = held.start, []
        for run in runs[first:last]:
            if at < run.start:
                added.append(held.part(at, run.start))
            at = run.end
        if at < held.end:
            added.append(held.part(at, held.end))
        if added:
            runs[first:last] = sorted([*runs[first:last], *added], key=lambda run: run.start)

    def find(self, state: State, start: int, end: int) -> Iterator[_Held]:
        """Yield the holders of these elements, in order; none for elements that no shard has."""
        runs = self.runs[state]
        first = bisect_right(runs, start, key=lambda run: run.end)
        for run in islice(runs, first, None):
            if run.start >= end:
                return
            yield run.part(max(start, run.start), min(end, run.end))


def _reaches(layout: ShardLayout) -> dict[State, tuple[int, int]]:
    """Return where a shard's elements of each state begin and end."""
    reaches: dict[State, tuple[int, int]] = {}
    for piece in layout.pieces:
        start, end = piece.weight_offset, piece.weight_offset + piece.numel
        low, high = reaches.get(_state(piece), (start, end))
        reaches[_state(piece)] = min(low, start), max(high, end)
    return reaches


def _state(piece: WeightPiece) -> State:
    return piece.weight, piece.part, piece.state


def _held(piece: WeightPiece, layout: ShardLayout) -> _Held:
    spec = layout.tensors[piece.tensor]
    itemsize = DTYPE_BYTES[spec.dtype]
    return _Held(
        piece.weight_offset,
        piece.weight_offset + piece.numel,
        layout.rank,
        spec.offset_bytes + piece.tensor_offset * itemsize,
        itemsize,
    )


def _moves(kept: _Kept, old: Sequence[ShardLayout], new: ShardLayout) -> Iterator[Move]:
    """Yield every piece of the new shard, from the holders of its elements."""
    for piece in new.pieces:
        target = _held(piece, new)
        at = target.start
        for source in kept.find(_state(piece), target.start, target.end):
            if source.start != at:
                break
            if source.itemsize != target.itemsize:
                raise _of_another_type(piece, source, target)
            yield Move(
                shard=source.shard,
                source_bytes=source.source_bytes,
                target_bytes=target.part(source.start, source.end).source_bytes,
                size_bytes=(source.end - source.start) * source.itemsize,
            )
            at = source.end
        if at != target.end:
            what = f"{piece.state} of {piece.weight}" if piece.state else piece.weight
            raise ConfigError(
                f"a version of {len(old)} ranks cannot be loaded by {new.world_size}: its shards "
                f"do not say where elements {at} to {target.end} of {what} lie, as those written "
                f"before resizing was known do not; train some iterations with {len(old)} ranks, "
                "and resize then"
            )


def _of_another_type(piece: WeightPiece, source: _Held, target: _Held) -> ConfigError:
    return ConfigError(
        f"{piece.state or 'the master copy'} of {piece.weight} was kept with {source.itemsize} "
        f"bytes an element, and is kept with {target.itemsize} now; start the script as it was"
    )


def _joined(moves: Iterable[Move]) -> Iterator[Move]:
    """Join moves that continue where the one before ends, in both shards."""
    last: Move | None = None
    for move in moves:
        if last is not None and _follows(move, last):
            last = Move(
                shard=last.shard,
                source_bytes=last.source_bytes,
                target_bytes=last.target_bytes,
                size_bytes=last.size_bytes + move.size_bytes,
            )
            continue
        if last is not None:
            yield last
        last = move
    if last is not None:
        yield last


def _follows(move: Move, last: Move) -> bool:
    shift = last.size_bytes
    return (move.shard, move.source_bytes, move.target_bytes) == (
        last.shard,
        last.source_bytes + shift,
        last.target_bytes + shift,
    )


def _gaps(moves: Iterable[Move], new: ShardLayout) -> Iterator[tuple[int, int]]:
    """Yield the ranges after the small state that no move writes."""
    at = new.small_offset_bytes + new.small_capacity_bytes
    for move in moves:
        if at < move.target_bytes:
            yield at, move.target_bytes - at
        at = move.target_bytes + move.size_bytes
    if at < new.payload_bytes:
        yield at, new.payload_bytes - at
