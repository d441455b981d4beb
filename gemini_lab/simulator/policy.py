"""When which policy checkpoints, what that costs, and what it gives back after a failure."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.wasted_time import checkpoint_every, wasted_time_s
from gemini_lab.simulator.times import Times
from gemini_lab.simulator.traffic import chunk_schedule
from gemini_lab.simulator.workload import Workload

THREE_HOURS_S: Final = 3 * 3600.0
"""BLOOM's interval, the Strawman's and that of Gemini's persistent tier (section 7.1)."""


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
        if self.every < 1 or min(self.delay_s, self.stall_s) < 0:
            raise ConfigError(f"`every` starts at 1 and times at 0 (got {self})")


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
        restart_s: From loaded states until training runs at full speed; without it, the
            workload's `warm_up_s`.
        shrinks: Goes on with fewer nodes until replacements come.
        shrink_unit: Nodes that can only train together: one that is lost takes the others out.
        extra_nodes: Machines that it needs beside those that train and the standbys.
        times: Measured times of recoveries; they stand before all others.
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
    restart_s: float | None = None
    shrinks: bool = False
    shrink_unit: int = 1
    extra_nodes: int = 0
    times: Times | None = None


def strawman(workload: Workload) -> Policy:
    """Every three hours to the store."""
    return Policy(
        name="Strawman",
        source="GEMINI, section 7.1 (BLOOM's practice)",
        assumptions="training stands still while a shard is serialised (section 7.3), not while it "
        "is written",
        persistent=Stream(
            every=_three_hours(workload), delay_s=workload.store_s, stall_s=workload.serialise_s
        ),
        persistent_s=workload.store_s,
    )


def highfreq(workload: Workload) -> Policy:
    """As often to the store as it can take them: every ceil(t_ckpt / T_iter) iterations."""
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


def gemini(workload: Workload, *, replicas: int = 2, max_overhead: float | None = None) -> Policy:
    """Every iteration to the CPU memory of m nodes, every three hours to the store.

    The chunk scheduler says by how much the remote copies lengthen an iteration (Algorithm 2), and
    under `max_overhead` how much rarer they have to be.
    """
    schedule = chunk_schedule(workload, replicas=replicas, max_overhead=max_overhead)
    return Policy(
        name="Gemini",
        source="GEMINI, sections 4 to 6",
        assumptions="the m copies that a node keeps are serialised at a failure (section 7.3); the "
        "store is written from CPU memory, without a stall",
        memory=Stream(every=schedule.every_iterations, delay_s=schedule.predicted_iteration_s),
        persistent=Stream(every=_three_hours(workload), delay_s=workload.store_s),
        replicas=replicas,
        slowdown_s=schedule.mean_iteration_s - workload.iteration_s,
        serialise_s=replicas * workload.serialise_s,
        peer_s=workload.shard_bytes / workload.network_bytes_per_s,
        persistent_s=workload.store_s,
    )


def gemini_lab(
    workload: Workload, *, replicas: int = 2, max_overhead: float | None = 0.03
) -> Policy:
    """This system: as Gemini, but recoveries serialise nothing, and go as a log says they do."""
    replicas = min(replicas, workload.nodes)
    paper = gemini(workload, replicas=replicas, max_overhead=max_overhead)
    times = workload.times
    if times is None:
        return replace(
            paper,
            name="gemini_lab",
            source="this package",
            assumptions="nothing is serialised at a failure, since agents keep the copies and "
            "outlive their workers; without a run's log (`Workload.from_log`) detection and "
            "warm-up are the workload's, which for the paper's jobs are the paper's",
            serialise_s=0.0,
        )
    return replace(
        paper,
        name="gemini_lab",
        source="this package",
        assumptions=f"the times of {times.source}: each recovery goes as one of the same kind of "
        "failure that was measured there, whatever the number of nodes",
        memory=Stream(every=1, delay_s=times.version.mean_s),
        slowdown_s=times.waited.mean_s,
        serialise_s=0.0,
        times=times,
    )


def two_phase(workload: Workload, *, overhead: float = 0.035) -> Policy:
    """CheckFreq: snapshot into CPU memory beside training, then persist beside training."""
    copy_s = workload.shard_bytes / workload.copy_rate
    stall_s = max(0.0, copy_s - workload.iteration_s)
    busy_s = copy_s + workload.serialise_s + workload.store_s
    every = max(
        checkpoint_every(checkpoint_s=busy_s, iteration_s=workload.iteration_s),
        math.ceil(stall_s / (overhead * workload.iteration_s)),
    )
    return Policy(
        name="CheckFreq",
        source="Mohan, Phanishayee, Chidambaram: CheckFreq, FAST '21",
        assumptions=f"the snapshot hides behind the next iteration as far as it fits; the interval "
        f"keeps stalls within {overhead:.1%} and lets one checkpoint end before the next; "
        "recovery reads the store",
        persistent=Stream(every=every, delay_s=busy_s, stall_s=stall_s),
        persistent_s=workload.store_s,
    )


