"""A cluster that trains, fails and recovers, event by event, with the real planners."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import (
    Failure,
    NodeFreeze,
    NodeLoss,
    NodesLoss,
    RackLoss,
    RootLoss,
    WorkerCrash,
    WorkerHang,
    rank_of,
)
from gemini_lab.injector.scenario import Scenario
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.simulator.outages import DAY_S, Kind, Outage
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.peers import POLICIES
from gemini_lab.simulator.policy import Policy
from gemini_lab.simulator.recorder import RunRecorder
from gemini_lab.simulator.training import Training
from gemini_lab.simulator.workload import Workload
from gemini_lab.units import check_number

MOST_RECORDED: Final = 1_000_000
"""Iterations whose events are kept: each has one for every node's copies."""


def simulate(
    workload: Workload,
    policy: Policy,
    outages: Sequence[Outage],
    *,
    days: float,
    iterations: int | None = None,
    placement: Placement | None = None,
    seed: int = 0,
    record: bool = False,
) -> Outcome:
    """Run one policy through a history of failures.

    Machines fail at once (`Outage`). A failure during a recovery starts that recovery again. A
    write to the store that a failure interrupts is lost. Waiting standbys do not fail. Without a
    standby, a machine is ordered after serialisation, as in the paper's Fig. 14. A new machine's
    own shard is there after retrieval, and so are the copies it keeps for others: they take a link
    seconds, and the paper does not count them.

    Args:
        workload: The job and its cluster.
        policy: Who protects it.
        outages: What fails when.
        days: Length of the run; the longest that it may take where `iterations` is given.
        iterations: End the run when so many are done.
        placement: Who keeps whose replica; without it, Algorithm 1's for the policy's m.
        seed: Of replacement times, and of what is drawn from measured ones; the same seed and
            inputs give the same outcome.
        record: Keep the run's events (`Outcome.events`).

    Raises:
        ConfigError: The placement or a failure does not fit the number of nodes, or a run has no
            such length.
    """
    check_number("days", days, is_above=True)
    if iterations is not None:
        check_number("iterations", iterations, is_whole=True)
    if record:
        _check_length(min(days * DAY_S / workload.iteration_s, iterations or math.inf))
    if placement is None:
        placement = plan_placement(nodes=workload.nodes, replicas=policy.replicas)
    for outage in outages:
        if not all(0 <= position < workload.nodes for position in outage.positions):
            raise ConfigError(
                f"a failure at {outage.at_s:g} s strikes {outage.positions}, but positions are 0 "
                f"to {workload.nodes - 1}"
            )
    if placement.nodes != workload.nodes:
        raise ConfigError(
            f"a run needs a placement of its {workload.nodes} nodes (got one of {placement.nodes})"
        )
    recorder = RunRecorder(workload, policy, placement) if record else None
    training = Training(
        workload, policy, placement, seed=seed, recorder=recorder, iterations=iterations
    )
    return training.outcome(sorted(outages, key=lambda outage: outage.at_s), longest_s=days * DAY_S)


def _check_length(iterations: float) -> None:
    """Refuse to keep the events of more iterations than memory holds."""
    if iterations > MOST_RECORDED:
        raise ConfigError(
            f"record=True keeps events of every iteration, and these are {iterations:,.0f}; "
            f"simulate {MOST_RECORDED:,} at most, or leave it out"
        )


def compare(
    workload: Workload,
    outages: Sequence[Outage],
    *,
    days: float,
    policies: Sequence[Policy | Callable[[Workload], Policy]] = POLICIES,
    seed: int = 0,
) -> tuple[Outcome, ...]:
    """Simulate each policy in turn on the same failures."""
    made = [policy if isinstance(policy, Policy) else policy(workload) for policy in policies]
    return tuple(simulate(workload, policy, outages, days=days, seed=seed) for policy in made)


_SOFTWARE = (WorkerCrash, WorkerHang)
_HARDWARE = (NodeLoss, NodeFreeze, NodesLoss, RootLoss)


def outages_of(
    scenario: Scenario, workload: Workload, *, racks: Sequence[str] | None = None
) -> tuple[Outage, ...]:
    """Return a scenario's failures as outages, in order of time.

    `"node-2"` is position 2, `"rank-9"` the position that has rank 9, and the root agent is on
    position 0. A failure by iteration comes when training has first done so many, as in a lab;
    its time is the one of undisturbed training.

    Args:
        scenario: Crashes, hangs and losses of workers, nodes, the root and racks.
        workload: Has the positions and the duration of an iteration.
        racks: Rack of each position; needed where a rack is lost.

    Raises:
        ConfigError: A failure is of a kind that the simulator does not know, or names a place that
            is not there.
    """
    outages = []
    for planned in scenario.planned:
        at_s = planned.at_s
        if at_s is None:
            at_s = (planned.iteration or 0) * workload.iteration_s
        failure = planned.failure
        kind: Kind
        if isinstance(failure, RackLoss):
            positions = tuple(i for i, rack in enumerate(racks or ()) if rack == failure.rack)
            kind = "rack"
        elif isinstance(failure, _SOFTWARE + _HARDWARE):
            positions = tuple(dict.fromkeys(_position(p, workload) for p in failure.places))
            kind = "software" if isinstance(failure, _SOFTWARE) else "hardware"
        else:
            raise ConfigError(
                f"the simulator cannot play {failure}: it knows crashes, hangs and losses of "
                "workers, nodes, the root and racks; inject it into a real run"
            )
        _check(failure, positions, workload)
        outage = Outage(
            at_s=at_s,
            kind=kind,
            positions=positions,
            cause=str(failure),
            iteration=planned.iteration,
            failure=failure.kind,
        )
        outages.append(outage)
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _position(place: str, workload: Workload) -> int:
    if place == "root":
        return 0
    rank = rank_of(place)
    if rank is not None:
        return rank // workload.gpus_per_node
    return int(place.removeprefix("node-"))


def _check(failure: Failure, positions: Sequence[int], workload: Workload) -> None:
    if not positions or not all(0 <= position < workload.nodes for position in positions):
        raise ConfigError(
            f"{failure} strikes positions {list(positions)}, but the simulated cluster has 0 to "
            f"{workload.nodes - 1}; name other places, or give `racks`"
        )
