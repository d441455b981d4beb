"""What Figs. 15a and 15b share: the paper's linear formula, and simulated ratios with spread."""

from collections.abc import Callable
from typing import Final

from gemini_lab.simulator import FailureRate, Policy, Workload, poisson_failures, simulate
from gemini_lab.simulator.interval import Interval, mean_interval
from gemini_lab.simulator.policy import gemini, highfreq, strawman
from gemini_lab_bench.figures.figure import Known, Point

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


WHY: Final = "random failures can cost no more than there is to lose; the paper's line does"
RANDOM: Final = {"HighFreq": Known(WHY, 0.0, 0.1), "Strawman": Known(WHY, 0.0, 0.35)}
"""Why simulations of the two baselines are above the paper's lines."""


def linear(name: str, failures_per_day: float) -> float:
    """Compute the paper's Fig. 15: no randomness, no failure during a recovery."""
    ratio = {
        "Gemini": 1 - 9 * failures_per_day / MINUTES,
        "HighFreq": 480 / (480 + 80) - 26 * failures_per_day / MINUTES,
        "Strawman": 1 - 112 * failures_per_day / MINUTES,
    }[name]
    return max(0.0, ratio)


def by_formula(name: str, x: float, failures_per_day: float) -> Point:
    """Return the formula's value as a point: it is what the paper's figure was drawn by."""
    how = f"the paper's linear formula and its constants: {FORMULAS[name]}"
    return Point(name, x, linear(name, failures_per_day), "input", how)


def points_at(
    x: float,
    *,
    failures_per_day: float,
    workload: Workload,
    days: float,
    seeds: int,
    software_share: float,
) -> tuple[list[Point], Interval]:
    """Return formula and simulation of the three policies at one rate of failures.

    Returns:
        The points, and by how much the simulated ratio of Gemini is above HighFreq's: the mean of
        the differences, each in one history of failures, which both went through.
    """
    rate = FailureRate(
        per_node_per_day=failures_per_day / workload.nodes, software_share=software_share
    )
    histories = [
        poisson_failures(nodes=workload.nodes, days=days, rate=rate, seed=seed)
        for seed in range(seeds)
    ]
    points = []
    ratios = {
        name: [
            simulate(workload, make(workload), history, days=days, seed=seed).effective_ratio
            for seed, history in enumerate(histories)
        ]
        for name, make in POLICIES.items()
    }
    gains = [
        ours - theirs for ours, theirs in zip(ratios["Gemini"], ratios["HighFreq"], strict=True)
    ]
    for name, values in ratios.items():
        how = f"Poisson failures, {seeds} histories of {days:g} days, 95 % interval (t)"
        points += [
            by_formula(name, x, failures_per_day),
            Point.mean(name, x, values, "simulation", how, ends=(0.0, 1.0), known=RANDOM.get(name)),
        ]
    return points, mean_interval(gains)


NOTES: Final = (
    (
        "The paper's lines are a formula: F failures a day cost 9, 26 or 112 minutes each, "
        "whenever they come. In the simulation failures are random, can strike during a recovery, "
        "which then starts over, and roll back at most to the last checkpoint that is there."
    ),
    (
        "So the two differ where failures are frequent: a Strawman that fails every two hours "
        "loses less a failure than 112 minutes, since there is not more to lose, but makes hardly "
        "any checkpoint."
    ),
)


def gain_note(gain: Interval, where: str) -> str:
    """Return the paired difference of two policies, for people."""
    return (
        f"Simulated, {where}: Gemini's ratio is {gain.mean:.3f} ({gain.low:.3f} to "
        f"{gain.high:.3f}) above HighFreq's, paired: both went through the same failures."
    )
