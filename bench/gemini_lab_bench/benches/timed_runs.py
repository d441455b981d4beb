"""Iteration times, and the network's idle time, of the lab's own job in a lab and without one."""

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import RunFailedError
from gemini_lab.job import Job, python_command
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.under_torchrun import start_with_keeper
from gemini_lab.report.bars import Kind
from gemini_lab.report.build import report_of
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab.report.values import TrafficPlan
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import format_seconds
from gemini_lab_bench.progress import say

AS_IF_LARGE: Final[dict[str, int]] = {
    "stage3_param_persistence_threshold": 10_000,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "reduce_bucket_size": 100_000,
}
"""ZeRO-3's thresholds (numbers of elements) scaled down with the model.

With the usual ones a tiny model's parameters all stay in place, or are gathered at once, and its
iteration has one long idle span. With these every weight is gathered for each pass and gradients
leave in buckets, as in models that are much larger than the usual thresholds.
"""
FEW_SPANS: Final[dict[str, int]] = {"stage3_param_persistence_threshold": 10_000}
"""All weights are gathered at once for each micro-batch: one long idle span in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWorkload:
    """What every arm of a comparison runs, on two nodes."""

    size: str = "tiny"  # of the GPT
    # Micro-batches of an iteration: more of them are more training traffic beside the same
    # checkpoint.
    accumulate: int = 1
    # Settings of ZeRO, such as `AS_IF_LARGE` or `FEW_SPANS`.
    zero: Mapping[str, int] = field(default_factory=dict)
    iterations: int  # of each run
    counted: int  # how many of the last ones count; before them a schedule must have been made
    layer_s: float = 0.0  # emulated accelerator time of a block's forward pass
    link_bytes_per_s: float | None = None  # the nodes' emulated links; `None` is bare loopback
    # Where its ranks wait for their turns, if it trains in turns with another job.
    turns: Path | None = None
    turn_iterations: int = 8  # of each turn

    @property
    def conditions(self) -> dict[str, Any]:
        found: dict[str, Any] = {"size": self.size, "nodes": 2}
        if self.accumulate > 1:
            found["micro_batches"] = self.accumulate
        if self.zero:
            found["zero"] = "thresholds scaled down"
        if self.layer_s:
            found["layer_s"] = self.layer_s
        if self.link_bytes_per_s:
            found["link_bytes_per_s"] = self.link_bytes_per_s
        return found

    def job(self, times: Path) -> Job:
        """Return the job, which writes into `times` when its iterations ended."""
        in_turn: dict[str, Any] = {}
        if self.turns:
            in_turn = {"turns": self.turns, "turn_iterations": self.turn_iterations}
        return gpt_job(
            size=self.size,
            iterations=self.iterations,
            accumulate=self.accumulate,
            zero=dict(self.zero),
            layer_s=self.layer_s,
            times=times,
            **in_turn,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What an iteration took: by the clock, and of a processor."""

    clock_s: float  # from the end of the one before
    process_s: float  # processor time of rank 0's process, of all its threads
    thread_s: float  # the same of its training thread alone
    ready_s: float  # for how long that thread could have run, and no processor was free


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """What one run took."""

    iteration_s: float  # median duration of the counted iterations
    each: tuple[Spent, ...] = ()  # what each of the counted iterations took
    plan: TrafficPlan | None = None  # what its chunks followed at last, if anything
    idle_s: float = 0.0  # time in which rank 0's network was idle, in an iteration of its profile
    # The same in the counted iterations, which carried versions in those spans: what neither
    # training's collectives nor chunks took. Median.
    idle_left_s: float = 0.0
    # Time in which only chunks held the network there, from the first one in a span to the last, so
    # at most: pauses between chunks count too. Median.
    checkpoint_s: float = 0.0
    notes: tuple[str, ...] = ()  # what it remarked
    sent_bytes: int = 0  # what rank 0 sent at most of a version in the counted iterations
    waited_s: float = 0.0  # median time for which rank 0's update waited for its version


