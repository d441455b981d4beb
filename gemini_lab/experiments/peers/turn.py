"""One turn of one peer on one rank: `python -m gemini_lab.experiments.peers.turn TASK-AS-JSON`.

Runs in the peer's own environment, so it stands on torch and on this package alone. What it found
goes to `rank-N.json` in the task's folder. When memory is to be sampled, a file there says so.
"""

import contextlib
import json
import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from gemini_lab.experiments.peers.catalog import CATALOG
from gemini_lab.experiments.peers.contract import (
    Findings,
    Peer,
    Region,
    Task,
    are_equal,
    flip,
    size_of,
)

WARM_UPS: Final = 2
"""Saves before the one that counts; one restore is made before the one that counts."""
SAMPLING: Final = "sampling"
SAMPLED: Final = "sampled"
"""Files that say: sample memory now, and: it was sampled."""
_PATIENCE_S: Final = 120.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and write what was found, or why nothing was."""
    values = json.loads(arguments[0])
    task = Task(**{**values, "folder": Path(values["folder"])})
    findings = Findings(versions=_versions(CATALOG[task.peer].packages))
    try:
        dist.init_process_group("gloo")
        peer = CATALOG[task.peer].make(task)
        try:
            measure(peer, findings)
        finally:
            peer.close()
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result here
        traceback.print_exc()
        findings.error = f"{type(error).__name__}: {error}"
    result = task.folder / f"rank-{task.rank}.json"
    result.with_suffix(".part").write_text(json.dumps(asdict(findings)), encoding="utf-8")
    result.with_suffix(".part").rename(result)
    return 0


def measure(peer: Peer, findings: Findings) -> None:
    """Save, restore, save and restore once more for the memory, then damage what is stored."""
    for step in range(1, WARM_UPS + 2):
        findings.held_up_s, findings.peer_copy_s = _save(peer, step)
    _restore(peer)
    findings.restore_s = _restore(peer)
    peer.measure_more()
    findings.details = dict(peer.details)
    with _sampled(peer.task):
        _save(peer, WARM_UPS + 2)
        restored = peer.restore()
        _await_sample(peer.task)
        del restored
    findings.flips = _damage(peer)


def _save(peer: Peer, step: int) -> tuple[float, float | None]:
    """How long training was held up, and after what time the copy on a peer was whole."""
    peer.update()
    dist.barrier()
    started_s = time.perf_counter()
    peer.begin(step)
    held_up_s = time.perf_counter() - started_s
    time.sleep(peer.task.iteration_s)
    asked_s = time.perf_counter()
    peer.before_update()
    held_up_s += time.perf_counter() - asked_s
    whole_s = peer.finish()
    return held_up_s, None if whole_s is None else whole_s - started_s


def _restore(peer: Peer) -> float | None:
    """How long the restore took, which must give what was saved."""
    expected = peer.expected()
    _blank(peer)
    dist.barrier()
    started_s = time.perf_counter()
    restored = peer.restore()
    took_s = time.perf_counter() - started_s
    if restored is None:
        return None
    if not are_equal(restored, expected):
        raise ValueError("what it restored is not what was saved")
    return took_s


def _blank(peer: Peer) -> None:
    if peer.restores_in_place:
        for tensor in peer.state.values():
            tensor.zero_()


@contextlib.contextmanager
def _sampled(task: Task) -> Iterator[None]:
    """Have the bench sample memory within."""
    sampling = task.folder / SAMPLING
    dist.barrier()
    if task.rank == 0:
        sampling.touch()
    yield
    dist.barrier()
    if task.rank == 0:
        sampling.unlink()


def _await_sample(task: Task) -> None:
    """Return when memory was sampled at least once from now on."""
    sampled = task.folder / SAMPLED
    if task.rank == 0:
        sampled.unlink(missing_ok=True)
        deadline_s = time.monotonic() + _PATIENCE_S
        while not sampled.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
    dist.barrier()


def _damage(peer: Peer) -> dict[str, int]:
    """What became of each of the bits that were flipped in what rank 0 stored."""
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


def _versions(packages: Sequence[str]) -> str:
    found = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
