"""A log of any length as a run writes it: nodes train, send their versions, and sometimes fail.

Nobody trained here; the times are drawn.
"""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.placement import plan_placement
from gemini_lab.settings import Settings

NODES: Final = 8
LASTS: Final = 20_000
"""Iterations from one failure to the next."""
SHARD_BYTES: Final = 78_307_584
"""As in a quickstart."""
KINDS: Final = (
    ("all_gather_into_tensor", 102_760_448),
    ("reduce_scatter_tensor", 102_977_536),
    ("all_reduce", 8),
    ("all_gather_into_tensor", 2_048),
)
BEGAN_S: Final = 1_795_000_000.0
ROOT: Final = "node-8"


def write(log: Path, *, lines: int, calls: int, lasts: int = LASTS) -> None:
    """Write a run's log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        for entry in islice(_Run(calls, lasts).entries(), lines):
            file.write(encode_entry(entry) + b"\n")


class _Run:
    """A run that goes on for ever, entry by entry."""

    def __init__(self, calls: int, lasts: int) -> None:
        self._calls, self._lasts = calls, lasts
        self._draws = random.Random(1)
        self._now_s = BEGAN_S
        self._epoch = 1
        self._members = tuple(f"node-{rank}" for rank in range(NODES))

    def entries(self) -> Iterator[Entry]:
        yield self._by("lab", events.LogOpened(schema=events.SCHEMA))
        names = (*self._members, ROOT)
        yield self._by("lab", events.LabStarted(nodes=NODES, standbys=1, names=names, root=ROOT))
        job = events.RunStarted(
            name="long",
            script="job.py",
            nodes=NODES,
            standbys=1,
            workers_per_node=1,
            settings={"replicas": 2, "scheme": "background"},
        )
        yield self._by("lab", job)
        yield from self._start(0, version=0)
        number = 0
        while True:
            number += 1
            yield from self._iterate(number)
            if number % self._lasts == 0:
                yield from self._fail(number)

    def _by(self, node: str, event: Any) -> Entry:
        return Entry(at_s=self._now_s, node=node, event=event)

    def _start(self, recovery: int, *, version: int) -> Iterator[Entry]:
        plan = events.RecoveryPlanned(
            recovery=recovery,
            epoch=self._epoch,
            version=version,
            tier="memory" if version else "start",
            members=self._members,
            sources=(),
            transfers=(),
            reason="",
        )
        yield self._by(ROOT, plan)
        placement = None if version else plan_placement(nodes=NODES)
        for rank, node in enumerate(self._members):
            protected = events.Protected(
                rank=rank,
                epoch=self._epoch,
                shard_bytes=SHARD_BYTES,
                fingerprint="f",
                settings=Settings(scheme="background"),
                placement=None if rank else placement,
            )
            yield self._by(node, protected)

    def _iterate(self, number: int) -> Iterator[Entry]:
        """Yield an iteration: while it computes, the version before leaves for a peer."""
        took_s = 0.9 + 0.2 * self._draws.random()
        began_s, self._now_s = self._now_s, self._now_s + took_s
        for rank, node in enumerate(self._members):
            who: dict[str, Any] = {"rank": rank, "epoch": self._epoch}
            inputs = events.Inputs(batch=f"{number:016x}", random={"torch": f"{rank:016x}"})
            yield self._by(node, events.IterationBegun(iteration=number, inputs=inputs, **who))
            yield self._by(node, self._collectives(number, began_s, took_s, who))
            sent = events.Transfer(
                version=number - 1,
                span=None,
                peer=rank ^ 1,
                sent_bytes=SHARD_BYTES,
                start_s=began_s + 0.05,
                end_s=began_s + 0.25,
                **who,
            )
            yield self._by(node, sent)
            whole = events.VersionComplete(
                version=number - 1,
                sent_bytes=SHARD_BYTES,
                local_s=0.08,
                duration_s=0.3,
                next_version=number,
                whole_s=0.26,
                **who,
            )
            yield self._by(node, whole)
            done = events.Iteration(
                iteration=number,
                duration_s=took_s,
                waited_s=0.003 if self._draws.random() < 0.1 else 0.0,
                values={"loss": 10 / number**0.3 + self._draws.random() / 100, "grad_norm": 1.5},
                **who,
            )
            yield self._by(node, done)

    def _collectives(
        self, number: int, began_s: float, took_s: float, who: dict[str, Any]
    ) -> events.Collectives:
        each_us = 1e6 * took_s / (self._calls + 1)
        drawn = [self._draws.random() for _ in range(self._calls)]
        return events.Collectives(
            iteration=number,
            began_s=began_s,
            kinds=KINDS,
            order=tuple(call % len(KINDS) for call in range(self._calls)),
            gaps_us=tuple(round(each_us * (0.8 + 0.2 * share)) for share in drawn),
            durations_us=tuple(round(each_us * 0.4 * share) + 10 for share in drawn),
            **who,
        )

    def _fail(self, number: int) -> Iterator[Entry]:
        """Yield a worker's crash, and how all go on from the iteration before."""
        rank, recovery = self._draws.randrange(NODES), number // self._lasts
        node = self._members[rank]
        yield self._by(node, events.Injected(failure="worker_crash"))
        self._now_s += 0.1
        exited = events.WorkerExited(
            rank=rank, epoch=self._epoch, pid=1, signal="SIGKILL", exit_code=None
        )
        yield self._by(node, exited)
        self._epoch += 1
        started = events.RecoveryStarted(
            recovery=recovery,
            epoch=self._epoch,
            cause="worker_exited",
            lost=(),
            failed_at_s=self._now_s,
            iteration=number,
        )
        yield self._by(ROOT, started)
        self._now_s += 1.0
        yield from self._start(recovery, version=number)
        self._now_s += 1.0
        finished = events.RecoveryFinished(
            recovery=recovery,
            epoch=self._epoch,
            version=number,
            iteration=number + 1,
            duration_s=2.0,
            lost_iterations=0,
        )
        yield self._by(ROOT, finished)