def differential(
    workload: Workload, *, ratio: float = 0.01, overhead: float = 0.031, full_every: int = 100
) -> Policy:
    """LowDiff: compressed gradients are written as differences, a full checkpoint now and then."""
    difference_s = ratio * 4 * workload.params / workload.store_bytes_per_s
    every = checkpoint_every(checkpoint_s=difference_s, iteration_s=workload.iteration_s)
    replay_s = full_every / every / 2 * difference_s
    return Policy(
        name="LowDiff",
        source="Yao and others: LowDiff, arXiv 2509.04084",
        assumptions=f"training already compresses its gradients to {ratio:.0%} of 4 bytes a "
        f"parameter; every iteration takes {overhead:.1%} longer (the abstract's upper bound); a "
        f"full checkpoint every {full_every} iterations is not slowed by the differences, half of "
        "which are read and replayed at the store's rate",
        persistent=Stream(every=every, delay_s=difference_s),
        slowdown_s=overhead * workload.iteration_s,
        persistent_s=workload.store_s + replay_s,
    )


def shadow(workload: Workload, *, shadow_nodes: int | None = None) -> Policy:
    """Checkmate: the network gives gradients to CPU machines that keep a copy of the model."""
    nodes = shadow_nodes or max(1, workload.nodes // 8)
    return Policy(
        name="Checkmate",
        source="Bhardwaj and others: Checkmate, arXiv 2507.13522",
        assumptions=f"switches multicast gradients, so that training is not slowed; {nodes} shadow "
        "machines never fail, apply an iteration's gradients within the next one and send the "
        "model back at the rate of their links",
        persistent=Stream(every=1, delay_s=workload.iteration_s),
        persistent_s=workload.checkpoint_bytes / (nodes * workload.network_bytes_per_s),
    )


def shrink(workload: Workload, *, replicas: int = 2) -> Policy:
    """Odyssey: goes on with the nodes that are left, without waiting for a replacement."""
    replicas = min(replicas, workload.nodes)
    return Policy(
        name="Odyssey",
        source="Zhou and others: Odyssey, arXiv 2508.21613",
        assumptions=f"{replicas} data-parallel copies of every state live in GPU memory, so only "
        "the running iteration is lost while one of them is left; speed falls with the number of "
        "nodes (the paper saw up to 11 % on 32 cards); reconfiguring costs as much as a warm-up, "
        "also when a replacement joins",
        memory=Stream(every=1, delay_s=0.0),
        persistent=Stream(
            every=_three_hours(workload), delay_s=workload.store_s, stall_s=workload.serialise_s
        ),
        replicas=replicas,
        persistent_s=workload.store_s,
        shrinks=True,
    )


POLICIES: Final[tuple[Callable[[Workload], Policy], ...]] = (
    strawman,
    highfreq,
    gemini,
    gemini_lab,
    two_phase,
    differential,
    shadow,
    shrink,
)
"""The paper's three, this system, and others from the literature."""


def _three_hours(workload: Workload) -> int:
    return max(1, round(THREE_HOURS_S / workload.iteration_s))


def expected_wasted_s(workload: Workload, policy: Policy, *, replaced: bool = True) -> float:
    """Mean wasted time of a failure by Eq. (1), where memory suffices if it can.

    t_ckpt holds the time that training stands still for a checkpoint. With m = 1 no memory has the
    shard of a node that is gone.

    Args:
        workload: The job.
        policy: Who protects it.
        replaced: Whether a node and its memory are gone; else only processes died.
    """
    in_memory = policy.memory is not None and (policy.replicas > 1 or not replaced)
    stream = policy.memory if in_memory else policy.persistent
    if stream is None:
        raise ConfigError(f"{policy.name} has no persistent checkpoints to fall back to; give some")
    cycle_s = stream.every * (workload.iteration_s + policy.slowdown_s) + stream.stall_s
    checkpoint_s = stream.stall_s + stream.delay_s
    retrieval_s = policy.persistent_s
    if in_memory:
        retrieval_s = policy.peer_s if replaced else 0.0
    return wasted_time_s(
        checkpoint_s=checkpoint_s,
        interval_s=max(cycle_s, checkpoint_s),
        retrieval_s=retrieval_s,
    )
