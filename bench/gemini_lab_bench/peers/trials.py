"""What is done to a peer: saves and restores, early updates, flipped bits, a killed rank.

Every trial is called by all ranks together, like the methods of a `Peer`.
"""

import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gemini_lab_bench.peers.contract import Peer, Region, are_equal, flip, size_of

_PATIENCE_S = 20.0  # for survivors of a kill: Gloo may never tell them


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """What one save took."""

    held_up_s: float  # time for which training waited, in the call and before its update
    peer_copy_s: float | None  # until a copy was whole on another rank, if the peer makes such
    over_s: float  # until nothing was left to do


def save(peer: Peer, step: int, *, idle_s: float) -> Save:
    """Update and save, with `idle_s` for the peer between the call and the next update."""
    peer.update()
    dist.barrier()
    started_s = time.perf_counter()
    peer.begin(step)
    held_up_s = time.perf_counter() - started_s
    time.sleep(idle_s)
    asked_s = time.perf_counter()
    peer.before_update()
    held_up_s += time.perf_counter() - asked_s
    whole_s = peer.finish()
    return Save(
        held_up_s=held_up_s,
        peer_copy_s=None if whole_s is None else whole_s - started_s,
        over_s=time.perf_counter() - started_s,
    )


def restore(peer: Peer) -> float | None:
    """Return how long the restore took, which must give what was saved."""
    expected = peer.expected()
    blank(peer)
    dist.barrier()
    started_s = time.perf_counter()
    restored = peer.restore()
    took_s = time.perf_counter() - started_s
    if restored is None:
        return None
    if not are_equal(restored, expected):
        raise ValueError("what it restored is not what was saved")
    return took_s


def blank(peer: Peer) -> None:
    """Forget the state where `restore` puts it back in place."""
    if peer.restores_in_place:
        for tensor in peer.state.values():
            tensor.zero_()


# -- an update at the wrong moment ---------------------------------------------------------------


def tear(peer: Peer, step: int, *, guarded: bool) -> int | None:
    """Save, update, and count the tensors of the restored state that have values of the update.

    If `guarded`, the update waits until the peer allows it; else it comes with the call's return.

    Returns:
        `None` if the peer restores nothing on this rank.

    Raises:
        Exception: The peer refused, each in a way of its own.
    """
    peer.update()
    expected = peer.expected()
    dist.barrier()
    peer.begin(step)
    if guarded:
        peer.before_update()
    peer.update()
    peer.finish()
    if not guarded:
        peer.before_update()  # too late for this update, but what it ends must end
    blank(peer)
    restored = peer.restore()
    if restored is None:
        return None
    return sum(not torch.equal(restored[name], expected[name]) for name in expected)


# -- flipped bits --------------------------------------------------------------------------------


def damage(peer: Peer) -> dict[str, int]:
    """Return what became of each of the bits that were flipped in what rank 0 stored."""
    is_mine = peer.task.rank == 0
    regions = peer.stored() if is_mine else ()
    found = {"silent": 0, "refused": 0, "harmless": 0}
    stores = [len(regions)]
    dist.broadcast_object_list(stores, src=0)
    if not stores[0] or not peer.task.flips:
        return {}
    expected = peer.expected()
    draw = random.Random(peer.task.seed)
    for _ in range(peer.task.flips):
        outcome = _load_damaged(peer, regions, draw, expected)
        found[outcome] += 1
    return found if is_mine else {}


def _load_damaged(
    peer: Peer, regions: Sequence[Region], draw: random.Random, expected: dict[str, torch.Tensor]
) -> str:
    """Load with one bit flipped, which is flipped back afterwards."""
    bit = draw.randrange(8 * sum(map(size_of, regions))) if regions else 0
    if regions:
        flip(regions, bit)
    dist.barrier()
    try:
        restored = peer.restore()
        # Compared before the bit is flipped back: what was restored may be views.
        outcome = "harmless" if restored is None or are_equal(restored, expected) else "silent"
    except Exception as error:  # noqa: BLE001 - any refusal is one
        print(f"refused: {error}")  # noqa: T201
        outcome = "refused"
    dist.barrier()
    if regions:
        flip(regions, bit)
    return outcome


# -- a killed rank -------------------------------------------------------------------------------


def kill(
    peer: Peer, steps: tuple[int, int], *, after_s: float, last_words: Callable[[], object]
) -> tuple[float, int] | None:
    """Kill the last rank in the middle of its second save, and ask the others for its state.

    The rank is killed `after_s` into the second save, before which it calls `last_words`.

    Returns:
        Seconds that taking over its tensors took, and how many saves they were behind the one under
        way; `None` if there is nothing of it here.

    Raises:
        ValueError: What was taken over is neither of the two saves.
    """
    lost = peer.task.ranks - 1
    is_mine = peer.task.rank == lost
    save(peer, steps[0], idle_s=peer.task.iteration_s)
    older = [_digest(peer.state)]
    peer.update()
    known = [*older, _digest(peer.state)]
    dist.broadcast_object_list(known, src=lost)
    dist.barrier()
    if is_mine:
        last_words()
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    under_way = threading.Thread(target=_begin_and_wait, args=(peer, steps[1]), daemon=True)
    under_way.start()
    under_way.join(_PATIENCE_S)
    if is_mine:
        time.sleep(_PATIENCE_S)
    started_s = time.perf_counter()
    taken = peer.take_over(lost)
    took_s = time.perf_counter() - started_s
    if taken is None:
        return None
    found = _digest(taken)
    if found not in known:
        raise ValueError("what was taken over from a killed rank is no state that it had saved")
    return took_s, 1 - known.index(found)


def _begin_and_wait(peer: Peer, step: int) -> None:
    """Save while another rank dies; how that ends is no matter."""
    try:
        peer.begin(step)
        peer.before_update()
        peer.finish()
    except Exception as error:  # noqa: BLE001 - that is what a death looks like
        print(f"a rank was killed: {error}")  # noqa: T201


def _digest(state: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in state.values():
        found.update(tensor.numpy().data)
    return found.hexdigest()