def in_lab(lab: Lab, workload: TimedWorkload, **settings: Any) -> TimedRun:
    """Measure one run on the lab's nodes."""
    with tempfile.TemporaryDirectory(prefix="gemini-lab-times-") as folder:
        times = Path(folder) / "times.json"
        job = workload.job(times)
        run = lab.train(
            job, persistent_url=None, link_bytes_per_s=workload.link_bytes_per_s, **settings
        ).wait()
        measured = _measured(times, workload)
    named = ", ".join(f"{name} {value}" for name, value in settings.items())
    say(f"{format_seconds(measured.iteration_s)} an iteration: {named or 'the defaults'}")
    return _timed(
        RunReducer.load(run.folder, keep=replace(FOR_REPORT, bars=1_000_000)), workload, measured
    )


def _timed(run: RunReducer, workload: TimedWorkload, measured: TimedRun) -> TimedRun:
    """Return what the log of a run says, beside how long its iterations took."""
    report = report_of(run)
    plan = report.plans[-1] if report.plans else None
    before = workload.iterations - workload.counted
    left_s, taken_s = network_times(run.traffic, after=before) if plan else (0.0, 0.0)
    waits = [each.waited_s for each in report.iterations if each.rank == 0]
    return replace(
        measured,
        plan=plan,
        idle_s=sum(span.duration_s for span in plan.profile.idle_spans) if plan else 0.0,
        idle_left_s=left_s,
        checkpoint_s=taken_s,
        notes=report.notes,
        sent_bytes=max(
            (
                row.size_bytes
                for row in run.traffic.bars.rows(Kind.COMPLETE, rank=0)
                if row.number > before
            ),
            default=0,
        ),
        waited_s=statistics.median(waits[-workload.counted :]),
    )


def under_torchrun(workload: TimedWorkload) -> TimedRun:
    """Run the same script by torchrun, without a lab.

    Raises:
        RunFailedError: The script failed.
    """
    with tempfile.TemporaryDirectory(prefix="gemini-lab-times-") as folder:
        times = Path(folder) / "times.json"
        job = workload.job(times)
        args = list(job.args)
        if workload.link_bytes_per_s is not None:
            args += ["--link-bytes-per-s", str(workload.link_bytes_per_s)]
        runner = [*python_command("torch.distributed.run"), "--standalone"]
        runner.append(f"--log-dir={folder}")  # or it would leave one of its own
        with start_with_keeper(
            [*runner, "--nproc-per-node=2", "-m", job.script, *args],
            env={**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as torchrun:
            try:
                _, said = torchrun.communicate()
            finally:
                torchrun.terminate()  # if this was interrupted: it ends its workers too
        if torchrun.returncode:
            last = said.decode(errors="replace")[-2000:]
            raise RunFailedError(f"the script failed under torchrun:\n{last}")
        measured = _measured(times, workload)
    say(f"{format_seconds(measured.iteration_s)} an iteration: under torchrun")
    return measured


def network_times(traffic: TrafficBars, *, after: int = 0) -> tuple[float, float]:
    """Return an iteration's seconds with an idle network, and those in which only chunks held it.

    Medians over rank 0's iterations whose collectives were told; zeros where there are none.
    """
    bars = traffic.bars
    chunks = [row.interval for row in bars.rows(Kind.TRANSFER, rank=0)]
    calls: dict[int, list[tuple[float, float]]] = {}
    for row in bars.rows(Kind.COLLECTIVE, rank=0):
        calls.setdefault(row.number, []).append(row.interval)
    found = []
    for row in bars.rows(Kind.ITERATION, rank=0):
        if row.number > after and (training := calls.get(row.number)):
            left_s = idle_s(*row.interval, [*training, *chunks])
            found.append((left_s, idle_s(*row.interval, training) - left_s))
    if not found:
        return 0.0, 0.0
    return statistics.median(one for one, _ in found), statistics.median(one for _, one in found)


def idle_s(begin_s: float, end_s: float, busy: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from `begin_s` to `end_s` that lie in no (start, end) pair of `busy`."""
    free, at_s = 0.0, begin_s
    for start_s, stop_s in sorted(busy):
        free += max(0.0, min(start_s, end_s) - at_s)
        at_s = max(at_s, min(stop_s, end_s))
    return free + max(0.0, end_s - at_s)


def _measured(times: Path, workload: TimedWorkload) -> TimedRun:
    ended = json.loads(times.read_text(encoding="utf-8"))[-workload.counted - 1 :]
    each = tuple(
        Spent(**{what: after[what] - before[what] for what in after})
        for before, after in pairwise(ended)
    )
    return TimedRun(iteration_s=statistics.median(one.clock_s for one in each), each=each)
