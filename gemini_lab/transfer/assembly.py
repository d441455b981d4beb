"""A worker's replicator with all its parts, assembled as the settings say."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.pipeliner.online import OnlinePlanner
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.settings import SCHEDULED, Settings
from gemini_lab.transfer.collective_calls import DeviceClock, WallClock
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.device_queues import CudaQueues
from gemini_lab.transfer.differences import Differences
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket, LinkPacer, own_link
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.schedule_controller import ScheduleController
from gemini_lab.transfer.version import Asked, MovedVersion, Peers, Wire
from gemini_lab.units import to_microsecond

Emit = Callable[[events.AnyEvent], None]
"""Says an event."""


def open_replicator(
    settings: Settings,  # the job's
    group: CheckpointGroup,  # A process group over all ranks, used by nothing else
    slab: Slab,  # keeps this rank's shard and those that it receives
    peers: Peers,  # with whom it exchanges versions
    *,
    shard_bytes: Sequence[int],  # bytes that every rank sends of most versions
    link: LinkBucket | None,  # this node's emulated link, if it has one
    node_of: Callable[[int], Hashable],  # from a rank to its node
    device: torch.device,  # where training runs
    emit: Emit,  # says an event
    # Gives the requests of this rank's agent, which all learn with each version.
    asked: Callable[[], Asked],
    # Makes what sends differences, if the settings want that.
    differences: Callable[[Wire], Differences] | None,
) -> Replicator:
    """Return a rank's replicator, hooked into training's collectives; collective itself."""
    on_device = device.type == "cuda"
    wire = _open_wire(settings, group, link=link, device=device)
    is_scheduled = settings.scheme in SCHEDULED
    planner = OnlinePlanner(
        world_size=group.world_size if is_scheduled else 1,
        iterations=settings.profile_iterations,
        conditions=settings.conditions,
    )
    hook = _open_hook(settings, link=link, node_of=node_of, on_device=on_device)
    replicator = Replicator(
        wire,
        peers,
        slab,
        on_moved=lambda moved: _say_moved(
            emit, moved, peers.rank, max(planner.next_version, moved.version + 1)
        ),
        mark=lambda: planner.mark,
        asked=asked,
        differences=None if differences is None else differences(wire),
        scheme=settings.scheme,
        hook=hook,
        on_iteration=None
        if settings.log_collectives is False
        else lambda *ended: emit(_collectives(*ended)),
    )
    if is_scheduled and hook is not None:
        replicator.controller = ScheduleController(
            planner,
            settings,
            wire=wire,
            peers=peers,
            shard_bytes=shard_bytes,
            replicator=replicator,
            hook=hook,
            emit=emit,
        )
    return replicator


def _open_wire(
    settings: Settings,
    group: CheckpointGroup,
    *,
    link: LinkBucket | None,
    device: torch.device,
) -> Wire:
    """Return the wire of versions; with a GPU, all ranks call this together."""
    lanes = None
    if device.type == "cuda":
        # A NCCL communicator takes hundreds of MiB of device memory, so none is made in vain.
        is_sent = settings.replicas > 1 and settings.scheme in SCHEDULED
        # Any: PyTorch 2.14 types what ranks outside of a group get as well, and none is outside.
        everybody: Any = dist.new_group(backend="nccl") if is_sent else None
        lanes = CudaQueues(everybody)
    bus_bytes_per_s = settings.copy_bytes_per_s if settings.scheme in SCHEDULED else None
    return Wire(
        group=group,
        link=link,
        empty=None if bus_bytes_per_s is None else own_link(bus_bytes_per_s).carry,
        lanes=lanes,
    )


def _open_hook(
    settings: Settings,
    *,
    link: LinkBucket | None,
    node_of: Callable[[int], Hashable],
    on_device: bool,
) -> CommHook | None:
    """Return a hook in DeepSpeed's collectives, if they are to be paced, profiled or logged."""
    # Only profiling is worth it on CUDA: to ask for a collective's times is to wait for the device.
    is_logged = settings.log_collectives is not False and not on_device
    recording = settings.scheme in SCHEDULED or is_logged
    if link is None and not recording:
        return None
    pacer = None if link is None else LinkPacer(link, node_of=node_of)
    clock = DeviceClock() if on_device else WallClock()
    return CommHook(clock=clock, pace=pacer, recording=recording).attach()


def _say_moved(emit: Emit, moved: MovedVersion, rank: int, next_version: int) -> None:
    for shard, reason in moved.differing.items():
        emit(events.ReplicaDiffered(shard=shard, version=moved.version, reason=reason))
    if moved.ended and rank == 0:  # all know it
        emit(events.GradientsGivenUp(version=moved.version, reason=moved.ended))
    for sent in moved.sent:
        emit(
            events.Transfer(
                version=moved.version,
                span=sent.span,
                peer=sent.peer,
                sent_bytes=sent.sent_bytes,
                start_s=to_microsecond(sent.start_s),
                end_s=to_microsecond(sent.end_s),
            )
        )
    emit(
        events.VersionComplete(
            version=moved.version,
            sent_bytes=moved.sent_bytes,
            local_s=to_microsecond(moved.local_s),
            duration_s=to_microsecond(moved.duration_s),
            next_version=next_version,
            form=moved.form,
            whole_s=to_microsecond(moved.whole_s),
        )
    )


def _collectives(iteration: int, record: IterationRecord, ended_s: float) -> events.Collectives:
    calls = (
        events.Call(one.name, one.size_bytes, one.start_s, one.end_s) for one in record.collectives
    )
    return events.Collectives.of(calls, iteration=iteration, began_s=ended_s - record.iteration_s)
