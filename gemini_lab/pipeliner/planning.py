"""Cut a rank's checkpoint into chunks for the idle spans of its job (paper, section 5.3)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast, get_args

from gemini_lab.errors import CapacityError, ConfigError, shown
from gemini_lab.pipeliner import algorithm_2, drain
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import (
    BUFFER_BYTES,
    MU,
    SUB_BUFFERS,
    Algorithm,
    ChunkSchedule,
    Scheme,
)
from gemini_lab.pipeliner.task import Send, Task
from gemini_lab.pipeliner.timing import AT_START, AT_UPDATE, Pipeline, modelled_delay_s
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings
from gemini_lab.units import LARGEST, LONGEST_S, check_number, format_bytes, format_seconds

MOST_CHUNKS: Final = 1_000_000
"""Of a plan: each is a value of its own, on every rank."""
_ONE_BUFFER: Final = ("naive", "interleaved")


def plan_chunks(
    profile: Profile,
    *,
    checkpoint_bytes: int,
    replicas: int = 2,
    bandwidth_bytes_per_s: float,
    alpha_s: float = 0.0,
    copy_bytes_per_s: float = math.inf,
    scheme: Scheme = "gemini",
    algorithm: Algorithm = "drain",
    buffer_bytes: int = BUFFER_BYTES,
    sub_buffers: int = SUB_BUFFERS,
    mu: float = MU,
    max_overhead: float | None = None,
    felt_s: float = 0.0,
) -> ChunkSchedule:
    """Say which chunk of a checkpoint leaves in which idle span.

    Args:
        profile: Of the job at hand; only spans before the update are used.
        checkpoint_bytes: Size of the rank's shard (C).
        replicas: Copies of each shard, the owner's included (m).
        bandwidth_bytes_per_s: The rank's share of its node's link (B).
        alpha_s: What starting a message takes.
        copy_bytes_per_s: How fast a received chunk leaves its sub-buffer; without it, at once.
        scheme: Which of the five.
        algorithm: How `"gemini"` plans: `"drain"` as `gemini_lab.pipeliner.drain` tells, or
            `"paper"`, which is Algorithm 2 as `gemini_lab.pipeliner.algorithm_2` repairs it, at the
            rate of wire or copy, whichever is slower. The other schemes follow Algorithm 2, at the
            wire's rate.
        buffer_bytes: Memory for chunks between wire and slab (R).
        sub_buffers: How many parts it has (p); the interleaved scheme has one.
        mu: Share of each span to fill, in (0, 1], where that suffices.
        max_overhead: Largest tolerated mean delay as a share of the iteration. Where the delay is
            larger only every j-th version is sent. Without it, every version is.
        felt_s: Delay that was seen under such a plan, beside what is modelled here.

    Raises:
        ConfigError: A setting is out of its range.
        CapacityError: A piece of the naive scheme is larger than the buffer.
    """
    if scheme not in get_args(Scheme):
        raise ConfigError(f"scheme={shown(scheme)} is unknown; choose one of {get_args(Scheme)}")
    if algorithm not in get_args(Algorithm):
        choices = get_args(Algorithm)
        raise ConfigError(f"algorithm={shown(algorithm)} is unknown; choose one of {choices}")
    check_number("checkpoint_bytes", checkpoint_bytes, is_whole=True)
    check_number("felt_s", felt_s)
    for name, count in {"replicas": replicas, "sub_buffers": sub_buffers}.items():
        check_number(name, count, least=1, is_whole=True)
    _check_buffer_size(buffer_bytes, sub_buffers=sub_buffers)
    _check_shares(mu=mu, max_overhead=max_overhead)
    pipeline = Pipeline(
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        alpha_s=alpha_s,
        copy_bytes_per_s=copy_bytes_per_s,
        sub_buffers=1 if scheme in _ONE_BUFFER else sub_buffers,
    )
    _check_pipeline(pipeline)
    task = Task(
        profile=profile,
        pipeline=pipeline,
        checkpoint_bytes=checkpoint_bytes,
        remote=0 if scheme == "none" or not checkpoint_bytes else replicas - 1,
        most_bytes=checkpoint_bytes if scheme == "naive" else buffer_bytes // pipeline.sub_buffers,
        mu=mu,
    )
    _check_count(task)
    sends = _sends(task, scheme=scheme, algorithm=algorithm)
    _check_buffer(sends, profile=profile, buffer_bytes=buffer_bytes)
    schedule = ChunkSchedule(
        scheme=scheme,
        algorithm=algorithm,
        chunks=tuple(task.chunks(sends)),
        every_iterations=1,
        buffer_bytes=buffer_bytes,
        sub_buffers=pipeline.sub_buffers,
        iteration_s=profile.iteration_s,
        predicted_iteration_s=_predicted_s(task, sends, scheme=scheme) + felt_s,
        fingerprint=profile.fingerprint,
    )
    every = _frequency(schedule.delay_s, profile, max_overhead)
    schedule = replace(schedule, every_iterations=every)
    return replace(schedule, notes=tuple(_notes(schedule, task)))


def _sends(task: Task, *, scheme: Scheme, algorithm: Algorithm) -> list[Send]:
    if scheme in {"none", "blocking"}:
        return [(None, size_bytes) for size_bytes in task.rest(0)]
    if scheme == "gemini":
        if algorithm == "paper":
            return algorithm_2.plan(algorithm_2.at_the_pace_of_copies(task))
        return drain.plan(task)
    return algorithm_2.plan(task, one_a_span=scheme == "naive")


def _predicted_s(task: Task, sends: list[Send], *, scheme: Scheme) -> float:
    leftover = AT_START if scheme == "blocking" else AT_UPDATE
    delay_s = modelled_delay_s(task.profile, sends, task.pipeline, leftover=leftover)
    return task.profile.iteration_s + delay_s


def _check_shares(*, mu: float, max_overhead: float | None) -> None:
    check_number("mu", mu)
    if not 0 < mu <= 1:
        raise ConfigError(f"mu={mu} must be above 0 and at most 1; {MU} suits a steady profile")
    if max_overhead is not None and not 0 < max_overhead <= LARGEST:
        raise ConfigError(
            f"max_overhead={shown(max_overhead)} must be above 0; leave it out to send every "
            "version"
        )


def _check_buffer_size(buffer_bytes: int, *, sub_buffers: int) -> None:
    check_number("buffer_bytes", buffer_bytes, is_whole=True)
    if buffer_bytes < sub_buffers:
        raise ConfigError(
            f"buffer_bytes={buffer_bytes} leaves nothing for each of {sub_buffers} sub-buffers; "
            f"the paper has {format_bytes(BUFFER_BYTES)} in {SUB_BUFFERS}"
        )


def _check_count(task: Task) -> None:
    """Refuse a plan of more chunks than anybody plans, or sends."""
    chunks = task.remote * -(-task.checkpoint_bytes // max(1, task.most_bytes))
    if chunks > MOST_CHUNKS:
        raise ConfigError(
            f"{format_bytes(task.checkpoint_bytes)} for each of {task.remote} peers, in chunks of "
            f"{format_bytes(task.most_bytes)} at most, are {chunks:,} chunks, and a plan has "
            f"{MOST_CHUNKS:,} at most; raise buffer_bytes, or lower sub_buffers"
        )


def _check_pipeline(pipeline: Pipeline) -> None:
    rate, alpha_s = pipeline.bandwidth_bytes_per_s, pipeline.alpha_s
    if not 0 < rate <= LARGEST:
        raise ConfigError(
            f"bandwidth_bytes_per_s={shown(rate)} must be finite and above 0; calibrate it"
        )
    if not pipeline.copy_bytes_per_s > 0:
        raise ConfigError(
            f"copy_bytes_per_s={shown(pipeline.copy_bytes_per_s)} must be above 0; calibrate it"
        )
    if not 0 <= alpha_s <= LONGEST_S:
        raise ConfigError(f"alpha_s={shown(alpha_s)} must be at least 0 and finite; calibrate it")


def _check_buffer(sends: list[Send], *, profile: Profile, buffer_bytes: int) -> None:
    """Refuse a chunk larger than the whole buffer: the paper's out-of-memory case of Fig. 16."""
    span, size_bytes = max(sends, key=lambda send: send[1], default=(None, 0))
    if size_bytes <= buffer_bytes:
        return
    where = "what fits no span"
    if span is not None:
        where = f"idle span {span} ({format_seconds(profile.idle_spans[span].duration_s)})"
    raise CapacityError(
        f"the naive scheme sends {format_bytes(size_bytes)} in one piece for {where}, but "
        f"the buffer is {format_bytes(buffer_bytes)}; use 'gemini', or raise buffer_bytes"
    )


