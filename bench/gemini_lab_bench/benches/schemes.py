"""The paper's Fig. 16, measured here: five ways to send a checkpoint over one link.

Two nodes train on a paced link with an accelerator's time in their layers; received sub-buffers are
emptied by a paced bus. What is kept of the paper's set-up are ratios: a checkpoint takes the link
for about a seventh of an iteration (on p3dn: a tenth) and for 0.7 of its idle time (p3dn: 0.7), the
buffer is 3.4 % of a shard and has four parts, the bus is 1.45 times as fast as the link (fitted
there, see `fig16`), and one piece as large as the largest idle span does not fit the buffer. Eight
micro-batches an iteration stand for the training traffic that sixteen nodes have; each has one long
idle span, since the paper's time for plain interleaving implies few long ones.

The link is slow, and a run takes over a minute: a chunk takes some tenths of a millisecond of CPU,
which must be little beside its time on the link, as it is where chunks have 32 MB.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gemini_lab.units import KIB, MB
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.benches.timed_runs import FEW_SPANS, TimedRun, TimedWorkload, in_lab
from gemini_lab_bench.rows import Row

LINK_BYTES_PER_S: Final = 10.0 * MB
WORKLOAD: Final = TimedWorkload(
    iterations=24,
    counted=9,
    accumulate=8,
    layer_s=0.0097,
    zero=FEW_SPANS,
    link_bytes_per_s=LINK_BYTES_PER_S,
)
SETTINGS: Final[dict[str, Any]] = {
    "profile_iterations": 6,
    "buffer_bytes": 136 * KIB,
    "sub_buffers": 4,
    "copy_bytes_per_s": 1.45 * LINK_BYTES_PER_S,
}
SCHEMES: Final = ("none", "blocking", "naive", "interleaved", "gemini")


def bench(repeats: int) -> list[Row]:
    """Measure iterations of the five schemes in turn, and their ratios to none in the same turn."""
    with ready_lab(2) as lab:
        turns = [
            {scheme: in_lab(lab, WORKLOAD, scheme=scheme, **SETTINGS) for scheme in SCHEMES}
            for _ in range(repeats)
        ]
    return rows(turns)


def rows(turns: Sequence[Mapping[str, TimedRun]]) -> list[Row]:
    """Return for each scheme its times, its ratio to none, and what its schedule predicted.

    A scheme that was refused, as naive is where its pieces exceed the buffer, ran in the background
    instead; its row says so and is no result of the scheme.
    """
    found = []
    for scheme in turns[0]:
        runs = [turn[scheme] for turn in turns]
        settings = WORKLOAD.conditions | SETTINGS
        if refusal := next(filter(None, map(_refusal, runs)), ""):
            settings["refused"] = refusal
        values = {scheme: [run.iteration_s for run in runs]}
        values |= _network_times(scheme, [run for run in runs if run.plan])
        ratios = _ratios(scheme, turns)
        found += [Row(n, tuple(v), settings=settings) for n, v in values.items() if v]
        found += [Row(n, tuple(v), unit="") for n, v in ratios.items() if v]
    return found


def _network_times(scheme: str, runs: Sequence[TimedRun]) -> dict[str, list[float]]:
    """Return what Fig. 8 shows, of the runs that followed a schedule."""
    return {
        f"{scheme}, idle before": [run.idle_s for run in runs],
        f"{scheme}, checkpoint": [run.checkpoint_s for run in runs],
        f"{scheme}, idle left": [run.idle_left_s for run in runs],
    }


def _ratios(scheme: str, turns: Sequence[Mapping[str, TimedRun]]) -> dict[str, list[float]]:
    """Return iteration times as multiples of those without checkpoints, measured and predicted."""
    if scheme == "none":
        return {}
    plans = [plan.schedule for turn in turns if (plan := turn[scheme].plan)]
    return {
        f"{scheme} / none": [turn[scheme].iteration_s / turn["none"].iteration_s for turn in turns],
        f"{scheme} / none, as predicted": [
            plan.predicted_iteration_s / plan.iteration_s for plan in plans
        ],
    }


def _refusal(run: TimedRun) -> str:
    return next((note for note in run.notes if "refused" in note), "")
