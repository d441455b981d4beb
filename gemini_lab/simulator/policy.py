"""When which policy checkpoints, what that costs, and what it gives back after a failure."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.placement import Placement, Risk
from gemini_lab.placement.dangers import Dangers
from gemini_lab.placement.following import Follower
from gemini_lab.recovery.wasted_time import checkpoint_every, wasted_time_s
from gemini_lab.simulator.times import Times
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab.simulator.workload import Workload
from gemini_lab.units import PerNode, check_number

THREE_HOURS_S: Final = 3 * 3600.0
"""BLOOM's interval, the Strawman's and that of Gemini's persistent tier (section 7.1)."""
MOST_COPIES: Final = 4
"""Shards that a node has room for, its own among them, unless it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Parameters of a policy whose copies follow the risk."""

    follower: Follower  # decides
    failures_per_day: float  # expected of each node before anything is seen of it
    repair_s: float  # from a node's loss until its copies exist again
    fits: int = MOST_COPIES  # shards that each node has room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A way to train on while machines are missing."""

    name: str  # for people
    restart_s: float  # until training runs in this way, once the states are there
    rejoin_s: float  # how long all wait when a machine joins again
    # Into how many groups of equal size the nodes are cut, each with all of the model, so that the
    # nodes of the same place in the others do a lost node's work; `None`: the work spreads over all
    # nodes that are left.
    groups: int | None = None

    def factor(self, lost: Collection[int], nodes: int) -> float:
        """Return the factor of an iteration's time without them; infinite if impossible."""
        if self.groups is None:
            return nodes / (nodes - len(lost)) if len(lost) < nodes else math.inf
        if nodes % self.groups:
            raise ConfigError(
                f"{nodes} nodes are no {self.groups} groups of one size; give a number of groups "
                "that divides them"
            )
        by_place = Counter(position % (nodes // self.groups) for position in lost)
        most = max(by_place.values(), default=0)
        return self.groups / (self.groups - most) if most < self.groups else math.inf

    def cost_s(self, lost: Collection[int], nodes: int, *, for_s: float) -> float:
        """Return the training time lost while these machines are missing and when they return.

        Infinite if it cannot be.
        """
        factor = self.factor(lost, nodes)
        if math.isinf(factor):
            return math.inf
        return self.restart_s + for_s * (1 - 1 / factor) + self.rejoin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Checkpoints of one kind.

    Attributes:
        every: Iterations from one to the next; taken after iterations that it divides.
        delay_s: From the end of `stall_s` until the checkpoint is whole where it goes.
        stall_s: How long training stands still for each.
    """

    every: int
    delay_s: float
    stall_s: float = 0.0

    def __post_init__(self) -> None:
        check_number("every", self.every, least=1, is_whole=True)
        check_number("delay_s", self.delay_s)
        check_number("stall_s", self.stall_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to protect training. Any other than the ones below can be written down like this.

    Attributes:
        name: For people.
        source: Where it is described.
        assumptions: What is taken for granted here, with the numbers that are no measurements.
        memory: Checkpoints into the CPU memory of the training nodes, lost with those nodes.
        persistent: Checkpoints into something that no training node's loss harms.
        replicas: Copies of each shard in memory, m.
        slowdown_s: What every iteration takes longer.
        serialise_s: At each failure, before anything is loaded.
        peer_s: To fetch a lost node's shards from other nodes' memory.
        persistent_s: To load a checkpoint from the persistent tier.
        announced: The share of failures of machines that are known in time to read its memory.
        shrinks: Goes on with fewer nodes until replacements come.
        ways: Ways to go on with fewer nodes, from which the one is taken at each failure that is
            predicted to cost least, or to wait; they stand before `shrinks`.
        extra_nodes: Machines that it needs beside those that train and the standbys.
        times: Measured times of recoveries; they stand before all others.
        following: What its copies go by where they follow the risk; `None`: they stay.
    """

    name: str
    source: str
    assumptions: str
    persistent: Stream | None
    memory: Stream | None = None
    replicas: int = 1
    slowdown_s: float = 0.0
    serialise_s: float = 0.0
    peer_s: float = 0.0
    persistent_s: float
    announced: float = 0.0
    shrinks: bool = False
    ways: tuple[Fallback, ...] = ()
    extra_nodes: int = 0
    times: Times | None = None
    following: Following | None = None


def strawman(workload: Workload) -> Policy:
    """Return the policy that saves to the store every three hours."""
    return Policy(
        name="Strawman",
        source="GEMINI, section 7.1 (BLOOM's practice)",
        assumptions="training stands still while a shard is serialised (section 7.3), not while it "
        "is written",
        persistent=Stream(
            every=three_hours(workload), delay_s=workload.store_s, stall_s=workload.serialise_s
        ),
        persistent_s=workload.store_s,
    )


def highfreq(workload: Workload) -> Policy:
    """Save to the store as often as it can take: every ceil(t_ckpt / T_iter) iterations."""
    return Policy(
        name="HighFreq",
        source="GEMINI, section 7.1",
        assumptions="training stands still while a shard is serialised (section 7.3), not while it "
        "is written",
        persistent=Stream(
            every=checkpoint_every(checkpoint_s=workload.store_s, iteration_s=workload.iteration_s),
            delay_s=workload.store_s,
            stall_s=workload.serialise_s,
        ),
        persistent_s=workload.store_s,
    )


@lru_cache(maxsize=16)
def _schedule(workload: Workload, replicas: int, max_overhead: float | None) -> ChunkSchedule:
    return chunk_schedule(workload, replicas=replicas, max_overhead=max_overhead)


def gemini(workload: Workload, *, replicas: int = 2, max_overhead: float | None = None) -> Policy:
    """Return the policy that saves to m nodes' memory in every iteration, to the store rarely.

    The chunk scheduler says by how much the remote copies lengthen an iteration (Algorithm 2), and
    under `max_overhead` how much rarer they have to be.
    """
    schedule = _schedule(replace(workload, times=None), replicas, max_overhead)
    return Policy(
        name="Gemini",
        source="GEMINI, sections 4 to 6",
        assumptions="the m copies that a node keeps are serialised at a failure (section 7.3); the "
        "store is written from CPU memory, without a stall",
        memory=Stream(every=schedule.every_iterations, delay_s=schedule.predicted_iteration_s),
        persistent=Stream(every=three_hours(workload), delay_s=workload.store_s),
        replicas=replicas,
        slowdown_s=schedule.mean_iteration_s - workload.iteration_s,
        serialise_s=replicas * workload.serialise_s,
        peer_s=workload.shard_bytes / workload.network_bytes_per_s,
        persistent_s=workload.store_s,
    )


def gemini_lab(
    workload: Workload, *, replicas: int = 2, max_overhead: float | None = 0.03
) -> Policy:
    """Return this system's policy: as Gemini, with recoveries as a log says they go."""
    replicas = min(replicas, workload.nodes)
    paper = gemini(workload, replicas=replicas, max_overhead=max_overhead)
    times, assumed = workload.times, "".join(f"; {text}" for text in workload.assumed)
    if times is None:
        return replace(
            paper,
            name="gemini_lab",
            source="this package",
            assumptions="nothing is serialised at a failure, since agents keep the copies and "
            "outlive their workers; without a run's log (`Workload.from_log`) detection and "
            f"warm-up are the workload's, which for the paper's jobs are the paper's{assumed}",
            serialise_s=0.0,
        )
    return replace(
        paper,
        name="gemini_lab",
        source="this package",
        assumptions=f"the times of {times.source}: each recovery goes as one of the same kind of "
        f"failure that was measured there, whatever the number of nodes{assumed}",
        memory=Stream(every=1, delay_s=times.version.mean_s),
        slowdown_s=times.waited.mean_s,
        serialise_s=0.0,
        times=times,
    )


def three_hours(workload: Workload) -> int:
    """Return iterations in three hours."""
    return max(1, round(THREE_HOURS_S / workload.iteration_s))


def expected_wasted_s(workload: Workload, policy: Policy, *, replaced: bool = True) -> float:
    """Mean wasted time of a failure by Eq. (1), where memory suffices if it can.

    t_ckpt holds the time that training stands still for a checkpoint. With m = 1 no memory has the
    shard of a node that is gone. Of lost nodes that were announced it is the running iteration.

    Args:
        workload: The job.
        policy: Who protects it.
        replaced: Whether a node and its memory are gone; else only processes died.
    """
    in_memory = policy.memory is not None and (policy.replicas > 1 or not replaced)
    stream = policy.memory if in_memory else policy.persistent
    if stream is None:
        raise ConfigError(f"{policy.name} has no persistent checkpoints to fall back to; give some")
    iteration_s = workload.iteration_s + policy.slowdown_s
    retrieval_s = policy.persistent_s
    if in_memory:
        retrieval_s = policy.peer_s if replaced else 0.0
    unannounced_s = _wasted_s(stream, iteration_s, retrieval_s)
    if not (policy.announced and replaced):
        return unannounced_s
    announced_s = wasted_time_s(checkpoint_s=0, interval_s=iteration_s, retrieval_s=policy.peer_s)
    return policy.announced * announced_s + (1 - policy.announced) * unannounced_s


def _wasted_s(stream: Stream, iteration_s: float, retrieval_s: float) -> float:
    cycle_s = stream.every * iteration_s + stream.stall_s
    checkpoint_s = stream.stall_s + stream.delay_s
    if checkpoint_s > cycle_s:  # several are under way at once, which Eq. (1) does not know
        return checkpoint_s + cycle_s / 2 + retrieval_s
    return wasted_time_s(checkpoint_s=checkpoint_s, interval_s=cycle_s, retrieval_s=retrieval_s)


class FollowedRisk:
    """Observations in a simulated run of the machines on each position.

    A position stands for its machine: one that is lost is mended, and comes back.
    """

    def __init__(self, following: Following, nodes: int) -> None:
        self._following = following
        self._names = [f"node-{position}" for position in range(nodes)]
        self.risk = Risk()
        for name in self._names:
            self.risk = self.risk.joined(name, 0.0)

    def failed(self, position: int, at_s: float) -> None:
        self.risk = self.risk.failed(self._names[position], at_s)

    def next_placement(self, now: Placement, at_s: float) -> Placement | None:
        """Return the placement to continue with; `None` to keep it."""
        following = self._following
        expected = PerNode(usual=following.failures_per_day)
        change = following.follower.change(
            now,
            dangers=Dangers(
                failures_per_day=self.risk.per_day(self._names, at_s, expected=expected),
                repair_s=following.repair_s,
            ),
            fits=[following.fits] * len(self._names),
        )
        return None if change is None else change.placement


def select(
    ways: Sequence[Fallback], lost: Collection[int], nodes: int, *, wait_s: float, restart_s: float
) -> Fallback | None:
    """Return the configuration with the least predicted cost; `None` to wait for machines."""
    costs_s = [way.cost_s(lost, nodes, for_s=wait_s) for way in ways]
    cheapest_s = min(costs_s)
    return ways[costs_s.index(cheapest_s)] if cheapest_s < wait_s + restart_s else None
