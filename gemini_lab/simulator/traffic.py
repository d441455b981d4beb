"""Checkpoint traffic of a simulated workload, planned by the real chunk scheduler."""

from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Algorithm, ChunkSchedule, Scheme
from gemini_lab.profiler.profile import Profile
from gemini_lab.simulator.workload import Workload


def profile_of(workload: Workload) -> Profile:
    """Make the network's timeline of one iteration from the workload's idle spans."""
    return Profile.synthetic(
        iteration_s=workload.iteration_s,
        idle_spans_s=workload.idle_spans_s,
        world_size=workload.nodes * workload.gpus_per_node,
    )


def chunk_schedule(
    workload: Workload,  # gives shard, link, copy rate and idle spans
    *,
    replicas: int = 2,  # copies of each shard, the own one included, m
    scheme: Scheme = "gemini",  # one of the five of Fig. 16.
    algorithm: Algorithm = "drain",  # see `plan_chunks`
    max_overhead: float | None = None,  # see `plan_chunks`
) -> ChunkSchedule:
    """Plan what each GPU sends of a checkpoint, and by how much that lengthens an iteration.

    A node's GPUs share its link and its copy rate evenly.
    """
    gpus = workload.gpus_per_node
    return plan_chunks(
        profile_of(workload),
        checkpoint_bytes=-(-workload.shard_bytes // gpus),
        replicas=replicas,
        bandwidth_bytes_per_s=workload.network_bytes_per_s / gpus,
        copy_bytes_per_s=workload.copy_rate / gpus,
        scheme=scheme,
        algorithm=algorithm,
        max_overhead=max_overhead,
    )
