"""Forecast of each policy over several histories of failures, with intervals and a bill."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.placement import Placement
from gemini_lab.simulator.interval import Interval, mean_interval
from gemini_lab.simulator.money import Bill, Price, bill
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.peers import POLICIES
from gemini_lab.simulator.policy import Policy, expected_wasted_s, gemini, gemini_lab
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.workload import Workload

FAILURES: Final = 60
"""In each history, on average and at the least."""
HISTORIES: Final = 5
LONGEST_DAYS: Final = 3650.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of one policy.

    Attributes:
        wasted_s: Mean wasted time of a failure by Eq. (1), lost nodes replaced (a model).
        outcomes: Simulated runs, one a history of Poisson failures.
        bill: Of the first of them; in node-hours where no price was given.
    """

    policy: Policy
    wasted_s: float
    outcomes: tuple[Outcome, ...]
    bill: Bill

    @property
    def outcome(self) -> Outcome:
        """The first of the runs."""
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
