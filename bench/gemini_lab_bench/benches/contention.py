"""The `contention` bench: less and less idle time for the same checkpoint, until it is felt.

The ratio of compute to communication is swept by the accelerator's time that layers take, on one
paced link. The scheduler says from the roomiest profile alone at which idle time checkpoints stop
fitting; the iterations say when they are felt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.profile import Profile
from gemini_lab.report.values import TrafficPlan
from gemini_lab.units import KIB, MB
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.benches.timed_runs import AS_IF_LARGE, TimedRun, TimedWorkload, in_lab
from gemini_lab_bench.rows import Row

LAYERS_S: Final = (0.05, 0.03, 0.02, 0.012, 0.006, 0.0)
"""Emulated time of a layer's forward pass, from much compute to none."""
LINK_BYTES_PER_S: Final = 40.0 * MB
SETTINGS: Final[dict[str, Any]] = {"profile_iterations": 6, "buffer_bytes": 256 * KIB}
BISECTIONS: Final = 20
FELT: Final = 1.02
"""A checkpoint is felt when iterations take so many times as long as without."""

Turn = Mapping[float, Mapping[str, TimedRun]]
"""One repeat: for each layer's time, the runs "none" and "gemini"."""


def workload(layer_s: float) -> TimedWorkload:
    """Return the job at one point of the sweep."""
    return TimedWorkload(
        iterations=28,
        counted=8,
        layer_s=layer_s,
        zero=AS_IF_LARGE,
        link_bytes_per_s=LINK_BYTES_PER_S,
    )


def bench(repeats: int) -> list[Row]:
    """Measure iterations with and without checkpoints, from much idle time to hardly any."""
    with ready_lab(2) as lab:
        turns = [
            {
                layer_s: {
                    "none": in_lab(lab, workload(layer_s), scheme="none"),
                    "gemini": in_lab(lab, workload(layer_s), scheme="gemini", **SETTINGS),
                }
                for layer_s in LAYERS_S
            }
            for _ in range(repeats)
        ]
    return rows(turns)


def rows(turns: Sequence[Turn]) -> list[Row]:
    """Return for each point its idle time and the cost of checkpoints; then where that breaks."""
    found = []
    for layer_s in turns[0]:
        pairs = [turn[layer_s] for turn in turns]
        values = {
            "idle / checkpoint": [_room(pair["gemini"]) for pair in pairs],
            "gemini / none": [_cost(pair) for pair in pairs],
            "gemini / none, as predicted": [_predicted(pair["gemini"]) for pair in pairs],
        }
        settings = workload(layer_s).conditions | {"layer_s": layer_s}
        found += [
            Row(name, tuple(some), unit="", settings=settings) for name, some in values.items()
        ]
    stops = [
        breaking_point(max((pair["gemini"] for pair in turn.values()), key=_room)) for turn in turns
    ]
    felt = [
        crossing([(_room(pair["gemini"]), _cost(pair)) for pair in turn.values()]) for turn in turns
    ]
    found.append(Row("stops fitting, as predicted: idle / checkpoint", _there(stops)))
    found.append(Row("felt, as measured: idle / checkpoint", _there(felt)))
    return [replace(row, unit="") for row in found if row.values]


def breaking_point(run: TimedRun) -> float | None:
    """Return idle time by checkpoint time at which the scheduler has something left over.

    All idle spans of the run's profile are shortened alike. `None` if its chunks do not fit even
    the profile as it is.
    """
    plan = _plan_of(run)
    share = shortest(plan.profile, lambda one: _schedule(one, run))
    return None if share is None else share * _room(run)


def shortest(profile: Profile, plan: Callable[[Profile], ChunkSchedule]) -> float | None:
    """Bisect to which share all idle spans can shrink before something is left over.

    `None` where something is left over as it is.
    """
    if plan(profile).leftover:
        return None
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        spans = tuple(
            replace(span, duration_s=middle * span.duration_s) for span in profile.idle_spans
        )
        if plan(replace(profile, idle_spans=spans)).leftover:
            low = middle
        else:
            high = middle
    return high


def crossing(points: Sequence[tuple[float, float]], level: float = FELT) -> float | None:
    """Return the largest x at which the line through the points rises to `level`.

    `None` where no point reaches it.
    """
    ordered = sorted(points, reverse=True)
    if ordered and ordered[0][1] >= level:
        return ordered[0][0]
    for (x, y), (next_x, next_y) in pairwise(ordered):
        if next_y >= level:
            return x + (next_x - x) * (level - y) / (next_y - y)
    return None


def _plan_of(run: TimedRun) -> TrafficPlan:
    assert run.plan is not None
    return run.plan


def _schedule(profile: Profile, run: TimedRun) -> ChunkSchedule:
    """Return the schedule that the job would follow with this profile."""
    wire = _plan_of(run).calibration
    return plan_chunks(
        profile,
        checkpoint_bytes=run.sent_bytes,
        bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s,
        alpha_s=wire.alpha_s,
        buffer_bytes=SETTINGS["buffer_bytes"],
    )


def _room(run: TimedRun) -> float:
    return run.idle_s / (run.sent_bytes / LINK_BYTES_PER_S)


def _cost(pair: Mapping[str, TimedRun]) -> float:
    return pair["gemini"].iteration_s / pair["none"].iteration_s


def _predicted(run: TimedRun) -> float:
    schedule = _plan_of(run).schedule
    return schedule.predicted_iteration_s / schedule.iteration_s


def _there(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)
