"""The injector's scenarios, played in the simulator."""

from collections.abc import Sequence

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
    WrongSums,
    rank_of,
)
from gemini_lab.injector.scenario import Scenario
from gemini_lab.simulator.failures import Kind, Outage
from gemini_lab.simulator.workload import Workload

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
        scenario: Crashes, hangs and losses of workers, nodes, the root and racks, and machines that
            compute wrong from then on, which nobody finds where the policy does not verify.
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
        elif isinstance(failure, WrongSums) and failure.lasts:
            positions, kind = (_position(failure.node, workload),), "wrong_sums"
        else:
            raise ConfigError(
                f"the simulator cannot play {failure}: it knows crashes, hangs and losses of "
                "workers, nodes, the root and racks, and wrong sums that last; inject it into a "
                "real run"
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
