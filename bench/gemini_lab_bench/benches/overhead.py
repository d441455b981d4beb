"""The `overhead` bench: what a checkpoint of every iteration costs training (paper, Fig. 7).

The other side of the comparison is the same script under plain torchrun: no agent, no hook, nothing
of ours but, where a link is emulated, its pacing. Both train in turns of some iterations, so that
they meet the same machine, on a slow day and on a fast one. Two launches of plain torchrun, beside
each other in the same way, say how far launches differ that are the same.
"""

import socket
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.errors import RunFailedError
from gemini_lab.training.turns import LIMIT_S, TURN
from gemini_lab.units import MB, MIB
from gemini_lab_bench.benches.copy import memory_rows, wire_rows
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.benches.timed_runs import (
    AS_IF_LARGE,
    Spent,
    TimedRun,
    TimedWorkload,
    in_lab,
    under_torchrun,
)
from gemini_lab_bench.rows import Row

IDLE: Final = TimedWorkload(
    iterations=88,
    counted=64,
    turn_iterations=8,
    layer_s=0.04,
    link_bytes_per_s=80.0 * MB,
    zero=AS_IF_LARGE,
)
"""A paced link, idle for longer than a checkpoint takes, as an accelerator would leave it."""
LOOPBACK: Final = TimedWorkload(size="small", iterations=32, counted=28, turn_iterations=4)
"""Nothing emulated: computing, copying and sending share the CPU."""
PROFILE_ITERATIONS: Final = 8
PLAIN: Final = "plain torchrun"
ADDED: Final = {
    "processor time added, the whole process": "process_s",
    "processor time added, its training thread": "thread_s",
    "waiting for a processor added, its training thread": "ready_s",
}
"""What a row tells of rank 0, and the field of `Spent` that it is made of."""


