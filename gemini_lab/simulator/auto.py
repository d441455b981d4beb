"""The policy `"replicas": "auto"`, to be compared with fixed numbers of copies."""

from dataclasses import replace

from gemini_lab.placement.following import Follower
from gemini_lab.simulator.following import MOST_COPIES, Following
from gemini_lab.simulator.policy import Policy, gemini_lab
from gemini_lab.simulator.workload import Workload


def gemini_lab_auto(
    workload: Workload,
    *,
    target: float = 0.999,
    horizon_days: float = 30.0,
    failures_per_day: float = 0.015,
    repair_s: float | None = None,
    fits: int = MOST_COPIES,
) -> Policy:
    """This system with `"replicas": "auto"`: two copies of each shard, more of those in danger.

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
        assumptions=f"{fixed.assumptions}; copies are placed anew at restarts that come anyway, as "
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
