"""What Figs. 15a and 15b share: the paper's linear model, and simulated ratios with spread."""

import math
import statistics
from collections.abc import Callable
from typing import Final

from gemini_lab.experiments.figures.figure import Point
from gemini_lab.simulator import FailureRate, Policy, Workload, poisson_failures, simulate
from gemini_lab.simulator.policy import gemini, highfreq, strawman

MINUTES: Final = 1440
POLICIES: Final[dict[str, Callable[[Workload], Policy]]] = {
    "Gemini": gemini,
    "HighFreq": highfreq,
    "Strawman": strawman,
}
FORMULAS: Final = {
    "Gemini": "1 - 9 F / 1440",
    "HighFreq": "480 / (480 + 80) - 26 F / 1440",
    "Strawman": "max(0, 1 - 112 F / 1440)",
}


def linear(name: str, failures_per_day: float) -> float:
    """The formula behind the paper's Fig. 15: no randomness, no failure during a recovery."""
    ratio = {
        "Gemini": 1 - 9 * failures_per_day / MINUTES,
        "HighFreq": 480 / (480 + 80) - 26 * failures_per_day / MINUTES,
        "Strawman": 1 - 112 * failures_per_day / MINUTES,
    }[name]
    return max(0.0, ratio)


def points_at(
    x: float,
    *,
    failures_per_day: float,
    workload: Workload,
    days: float,
    seeds: int,
    software_share: float,
) -> list[Point]:
    """Model and simulation of the three policies at one rate of failures."""
    rate = FailureRate(
        per_node_per_day=failures_per_day / workload.nodes, software_share=software_share
    )
    histories = [
        poisson_failures(nodes=workload.nodes, days=days, rate=rate, seed=seed)
        for seed in range(seeds)
    ]
    points = []
    for name, make in POLICIES.items():
        policy = make(workload)
        ratios = [
            simulate(workload, policy, history, days=days, seed=seed).effective_ratio
            for seed, history in enumerate(histories)
        ]
        mean = statistics.mean(ratios)
        spread = 1.96 * statistics.stdev(ratios) / math.sqrt(seeds)
        points += [
            Point(
                series=name,
                x=x,
                y=linear(name, failures_per_day),
                origin="model",
                how=f"the paper's linear model: {FORMULAS[name]}",
            ),
            Point(
                series=name,
                x=x,
                y=mean,
                low=mean - spread,
                high=mean + spread,
                origin="simulation",
                how=f"Poisson failures, {seeds} histories of {days:g} days, 95 % interval",
            ),
        ]
    return points


NOTES: Final = (
    (
        "The paper's lines are a formula: F failures a day cost 9, 26 or 112 minutes each, "
        "whenever they come. In the simulation failures are random, can strike during a recovery, "
        "which then starts anew, and roll back at most to the last checkpoint that is there."
    ),
    (
        "So the two differ where failures are frequent: a Strawman that fails every two hours "
        "loses less a failure than 112 minutes, since there is not more to lose, but makes hardly "
        "any checkpoint."
    ),
)