Way = Callable[[TimedWorkload], TimedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInTurns:
    """Two runs of the same script that trained in turns."""

    plain: TimedRun  # under torchrun
    ours: TimedRun  # in a lab, or whatever stands beside it
    # Of each turn. In the first of them a job also waited for its turn, so that it does not count.
    turn_iterations: int
    waiting: float = 0.0  # the share of a core that was in use while both waited

    @property
    def ratio(self) -> float:
        """Our iteration's duration beside the other one's: the mean over turns."""
        return statistics.fmean(
            _median_s(ours) / _median_s(plain)
            for plain, ours in zip(self._turns(self.plain), self._turns(self.ours), strict=True)
        )

    def added_s(self, what: str) -> float:
        """Return what an iteration of ours takes more of; `what` names a field of `Spent`."""

        def mean(run: TimedRun) -> float:
            return statistics.fmean(getattr(one, what) for turn in self._turns(run) for one in turn)

        return mean(self.ours) - mean(self.plain)

    def iteration_s(self, run: TimedRun) -> float:
        return _median_s([one for turn in self._turns(run) for one in turn])

    def _turns(self, run: TimedRun) -> Iterator[Sequence[Spent]]:
        for start in range(0, len(run.each), self.turn_iterations):
            yield run.each[start + 1 : start + self.turn_iterations]


def _median_s(spent: Sequence[Spent]) -> float:
    return statistics.median(one.clock_s for one in spent)


def bench(repeats: int) -> list[Row]:
    """Measure iterations with and without checkpoints; a ratio is that of adjacent turns."""
    with ready_lab(2) as lab:
        planned = partial(in_lab, lab, scheme="gemini", profile_iterations=PROFILE_ITERATIONS)
        background, blocking = partial(in_lab, lab), partial(in_lab, lab, scheme="blocking")
        ways: dict[str, Way] = {
            "another launch of it": under_torchrun,
            "gemini": planned,
            "blocking": blocking,
        }
        idle = _launch_all(ways, IDLE, repeats)
        loopback = _launch_all({"background": background, "blocking": blocking}, LOOPBACK, repeats)
    return [
        *compare(idle, IDLE, name="idle link"),
        *compare(loopback, LOOPBACK, name="loopback"),
        *_floor(loopback["background"], repeats),
    ]


def _launch_all(
    ways: Mapping[str, Way], workload: TimedWorkload, repeats: int
) -> dict[str, list[PairInTurns]]:
    """Launch each way once per repeat, so that a slow minute of the machine slows all of them."""
    pairs: dict[str, list[PairInTurns]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            pairs[name].append(in_turns(workload, way))
    return pairs


def in_turns(workload: TimedWorkload, way: Way) -> PairInTurns:
    """Run the workload in one of our ways, such as `in_lab`, and under torchrun, in turns."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="gemini-lab-turns-")))
        pool = opened.enter_context(ThreadPoolExecutor(2))
        at = {name: folder / name for name in ("plain", "ours")}
        # These close first: where turns are given no more, both jobs train on, and end.
        jobs = {name: opened.enter_context(closing(listen(each))) for name, each in at.items()}
        plain = pool.submit(under_torchrun, replace(workload, turns=at["plain"]))
        ours = pool.submit(way, replace(workload, turns=at["ours"]))
        waiting = give_turns(jobs, ranks=2)
        return PairInTurns(
            plain=plain.result(),
            ours=ours.result(),
            turn_iterations=workload.turn_iterations,
            waiting=waiting,
        )


def compare(arms: dict[str, list[PairInTurns]], workload: TimedWorkload, *, name: str) -> list[Row]:
    """Return iteration times of each arm, and their ratio to plain torchrun's in the same turns.

    The processor time is what rank 0's process takes more of in an iteration: what no idle time of
    a network hides.
    """
    conditions = {**workload.conditions, "turn_iterations": workload.turn_iterations}
    pairs = [pair for each in arms.values() for pair in each]
    rows = [
        Row(
            f"{name}, {PLAIN}",
            tuple(pair.iteration_s(pair.plain) for pair in pairs),
            settings=conditions,
        )
    ]
    for arm, each in arms.items():
        rows.append(
            Row(
                f"{name}, {arm}",
                tuple(pair.iteration_s(pair.ours) for pair in each),
                settings=conditions,
            )
        )
    for arm, each in arms.items():
        ratios = tuple(pair.ratio for pair in each)
        rows.append(Row(f"{name}, {arm} / {PLAIN}", ratios, unit=""))
    for arm, each in arms.items():
        for what, of in ADDED.items():
            rows.append(Row(f"{name}, {arm}: {what}", tuple(pair.added_s(of) for pair in each)))
    waiting = tuple(pair.waiting for pair in pairs)
    return [*rows, Row(f"{name}, in use while both wait", waiting, unit="cores")]


def _floor(pairs: list[PairInTurns], repeats: int) -> list[Row]:
    """Compare what background checkpoints add to an iteration with the least their bytes take.

    The least is one copy, one checksum and one exchange by bare Gloo of the same bytes, each alone.
    """
    payload_bytes = pairs[0].ours.sent_bytes
    rates = {row.name: row.median for row in (*memory_rows(repeats), *wire_rows(repeats))}
    size_mib = payload_bytes / MIB
    floor_s = sum(size_mib / rates[name] for name in ("memcpy", "checksum", "bare Gloo"))
    added = tuple((pair.ratio - 1) * pair.iteration_s(pair.plain) for pair in pairs)
    return [
        Row("loopback, added by background", added),
        Row("loopback, floor", (floor_s,), settings={"bytes": payload_bytes}),
        Row("loopback, added / floor", tuple(one / floor_s for one in added), unit=""),
    ]


# -- turns: a machine changes its speed within minutes, so each job waits for seconds --------------


def listen(address: Path) -> socket.socket:
    """Return the socket to which the ranks of one job come."""
    listening = socket.socket(socket.AF_UNIX)
    listening.settimeout(LIMIT_S)
    listening.bind(str(address))
    listening.listen()
    return listening


def give_turns(jobs: Mapping[str, socket.socket], *, ranks: int, rest_s: float = 3.0) -> float:
    """Give jobs turns to train until all of them have ended.

    All wait for `rest_s` before the first turn.

    Returns:
        The share of a core that was in use while all of them waited: what a job that waits may take
        from the one whose turn it is.

    Raises:
        RunFailedError: A job's ranks did not come, or its turn did not end, within `LIMIT_S`.
    """
    with ExitStack() as opened:
        waiting = {
            job: [opened.enter_context(closing(_came(listening, job))) for _ in range(ranks)]
            for job, listening in jobs.items()
        }
        for job, partners in waiting.items():
            _have_ended(partners, job)
        in_use: float = psutil.cpu_percent(rest_s) / 100 * (psutil.cpu_count() or 1)
        while waiting:
            for job, partners in list(waiting.items()):
                for partner in partners:
                    partner.sendall(TURN)
                if not _have_ended(partners, job):
                    del waiting[job]
    return in_use


def _came(listening: socket.socket, job: str) -> socket.socket:
    try:
        partner, _ = listening.accept()
    except TimeoutError:
        raise RunFailedError(
            f"{job}: not all ranks were ready to train within {LIMIT_S:.0f} s"
        ) from None
    partner.settimeout(LIMIT_S)
    return partner


def _have_ended(partners: Sequence[socket.socket], job: str) -> bool:
    """Wait until all have ended their turn; whether they want another one."""
    try:
        said = [partner.recv(1) for partner in partners]
    except TimeoutError:
        raise RunFailedError(f"{job}: a turn took longer than {LIMIT_S:.0f} s") from None
    return all(said)
