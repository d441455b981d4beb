"""Sensitivity of an answer to each input: one at a time is halved and doubled (a tornado)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.simulator.interval import Interval, mean_interval
from gemini_lab.simulator.outages import FailureRate, poisson_failures
from gemini_lab.simulator.policy import Policy
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.workload import Workload

Change = Callable[[Workload, float], Workload]
CHANGES: Final[dict[str, Change]] = {
    "network": lambda w, f: replace(
        w, network_bytes_per_s=f * w.network_bytes_per_s, copy_bytes_per_s=f * w.copy_rate
    ),
    "store": lambda w, f: replace(w, store_bytes_per_s=f * w.store_bytes_per_s),
    "iteration": lambda w, f: replace(
        w, iteration_s=f * w.iteration_s, idle_spans_s=tuple(f * s for s in w.idle_spans_s)
    ),
    "detection": lambda w, f: replace(w, detection_s=f * w.detection_s),
    "warm-up": lambda w, f: replace(w, warm_up_s=f * w.warm_up_s),
    "replacement": lambda w, f: replace(
        w, replacement_s=(f * w.replacement_s[0], f * w.replacement_s[1])
    ),
    "standbys": lambda w, f: replace(w, standbys=round(f * w.standbys)),
}
"""What each input's change by a factor does to a workload; the failure rate comes beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Simulated effect of one input on the effective training time ratio.

    Attributes:
        name: The input.
        halved: By how much the ratio changes where the input is half; paired by history.
        doubled: Where it is double.
    """

    name: str
    halved: Interval
    doubled: Interval

    @property
    def swing(self) -> float:
        """Return the distance between the ratios with half and double the input."""
        return abs(self.doubled.mean - self.halved.mean)


def tornado(
    workload: Workload,
    policy: Callable[[Workload], Policy],
    *,
    failures_per_node_per_day: float,
    days: float,
    seeds: Sequence[int],
) -> tuple[Sensitivity, ...]:
    """Return the inputs by their effect on the ratio, the strongest first.

    The same seeds give the same histories, so differences are paired; with another failure rate
    failures come at the same moments, closer together or further apart, on other machines.

    Args:
        workload: The job.
        policy: Makes the policy of a changed job.
        failures_per_node_per_day: Failures that take a node and its memory.
        days: Length of a history.
        seeds: One a history, two or more.
    """

    def ratios(changed: Workload, rate: float) -> list[float]:
        made = policy(changed)
        outcomes = (
            simulate(
                changed,
                made,
                poisson_failures(
                    nodes=changed.nodes,
                    days=days,
                    rate=FailureRate(per_node_per_day=rate),
                    seed=seed,
                ),
                days=days,
                seed=seed,
            )
            for seed in seeds
        )
        return [outcome.effective_ratio for outcome in outcomes]

    rate = failures_per_node_per_day
    base = ratios(workload, rate)

    def change(then: Sequence[float]) -> Interval:
        return mean_interval([new - old for new, old in zip(then, base, strict=True)])

    found = [
        Sensitivity(
            name="failures",
            halved=change(ratios(workload, rate / 2)),
            doubled=change(ratios(workload, rate * 2)),
        )
    ]
    for name, made in CHANGES.items():
        both = [change(ratios(made(workload, factor), rate)) for factor in (0.5, 2.0)]
        found.append(Sensitivity(name=name, halved=both[0], doubled=both[1]))
    return tuple(sorted(found, key=lambda one: -one.swing))
