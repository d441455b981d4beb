"""Forecasts: each policy over several histories of failures, and how much each input matters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.placement import Placement
from gemini_lab.simulator.interval import Interval, mean_interval
from gemini_lab.simulator.outages import FailureRate, Outage, poisson_failures
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.peers import POLICIES
from gemini_lab.simulator.policy import Policy, expected_wasted_s, gemini, gemini_lab
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.workload import Workload
from gemini_lab.units import check_number

FAILURES: Final = 60
"""In each history, on average and at the least."""
HISTORIES: Final = 5
LONGEST_DAYS: Final = 3650.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices a machine and hour, in any currency.

    Power is such a price: with a machine's kW for it, every cost is energy in kWh.

    Attributes:
        node: Of a machine that trains, or waits to.
        extra: Of a machine that a policy needs beside them; without it, as `node`.
    """

    node: float
    extra: float | None = None

    def __post_init__(self) -> None:
        check_number("node", self.node)
        check_number("extra", self.extra_node)

    @property
    def extra_node(self) -> float:
        """Of a machine that a policy needs beside those that train."""
        return self.node if self.extra is None else self.extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Node-hours of a run; simulated. A lost machine is paid for until its replacement comes.

    Attributes:
        training_hours: Of the machines on positions.
        standby_hours: Of machines that wait.
        extra_hours: Of machines that the policy needs beside them.
        cost: Of all, in the price's currency.
    """

    training_hours: float
    standby_hours: float
    extra_hours: float
    cost: float

    @property
    def node_hours(self) -> float:
        return self.training_hours + self.standby_hours + self.extra_hours

    @property
    def idle_share(self) -> float:
        """The share of all node-hours that standbys and extra machines take."""
        return (self.standby_hours + self.extra_hours) / self.node_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of one policy."""

    policy: Policy
    wasted_s: float  # mean wasted time of a failure by Eq. (1), lost nodes replaced (a model).
    outcomes: tuple[Outcome, ...]  # simulated runs, one a history of Poisson failures
    bill: Bill  # of the first of them; in node-hours where no price was given

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[0]

    @property
    def effective(self) -> Interval:
        """Effective training time ratio, with its 95 % interval over the histories."""
        return mean_interval([outcome.effective_ratio for outcome in self.outcomes])

    @property
    def simulated_wasted(self) -> Interval | None:
        """Mean wasted time of a recovery, with its 95 % interval over all; `None` without one."""
        wasted_s = [one.wasted_s for outcome in self.outcomes for one in outcome.recoveries]
        return mean_interval(wasted_s) if wasted_s else None

    @property
    def cost_per_hour(self) -> Interval:
        """A node-hour of training that counts, in paid node-hours or the price's currency."""
        paid = self.bill.cost / self.bill.training_hours
        ratio = self.effective
        if ratio.mean <= 0:
            return Interval(mean=math.inf, low=math.inf, high=math.inf)
        low = paid / ratio.low if ratio.low > 0 else math.inf
        return Interval(mean=paid / ratio.mean, low=paid / ratio.high, high=low)


def policies_for(workload: Workload, *, replicas: int, max_overhead: float | None) -> list[Policy]:
    """Return all policies; the paper's and this system's with the given m and overhead."""
    made = [make(workload) for make in POLICIES]
    asked = {
        policy.name: policy
        for policy in (
            gemini(workload, replicas=replicas, max_overhead=max_overhead),
            gemini_lab(workload, replicas=replicas, max_overhead=max_overhead),
        )
    }
    return [asked.get(policy.name, policy) for policy in made]


def history_days(nodes: int, per_node_per_day: float) -> float:
    """Return the days that a history needs to have enough failures."""
    per_day = per_node_per_day * nodes
    return min(LONGEST_DAYS, max(30.0, FAILURES / per_day)) if per_day else 30.0


def forecast(
    workload: Workload,
    policy: Policy,
    histories: Sequence[Sequence[Outage]],
    *,
    days: float,
    placement: Placement,
    price: Price,
    seed: int,
) -> Forecast:
    """Play one policy on all histories, with the placement if its m is the policy's."""
    outcomes = tuple(
        simulate(
            workload,
            policy,
            history,
            days=days,
            placement=placement if policy.replicas == placement.replicas else None,
            seed=seed + number,
        )
        for number, history in enumerate(histories)
    )
    return Forecast(
        policy=policy,
        wasted_s=expected_wasted_s(workload, policy),
        outcomes=outcomes,
        bill=bill(outcomes[0], price),
    )


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


def bill(outcome: Outcome, price: Price) -> Bill:
    """Compute the cost of a simulated run."""
    hours = outcome.wall_s / 3600
    training, standby = outcome.nodes * hours, outcome.standbys * hours
    extra = outcome.policy.extra_nodes * hours
    return Bill(
        training_hours=training,
        standby_hours=standby,
        extra_hours=extra,
        cost=(training + standby) * price.node + extra * price.extra_node,
    )
