"""A real run's failures, simulated many times: what a run of that kind is predicted to take."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.interval import Interval
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.policy import Policy, gemini_lab
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.times import Spread, Steps, Times
from gemini_lab.simulator.workload import Workload

REPLAYS: Final = 200
MEANS: Final = 50
"""Plays with mean times; whether a version was whole before a failure is drawn in each."""
DRAWN: Final = 8
"""Recoveries of each kind that are drawn for one replay."""
LONGEST_DAYS: Final = 365.0
PARTS: Final = ("training", "redo", "detect", "fence", "start", "retrieve", "warm_up", "reserve")
"""Where a replay's time goes: `redo` is lost progress, `reserve` waiting for machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Simulated prediction of a run's time from its first iteration to the end of its last.

    Attributes:
        total: In seconds: with mean times, and where 95 % of the replays with drawn times are.
        parts: The same for each of `PARTS`; they add up to the total.
        effective: The same for the share of it that is training: the effective training time ratio.
        source: Where the times come from.
        assumed: What the log did not say of them (`Workload.assumed`).
    """

    total: Interval
    parts: Mapping[str, Interval]
    effective: Interval
    source: str
    assumed: tuple[str, ...] = ()


def replay(
    workload: Workload,
    outages: Sequence[Outage],
    *,
    iterations: int,
    policy: Policy | None = None,
    replays: int = REPLAYS,
    seed: int = 0,
) -> Replay:
    """Play failures on a workload that was learned from a log.

    For each new run the laws of its times are drawn again (`Spread.law`), for neither mean nor
    spread is known: few measurements give wide intervals. A time that was measured once is taken
    as it is.

    Args:
        workload: Made by `Workload.from_log`.
        outages: What fails when.
        iterations: How many the run does.
        policy: By default `policy.gemini_lab`.
        replays: How many times to play it with drawn times.
        seed: Of the draws.

    Raises:
        ConfigError: The workload has no measured times.
    """
    times = workload.times
    if times is None:
        raise ConfigError(
            "a replay needs measured times; make the workload by Workload.from_log from the log of "
            "a run with a recovery"
        )
    policy = policy or gemini_lab(workload)

    def played(drawn: Times, number: int) -> dict[str, float]:
        return _parts(
            simulate(
                replace(workload, iteration_s=drawn.iteration.mean_s, idle_spans_s=()),
                replace(policy, times=drawn, slowdown_s=drawn.waited.mean_s),
                outages,
                days=LONGEST_DAYS,
                iterations=iterations,
                seed=number,
            )
        )

    draw = random.Random(seed)
    plain = [played(_mean_times(times), i) for i in range(MEANS)]
    drawn = []
    for number in range(replays):
        law = times.iteration.law(draw)
        new = _drawn_times(times, law.draw(draw, count=iterations), iterations, draw)
        parts = played(new, number)
        redone = parts["redo"] / new.iteration.mean_s  # iterations of their own, and few
        parts["redo"] = redone * law.draw(draw, count=max(1, round(redone)))
        drawn.append(parts)
    expected = {part: fmean(one[part] for one in plain) for part in PARTS}
    return Replay(
        total=_around(sum(expected.values()), [sum(one.values()) for one in drawn]),
        parts={part: _around(expected[part], [one[part] for one in drawn]) for part in PARTS},
        effective=_around(_effective(expected), [_effective(one) for one in drawn]),
        source=times.source,
        assumed=workload.assumed,
    )


def _parts(outcome: Outcome) -> dict[str, float]:
    down_s = {part: outcome.down_s.get(part, 0.0) for part in PARTS[2:]}
    training_s = outcome.wall_s - outcome.lost_s - sum(outcome.down_s.values())
    return {"training": training_s, "redo": outcome.lost_s, **down_s}


def _effective(parts: Mapping[str, float]) -> float:
    return parts["training"] / sum(parts.values())


def _around(mean: float, values: Sequence[float]) -> Interval:
    ranked = sorted(values)
    cut = math.floor(0.025 * len(ranked))
    low, high = (ranked[cut], ranked[-1 - cut]) if ranked else (mean, mean)
    return Interval(mean=mean, low=min(low, mean), high=max(high, mean))


def _mean_times(times: Times) -> Times:
    return replace(
        times,
        first_start=Spread(samples_s=(0.0,)),
        replacement=times.replacement and Spread(samples_s=(times.replacement.mean_s,)),
        recoveries={
            kind: (Steps(**{name: _spread(steps, name).mean_s for name in Steps.__slots__}),)
            for kind, steps in times.recoveries.items()
            if steps
        },
    )


def _drawn_times(times: Times, iteration_s: float, iterations: int, draw: random.Random) -> Times:
    """Return times of a run that was not measured, with this mean of its iterations."""
    waited_s = times.waited.law(draw).draw(draw, count=iterations)
    drawn = {kind: _drawn_steps(steps, draw) for kind, steps in times.recoveries.items() if steps}
    return replace(
        times,
        iteration=Spread(samples_s=(max(iteration_s, 1e-9),)),
        waited=Spread(samples_s=(waited_s,)),
        first_start=Spread(samples_s=(0.0,)),
        recoveries=drawn,
        replacement=times.replacement and _drawn(times.replacement, draw),
    )


def _drawn(spread: Spread, draw: random.Random) -> Spread:
    law = spread.law(draw)
    return Spread(samples_s=tuple(law.draw(draw) for _ in range(DRAWN)))


def _drawn_steps(steps: Sequence[Steps], draw: random.Random) -> tuple[Steps, ...]:
    """Draw recoveries of one kind in one run, all by the same laws."""
    laws = {name: _spread(steps, name).law(draw) for name in Steps.__slots__}
    return tuple(
        Steps(**{name: law.draw(draw) for name, law in laws.items()}) for _ in range(DRAWN)
    )


def _spread(steps: Sequence[Steps], name: str) -> Spread:
    return Spread(samples_s=tuple(getattr(one, name) or 0.0 for one in steps))
