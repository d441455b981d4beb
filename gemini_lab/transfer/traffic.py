"""A worker's checkpoint traffic, put together as its settings say."""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
from gemini_lab.transfer.device_queues import CudaQueues, pin, require_current
from gemini_lab.transfer.differences import Differences
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import GLOO, LinkBucket, LinkPacer, own_link
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.schedule_controller import ScheduleController
from gemini_lab.transfer.version import Asked, MovedVersion, OutgoingVersion, Peers, Wire
from gemini_lab.units import to_microsecond

Emit = Callable[[events.AnyEvent], None]
"""Says an event."""


class CheckpointTraffic:
    """Sends the versions of one rank, by the scheme of its settings; `open_traffic` makes one.

    Args:
        settings: The job's.
        replicator: Moves the versions.
        hook: Watches training's collectives, if anything needs it to.
        controller: Says which versions leave and how, under the schemes that use idle spans.
        emit: Says an event.
    """

    def __init__(
        self,
        settings: Settings,
        replicator: Replicator,
        *,
        hook: CommHook | None,
        controller: ScheduleController | None,
        emit: Emit,
    ) -> None:
        self._scheme = settings.scheme
        self._replicator = replicator
        self._hook = hook
        self._controller = controller
        self._logs_collectives = settings.log_collectives is not False
        self._emit = emit
        self._newest_sent: int | None = None

    @property
    def collectives(self) -> int:
        """A number that every collective of training changes, where they are watched."""
        return 0 if self._hook is None else self._hook.calls

    @property
    def wants_differences(self) -> bool:
        """Whether versions may be sent as what made them."""
        return self._replicator.wants_differences

    @property
    def is_hold_agreed(self) -> bool:
        """Whether all ranks know, since the version that was waited for last, that they stop."""
        return self._replicator.is_hold_agreed

    @property
    def agreed_back(self) -> tuple[int, int]:
        """Return what all ranks know of going back: the newest order's number, and how."""
        return self._replicator.agreed_back

    def wait(self) -> float:
        """Training has come to its update: let everything go, and wait until it is whole.

        Returns:
            Seconds spent waiting.

        Raises:
            RuntimeError: The transfer broke, as it does when a peer dies.
        """
        if self._hook is not None:
            self._hook.begin_update()
        return self._replicator.wait()

    def end_iteration(self, version: int) -> bool:
        """The update is done; go on to the next iteration, by another plan if it is time for one.

        Args:
            version: What the update made.

        Returns:
            Whether `version` is to be sent now.
        """
        record = None if self._hook is None else self._hook.begin_iteration()
        ended_s = time.time()
        if self._controller is None:
            is_to_be_sent = self._scheme != "none"
        else:
            is_to_be_sent = self._controller.end_iteration(version, record)
        if self._logs_collectives and record is not None:
            self._emit(_collectives(version, record, ended_s))
        return is_to_be_sent

    def send(self, version: OutgoingVersion) -> None:
        """Begin to send a version; under `"blocking"`, return when it is whole everywhere."""
        self._newest_sent = version.version
        self._replicator.send(version)
        if self._scheme == "blocking":
            self._replicator.wait()

    def release(self) -> None:
        """Release the withheld version, once all ranks have called this."""
        self._replicator.release()

    def note_whole(self, version: int) -> None:
        """A version is on all its holders already: a recovery brought it there."""
        self._newest_sent = version

    def exchange(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's `values` (equally many), in rank order; all ranks call it together.

        Only between an update and the version that is sent of it, or after `wait`.
        """
        return self._replicator.exchange(values)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """In it, what training communicates is no part of its iteration."""
        with nullcontext() if self._hook is None else self._hook.apart():
            yield

    def go_back(self, version: int) -> None:
        """Training goes back to a version that is whole, after `wait`; a new iteration begins."""
        self._newest_sent = version
        if self._hook is not None:
            self._hook.begin_iteration()
        if self._controller is not None:
            self._controller.go_back(version)

    def is_sent(self, version: int) -> bool:
        """Whether this version was sent, or none ever is."""
        return self._scheme == "none" or self._newest_sent == version

    def end_training(self) -> None:
        """Send later versions in the background; all ranks call it, once.

        There are no more spans to use, and the script may have destroyed its process groups, the
        schemes' NCCL group among them.
        """
        self.wait()
        if self._hook is not None:
            self._hook.expect(None)
        self._replicator.follow(None)

    def stop(self, within_s: float) -> bool:
        """Break off what is under way; see `Replicator.stop`. Another traffic follows."""
        return self._replicator.stop(within_s)

    def detach(self) -> None:
        """Leave training's collectives to the next traffic, after `stop`."""
        if self._hook is not None:
            self._hook.detach()
        self._replicator.close()

    def close(self) -> None:
        """Finish what is under way."""
        self.wait()
        self._replicator.close()


def open_traffic(
    settings: Settings,
    group: CheckpointGroup,
    slab: Slab,
    peers: Peers,
    *,
    shard_bytes: Sequence[int],
    link: LinkBucket | None,
    node_of: Callable[[int], Hashable],
    device: torch.device,
    emit: Emit,
    asked: Callable[[], Asked],
    differences: Callable[[Wire], Differences] | None,
) -> CheckpointTraffic:
    """A rank's traffic, with its hook in DeepSpeed's collectives; all ranks call it together.

    Args:
        settings: The job's.
        group: A process group over all ranks, used by nothing else.
        slab: Keeps this rank's shard and those that it receives.
        peers: With whom it exchanges versions.
        shard_bytes: Bytes that every rank sends of most versions.
        link: This node's emulated link, if it has one.
        node_of: From a rank to its node.
        device: Where training runs.
        emit: Says an event.
        asked: What this rank was asked, which all learn with each version.
        differences: Makes what sends versions as what made them, where that is wanted.

    Raises:
        ConfigError: It is a GPU, and not the current one.
    """
    on_device = device.type == "cuda"
    wire = _open_wire(settings, group, slab, link=link, device=device)
    is_scheduled = settings.scheme in SCHEDULED
    planner = OnlinePlanner(
        world_size=group.world_size if is_scheduled else 1,
        iterations=settings.profile_iterations,
        conditions=settings.conditions,
    )
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
    )
    hook = _open_hook(settings, link=link, node_of=node_of, on_device=on_device)
    controller = None
    if is_scheduled and hook is not None:
        controller = ScheduleController(
            planner,
            settings,
            wire=wire,
            peers=peers,
            shard_bytes=shard_bytes,
            replicator=replicator,
            hook=hook,
            emit=emit,
        )
    return CheckpointTraffic(settings, replicator, hook=hook, controller=controller, emit=emit)


def _open_wire(
    settings: Settings,
    group: CheckpointGroup,
    slab: Slab,
    *,
    link: LinkBucket | None,
    device: torch.device,
) -> Wire:
    """Return the wire of versions; with a GPU, all ranks call this together."""
    lanes = None
    if device.type == "cuda":
        require_current(device, torch.cuda.current_device())
        pin(slab.memory)
        is_sent = settings.replicas > 1 and settings.scheme in SCHEDULED
        torch_distributed: Any = dist  # its stubs leave out what is used here
        lanes = CudaQueues(torch_distributed.new_group(backend="nccl") if is_sent else None)
    bus_bytes_per_s = settings.copy_bytes_per_s if settings.scheme in SCHEDULED else None
    return Wire(
        group=group,
        carry=None if link is None else link.carry,
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
    """A hook in DeepSpeed's collectives, if they are to be paced, profiled or logged."""
    # Only profiling is worth it on CUDA: to ask for a collective's times is to wait for the device.
    is_logged = settings.log_collectives is not False and not on_device
    recording = settings.scheme in SCHEDULED or is_logged
    if link is None and not recording:
        return None
    pacer = None if link is None else LinkPacer(link, node_of=node_of, shares=GLOO)
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