def _frequency(delay_s: float, profile: Profile, max_overhead: float | None) -> int:
    """Every how many iterations to send, so that the mean delay stays within `max_overhead`."""
    if max_overhead is None or delay_s <= max_overhead * profile.iteration_s:
        return 1
    if profile.iteration_s <= 0:
        raise ConfigError(
            f"max_overhead={max_overhead} of an iteration of {profile.iteration_s} s allows no "
            "delay; leave it out"
        )
    return math.ceil(delay_s / (max_overhead * profile.iteration_s))


def _notes(schedule: ChunkSchedule, task: Task) -> Iterator[str]:
    if not schedule.chunks:
        return
    if schedule.scheme != "blocking" and not task.profile.steady:
        yield f"the profile is {task.profile.verdict}; training may wait for the traffic"
    if schedule.scheme != "blocking" and not schedule.fits:
        idle_s = sum(span.duration_s for _, span in task.spans)
        yield (
            f"{format_bytes(schedule.sent_bytes)} do not fit {format_seconds(idle_s)} of idle time "
            f"and delay training by {format_seconds(schedule.delay_s)}; use fewer replicas, or set "
            "max_overhead"
        )
    starts_bytes = task.pipeline.alpha_s * task.pipeline.bandwidth_bytes_per_s
    part_bytes = schedule.buffer_bytes // schedule.sub_buffers
    if part_bytes < starts_bytes:
        yield (
            f"a chunk of {format_bytes(part_bytes)} takes longer to start than to send; raise "
            f"buffer_bytes to {format_bytes(starts_bytes * schedule.sub_buffers)} or more"
        )
    if schedule.every_iterations > 1:
        yield (
            f"only one version in {schedule.every_iterations} is sent: it delays its iteration by "
            f"{format_seconds(schedule.delay_s)}"
        )


def plan_for_ranks(
    profile: Profile,  # the one that all ranks agreed on
    calibration: Calibration,  # their machine
    settings: Settings,  # the job's
    *,
    shard_bytes: Sequence[int],  # payload bytes of every rank's shard
    felt_s: float,  # see `plan_chunks`
    on_device: bool,  # whether sub-buffers are emptied by a device's bus, as fast as was measured
) -> dict[int, ChunkSchedule]:
    """Plan what each rank sends of its shard, and when; every rank computes the same plan.

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
