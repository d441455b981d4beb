"""One plan for all ranks of a job: each sends its own shard, in spans that all of them share."""

import math
from collections.abc import Sequence
from typing import cast

from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Algorithm, ChunkSchedule, Scheme
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings


def plan_for_ranks(
    profile: Profile,
    calibration: Calibration,
    settings: Settings,
    *,
    shard_bytes: Sequence[int],
    felt_s: float,
    on_device: bool,
) -> dict[int, ChunkSchedule]:
    """Plan what each rank sends of its shard, and when; every rank computes the same plan.

    Args:
        profile: The one that all ranks agreed on.
        calibration: Their machine.
        settings: The job's.
        shard_bytes: Payload bytes of every rank's shard.
        felt_s: See `plan_chunks`.
        on_device: Whether sub-buffers are emptied by a device's bus, as fast as was measured.

    Raises:
        CapacityError: The scheme needs more than its buffer.
    """
    emptied_at = calibration.copy_bytes_per_s if on_device else math.inf
    by_size = {
        size_bytes: plan_chunks(
            profile,
            checkpoint_bytes=size_bytes,
            replicas=settings.replicas,
            bandwidth_bytes_per_s=calibration.bandwidth_bytes_per_s,
            alpha_s=calibration.alpha_s,
            copy_bytes_per_s=settings.copy_bytes_per_s or emptied_at,
            scheme=cast("Scheme", settings.scheme),
            algorithm=cast("Algorithm", settings.algorithm),
            buffer_bytes=settings.buffer_bytes,
            sub_buffers=settings.sub_buffers,
            mu=settings.mu,
            max_overhead=settings.max_overhead,
            felt_s=felt_s,
        )
        for size_bytes in set(shard_bytes)
    }
    return {rank: by_size[size_bytes] for rank, size_bytes in enumerate(shard_bytes)}
