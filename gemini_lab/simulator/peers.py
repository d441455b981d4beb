"""Ways of protection from the literature and from practice, each as far as it is modelled here.

Each lists what it takes for granted. Where one is called "-like", its name stands for the idea
alone: only what its assumptions say is modelled.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gemini_lab.placement.following import Follower
from gemini_lab.recovery.wasted_time import checkpoint_every
from gemini_lab.simulator.policy import (
    MOST_COPIES,
    Fallback,
    Following,
    Policy,
    Stream,
    gemini,
    gemini_lab,
    highfreq,
    strawman,
    three_hours,
)
from gemini_lab.simulator.workload import Workload


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
        "machines never fail, are paid for, apply an iteration's gradients within the next one and "
        "send the model back at the rate of their links",
        persistent=Stream(every=1, delay_s=workload.iteration_s),
        persistent_s=workload.checkpoint_bytes / (nodes * workload.network_bytes_per_s),
        extra_nodes=nodes,
    )


def shrink(workload: Workload, *, replicas: int = 2) -> Policy:
    """Return the policy that continues with the nodes left, and waits for no replacement."""
    replicas = min(replicas, workload.nodes)
    return Policy(
        name="Oobleck-like",
        source="Jang and others: Oobleck, SOSP '23",
        assumptions=f"{replicas} data-parallel copies of every state live in GPU memory, so only "
        "the running iteration is lost while one of them is left; speed falls with the number of "
        "nodes; reconfiguring costs as much as a warm-up, also when a replacement joins",
        memory=Stream(every=1, delay_s=0.0),
        persistent=Stream(
            every=three_hours(workload), delay_s=workload.store_s, stall_s=workload.serialise_s
        ),
        replicas=replicas,
        persistent_s=workload.store_s,
        shrinks=True,
    )


def odyssey(workload: Workload, *, groups: int = 8, reroute_s: float = 10.0) -> Policy:
    """Odyssey: reroutes, reconfigures or waits, whichever is predicted to cost least."""
    groups = math.gcd(groups, workload.nodes)
    resized = Fallback(name="resize", restart_s=workload.warm_up_s, rejoin_s=workload.warm_up_s)
    rerouted = Fallback(name="reroute", restart_s=reroute_s, rejoin_s=reroute_s, groups=groups)
    return replace(
        shrink(workload),
        name="Odyssey",
        source="Zhou and others: Odyssey, arXiv 2508.21613 (its abstract)",
        assumptions="two data-parallel copies of every state live in GPU memory, so only the "
        "running iteration is lost while one of them is left; without a standby the cheapest of "
        "three is taken, predicted for the mean time that a machine takes to come: micro-batches "
        f"go to the same pipeline stage of the others of {groups} groups (given), {reroute_s:g} s "
        "(given) and as slow as the stage that lost most, bubbles not made use of; a new division "
        "over all nodes that are left, a warm-up and as slow as they are fewer; or to wait; "
        "redundant computation, its fourth, and what its own measurements add (up to 11 % slower "
        "on 32 cards) are not modelled",
        ways=(rerouted, resized),
    )


def resize(workload: Workload, *, replicas: int = 2) -> Policy:
    """Return this system's policy that goes on with fewer nodes when no standby is left."""
    ours = gemini_lab(workload, replicas=replicas)
    return replace(
        ours,
        name="gemini_lab, resized",
        source='this package (`"when_short": "shrink"`)',
        assumptions=f"{ours.assumptions}; without a standby it continues with the nodes that are "
        "left, at a speed that falls with their number, and takes a new one in at the cost of a "
        "warm-up",
        shrinks=True,
    )


def drain(workload: Workload, *, announced: float = 0.5, replicas: int = 2) -> Policy:
    """Return this system's policy if a share of failures is announced in time to move away."""
    ours = gemini_lab(workload, replicas=replicas)
    return replace(
        ours,
        name="gemini_lab, drained",
        source="this package (`gemini-lab drain`); clouds and health checks give notices",
        assumptions=f"{ours.assumptions}; {announced:.0%} of the failures that take a machine are "
        "announced: its memory is read before it goes, only the running iteration is lost, and "
        "nothing has to be detected",
        announced=announced,
    )


POLICIES: Final[tuple[Callable[[Workload], Policy], ...]] = (
    strawman,
    highfreq,
    gemini,
    gemini_lab,
    two_phase,
    differential,
    resize,
    drain,
    shadow,
    shrink,
    odyssey,
)
"""The paper's three, this system, and others."""


def gemini_lab_auto(
    workload: Workload,
    *,
    target: float = 0.999,
    horizon_days: float = 30.0,
    failures_per_day: float = 0.015,
    repair_s: float | None = None,
    fits: int = MOST_COPIES,
) -> Policy:
    """Return this system's with `"replicas": "auto"`: two copies of a shard, more in danger.

    Args:
        workload: The job.
        target: The chance asked for that memory suffices.
        horizon_days: For how long.
        failures_per_day: Expected of each node before anything is seen of it.
        repair_s: From a node's loss until its copies exist again; by default as long as detection,
            the longest wait for a machine where there are no standbys, and retrieval take.
        fits: Shards that each node has room for.
    """
    fixed = gemini_lab(workload)
    if repair_s is None:
        waits_s = 0.0 if workload.standbys else workload.replacement_s[1]
        repair_s = workload.detection_s + waits_s + fixed.peer_s
    return replace(
        fixed,
        name="gemini_lab, auto",
        assumptions=f"{fixed.assumptions}; copies move at restarts that come anyway, as "
        "by the real root agent; iterations are taken to be as slow all the time as with three "
        "copies of each shard; a machine that fails is mended and comes back to its position",
        slowdown_s=gemini_lab(workload, replicas=3).slowdown_s,
        following=Following(
            follower=Follower(target=target, horizon_days=horizon_days),
            failures_per_day=failures_per_day,
            repair_s=repair_s,
            fits=fits,
        ),
    )
