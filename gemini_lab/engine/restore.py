"""One rank's part of a recovery plan: its shard from memory, a peer or the persistent tier.

What is loaded from where is decided in `recovery.plan`. Here it is done: every rank walks its part
in the plan's order, so whoever sends finds its receiver, and afterwards each holder has the plan's
version again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from gemini_lab.engine.reshard_sources import OldShards, OldSlabs, UnusableCopyError
from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.memory.slab import Slab, WriteBuffer
from gemini_lab.recovery.plan import PlanPart
from gemini_lab.seats import Seats
from gemini_lab.shard.layout import ShardLayout, require_same
from gemini_lab.shard.lineage import Lineage
from gemini_lab.shard.recut import Recut, plan_recut
from gemini_lab.storage import persistent_tier
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.route import receive_copy, send_copy

SmallState = Mapping[str, object]
ASK_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before a store that did not return what was saved there is asked again: all ranks ask it
at once, and one that limits requests refuses some. Then the root agent plans again."""
SAY_FROM_S: Final = 2.0  # of pauses: shorter ones are told by nobody
Recast = Callable[[Sequence[ShardLayout], Sequence[bytes]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReceipt:
    """How this rank's shard came back."""

    tier: Literal["local", "peer", "persistent"]
    # The node that had it, or most of what did not lie on the own one; or the persistent tier's
    # URL.
    holder: str | None
    ranks_then: int | None = None  # how many ranks made the version, where it was another number
    read_bytes: int = 0  # if so, how much was read of their shards
    local_bytes: int = 0  # what of that was in its own node's memory
    peer_bytes: int = 0  # and what in that of others
    size_bytes: int = 0
    retrieve_s: float = 0.0  # to bring it into the slab
    verify_s: float = 0.0  # to compare it with its checksums
    load_s: float = 0.0  # to put it into the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreContext:
    """A rank that restores, and what holds and carries its copies."""

    rank: int
    seats: Seats
    slab: Slab
    group: CheckpointGroup  # all ranks, used by nothing else meanwhile
    persistent_url: str | None
    lineage: Lineage  # the history in which versions are made from now on
    layout: ShardLayout  # of this rank's shard as the engine has it now
    # Makes this rank's small state of those of a version of another number of ranks, whose layouts
    # it is given too.
    recast: Recast
    old_slabs: Callable[[int], OldSlabs]  # gives this node's slabs of so many ranks
    say: Callable[[str], None]
    # Before a store that did not return what it has is asked again.
    pauses_s: Sequence[float] = ASK_AGAIN_S

    @property
    def node(self) -> str:
        return self.seats.node_of(self.rank)


def restore(
    plan: PlanPart, place: RestoreContext, load: Callable[[memoryview], SmallState]
) -> tuple[RestoreReceipt, SmallState] | None:
    """Do this rank's part of the plan; all ranks call it together.

    Returns:
        The receipt, and what `load` gave; `None` if training starts from scratch.

    Raises:
        UnusableCopyError: A copy cannot be used; the root agent is to plan without it.
        GeminiError: The version fits the engine no more.
    """
    _forget_left_versions(place.slab, plan)
    version = plan.version
    if version is None:
        return None
    if plan.tier == "persistent":
        # From storage a version begins this history: other copies of it are not combined with it.
        lineage, receipt = place.lineage, fetch(version, place)
    elif plan.cuts:
        lineage, receipt = place.lineage, _recut(plan, version, place)
    else:
        lineage, receipt = plan.lineage, _move_copies(plan, version, place)
    copy = place.slab.read(place.rank, version, lineage)
    started_s = time.perf_counter()
    bad = copy.bad_chunks()
    verified_s = time.perf_counter()
    with _usable(version, place, holder=place.node):
        if bad:
            raise IntegrityError(f"{len(bad)} chunks differ from their checksums: {bad[:8]}")
        small = load(copy.data)
    receipt = replace(
        receipt,
        size_bytes=copy.info.payload_bytes,
        verify_s=receipt.verify_s + verified_s - started_s,
        load_s=time.perf_counter() - verified_s,
    )
    return receipt, small


@contextmanager
def _usable(
    version: int,
    place: RestoreContext,
    *,
    shard: int | None = None,  # by default, this rank's own
    holder: str | None = None,
    errors: tuple[type[Exception], ...] = (IntegrityError,),
) -> Iterator[None]:
    """Turn an error in the block into an `UnusableCopyError`; only proof of damage is damage."""
    try:
        yield
    except errors as error:
        raise UnusableCopyError(
            shard=place.rank if shard is None else shard,
            version=version,
            holder=holder,
            reason=str(error),
            is_unread=not isinstance(error, IntegrityError),
        ) from error


def _forget_left_versions(slab: Slab, plan: PlanPart) -> None:
    """Discard what is left behind: later versions, and the plan's own of another history."""
    for copy in slab.copies():
        is_later = plan.version is None or copy.version > plan.version
        is_other = copy.version == plan.version and copy.lineage != plan.lineage
        if is_later or is_other:
            slab.discard(copy.shard, copy.version, copy.lineage)


def _move_copies(plan: PlanPart, version: int, place: RestoreContext) -> RestoreReceipt:
    """Send and receive until every holder has the version; all ranks go in the same order."""
    receipt = RestoreReceipt(tier="local", holder=place.node)
    for move in plan.transfers:
        sender = place.seats.rank_on(move.sender, keeping=move.shard)
        receiver = place.seats.rank_on(move.receiver, keeping=move.shard)
        if sender == place.rank:
            copy = place.slab.read(move.shard, version, plan.lineage)
            send_copy(copy, place.slab.chunk_bytes, to=receiver, group=place.group)
        elif receiver == place.rank:
            started_s = time.perf_counter()
            with _usable(version, place, shard=move.shard, holder=move.sender):
                verify_s = receive_copy(
                    place.slab,
                    shard=move.shard,
                    version=version,
                    sender=sender,
                    group=place.group,
                    lineage=plan.lineage,
                )
            if move.shard == place.rank:
                elapsed_s = time.perf_counter() - started_s
                receipt = RestoreReceipt(
                    tier="peer",
                    holder=move.sender,
                    retrieve_s=elapsed_s - verify_s,
                    verify_s=verify_s,
                )
    return receipt


def fetch(version: int, place: RestoreContext) -> RestoreReceipt:
    """Bring this rank's shard from the persistent tier into its slab.

    A store that does not return it is asked again after growing pauses.
    """
    started_s = time.perf_counter()
    pauses = iter(place.pauses_s)
    while True:
        try:
            receipt = _fetch_once(version, place)
        except UnusableCopyError as error:
            pause_s = next(pauses, None) if error.is_unread else None
            if pause_s is None:
                raise
            if pause_s >= SAY_FROM_S:
                place.say(f"rank {place.rank}: {error.reason}; asked again in {pause_s:g} s")
            time.sleep(pause_s)
        else:
            return replace(receipt, retrieve_s=time.perf_counter() - started_s)


def _fetch_once(version: int, place: RestoreContext) -> RestoreReceipt:
    stored = partial(_usable, version, place, errors=(GeminiError, OSError))
    with stored():
        tier = persistent_tier(str(place.persistent_url))
        ranks_then = tier.shards(version)
    receipt = RestoreReceipt(tier="persistent", holder=place.persistent_url)
    if ranks_then == place.seats.world_size:
        with stored():
            payload, own = tier.read_file(version, place.rank)
        # Before the buffer is begun: that gives up the oldest version in memory.
        require_same(own.identity, place.layout.identity)  # it may be another run's, or model's
        buffer = place.slab.begin(place.rank, version, place.lineage)
        buffer.data[: len(payload)] = payload
        buffer.seal(len(payload))
        return receipt
    with stored():
        shards = tier.open_shards(version)
    layouts = [shard.layout for shard in shards]
    plan = plan_recut(layouts, place.layout)
    with _usable(version, place):
        small = place.recast(layouts, [shard.small for shard in shards])
    buffer = _begin_cut(place, version, plan, small)
    for number, shard in enumerate(shards):
        with stored():
            shard.copy(plan.moves_from(number), buffer.data.data)
    buffer.seal(place.layout.payload_bytes)
    read_bytes = sum(shard.read_bytes for shard in shards)
    return replace(receipt, ranks_then=len(shards), read_bytes=read_bytes)


def _recut(plan: PlanPart, version: int, place: RestoreContext) -> RestoreReceipt:
    """Put this rank's shard together of those of another number of ranks, in memory."""
    started_s = time.perf_counter()
    old = OldShards(
        plan,
        version,
        place.old_slabs(len(plan.cuts)),
        rank=place.rank,
        seats=place.seats,
        group=place.group,
    )
    moves = plan_recut(old.layouts, place.layout, near=old.near)
    small = place.recast(old.layouts, old.smalls)
    buffer = _begin_cut(place, version, moves, small)
    old.copy(moves.moves, buffer.data.data)
    buffer.seal(place.layout.payload_bytes)
    return RestoreReceipt(
        tier="peer" if old.peer_bytes else "local",
        holder=max(old.peers, key=lambda node: old.peers[node], default=place.node),
        ranks_then=len(plan.cuts),
        read_bytes=old.local_bytes + old.peer_bytes,
        local_bytes=old.local_bytes,
        peer_bytes=old.peer_bytes,
        retrieve_s=time.perf_counter() - started_s,
    )


def _begin_cut(place: RestoreContext, version: int, moves: Recut, small: bytes) -> WriteBuffer:
    """Return a new shard with all but what comes from others."""
    layout = place.layout
    buffer = place.slab.begin(place.rank, version, place.lineage)
    end_bytes = layout.small_offset_bytes + layout.small_capacity_bytes
    buffer.data[layout.small_offset_bytes : end_bytes] = 0
    buffer.data[layout.small_offset_bytes :][: len(small)] = memoryview(small)
    for start, size_bytes in moves.zeros:
        buffer.data[start : start + size_bytes] = 0
    return buffer
