"""One turn of one peer on one rank: `python -m gemini_lab_bench.peers.turn TASK-AS-JSON`.

Runs in the peer's own environment, so it stands on torch and on this package alone. What it found
goes to `rank-N.json` in the task's folder. When memory is to be sampled, a file there says so.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Final

import torch.distributed as dist

from gemini_lab_bench.peers import trials
from gemini_lab_bench.peers.catalog import CATALOG
from gemini_lab_bench.peers.contract import Findings, Peer, PeerTask

WARM_UPS: Final = 2
"""Saves before the one that counts; one restore is made before the one that counts."""
BACK_TO_BACK: Final = 5
"""Saves one after another whose mean time counts."""
SAMPLING: Final = "sampling"
SAMPLED: Final = "sampled"
"""Files that say: sample memory now, and: it was sampled."""
_PATIENCE_S: Final = 120.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and write what was found, or why nothing was."""
    values = json.loads(arguments[0])
    task = PeerTask(**{**values, "folder": Path(values["folder"])})
    findings = Findings(versions=_versions(CATALOG[task.peer].packages))
    try:
        dist.init_process_group("gloo")
        peer = CATALOG[task.peer].make(task)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result here
        _answer_error(task, findings, error)
        return 0
    try:
        measure(peer, findings)
        answer(task, findings)  # before `close`, which may wait for a rank that was killed
    except Exception as error:  # noqa: BLE001 - as above
        _answer_error(task, findings, error)
    peer.close()
    return 0


def _answer_error(task: PeerTask, findings: Findings, error: Exception) -> None:
    traceback.print_exc()
    findings.error = f"{type(error).__name__}: {error}"
    answer(task, findings)


def answer(task: PeerTask, findings: Findings) -> None:
    """Write what this rank found where the bench waits for it."""
    result = task.folder / f"rank-{task.rank}.json"
    result.with_suffix(".part").write_text(json.dumps(asdict(findings)), encoding="utf-8")
    result.with_suffix(".part").rename(result)


def measure(peer: Peer, findings: Findings) -> None:
    """Time saves and restores, sample the memory of one more of each, then do what may go wrong."""
    steps = itertools.count(1)
    _time(peer, findings, steps)
    if peer.keeps_saves:
        findings.guarded_torn = trials.tear(peer, next(steps), guarded=True)
    with _sampled(peer.task):
        _save(peer, next(steps))
        restored = peer.restore()
        _await_sample(peer.task)
        del restored
    findings.flips = trials.damage(peer)
    try:
        if peer.keeps_saves:
            findings.torn = trials.tear(peer, next(steps), guarded=False)
    except Exception as error:  # noqa: BLE001 - any refusal is one
        print(f"refused: {error}")  # noqa: T201
        findings.refuses_torn = True
        peer.start_over()
    if peer.keeps_copies:
        taken = trials.kill(
            peer,
            (next(steps), next(steps)),
            after_s=(findings.peer_copy_s or 0.0) / 2,
            last_words=lambda: answer(peer.task, findings),
        )
        if taken is not None:
            findings.take_over_s, findings.lost_saves = taken


def _time(peer: Peer, findings: Findings, steps: Iterator[int]) -> None:
    for step in itertools.islice(steps, WARM_UPS + 1):
        one = _save(peer, step)
        findings.held_up_s, findings.peer_copy_s = one.held_up_s, one.peer_copy_s
    trials.restore(peer)
    findings.restore_s = trials.restore(peer)
    peer.measure_more()
    findings.details = dict(peer.details)
    many = [trials.save(peer, step, idle_s=0.0) for step in itertools.islice(steps, BACK_TO_BACK)]
    findings.back_to_back_s = statistics.fmean(one.over_s for one in many)


def _save(peer: Peer, step: int) -> trials.Save:
    return trials.save(peer, step, idle_s=peer.task.iteration_s)


@contextlib.contextmanager
def _sampled(task: PeerTask) -> Iterator[None]:
    sampling = task.folder / SAMPLING
    dist.barrier()
    if task.rank == 0:
        sampling.touch()
    yield
    dist.barrier()
    if task.rank == 0:
        sampling.unlink()


def _await_sample(task: PeerTask) -> None:
    """Return when memory was sampled at least once from now on."""
    sampled = task.folder / SAMPLED
    if task.rank == 0:
        sampled.unlink(missing_ok=True)
        deadline_s = time.monotonic() + _PATIENCE_S
        while not sampled.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
    dist.barrier()


def _versions(packages: Sequence[str]) -> str:
    found = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
