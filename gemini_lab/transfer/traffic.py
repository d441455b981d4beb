"""A worker's checkpoint traffic, put together as its settings say."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from gemini_lab.log import events
from gemini_lab.memory.slab import Slab
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.recovery.messages import WorkerStart
from gemini_lab.settings import SCHEDULED, Settings
from gemini_lab.transfer.clocks import DeviceClock, WallClock
from gemini_lab.transfer.conductor import Conductor
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.lanes import CudaLanes, Lanes, pin
from gemini_lab.transfer.link import GLOO, LinkBucket, LinkPacer
from gemini_lab.transfer.node_link import node_link, own_link
from gemini_lab.transfer.seam import CommSeam
from gemini_lab.transfer.transfer import Done, Job, Transfer
from gemini_lab.units import format_bytes


class Traffic:
    """Sends the versions of one rank, by the scheme of its settings.

    Args:
        settings: The job's.
        group: A process group over all ranks, used by nothing else.
        slab: Keeps this rank's shard and those in `receives_from`.
        sizes: Payload bytes of every rank's shard.
        sends_to: The ranks that keep this rank's replicas 1, 2, ...
        receives_from: Rank of each other shard that is kept here, and which replica this is.
        link: This node's emulated link, if it has one.
        ranks_per_node: Workers on each node.
        on_device: Whether training runs on CUDA.
        emit: Says an event.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        group: CheckpointGroup,
        slab: Slab,
        sizes: Sequence[int],
        sends_to: Sequence[int],
        receives_from: Mapping[int, int],
        link: LinkBucket | None,
        ranks_per_node: int,
        on_device: bool,
        emit: Callable[[events.AnyEvent], None],
    ) -> None:
        self._scheme = settings.scheme
        self._emit = emit
        self._conductor: Conductor | None = None
        self._seam: CommSeam | None = None
        self._newest_sent: int | None = None
        lanes = _lanes(settings, slab) if on_device else None
        self._transfer = Transfer(
            group=group, slab=slab, rank=group.rank, sends_to=sends_to,
            receives_from=list(receives_from), on_done=self._say_complete, mark=self._mark,
            carry=None if link is None else link.carry, lanes=lanes,
        )  # fmt: skip
        is_scheduled = settings.scheme in SCHEDULED
        # On CUDA, to ask for a collective's times is to wait for the device.
        self._logs = settings.log_collectives and (is_scheduled or not on_device)
        if link is None and not is_scheduled and not self._logs:
            return
        self._seam = CommSeam(
            clock=DeviceClock() if on_device else WallClock(),
            pace=None
            if link is None
            else LinkPacer(link, ranks_per_node=ranks_per_node, shares=GLOO),
            recording=is_scheduled or self._logs,
        ).attach()
        if is_scheduled:
            bus_bytes_per_s = settings.copy_bytes_per_s
            self._conductor = Conductor(
                settings=settings, group=group, transfer=self._transfer, seam=self._seam,
                sizes=sizes, sends_to=sends_to, receives_from=receives_from, emit=emit,
                carry=None if link is None else link.carry,
                empty=own_link(bus_bytes_per_s).carry if bus_bytes_per_s else None,
                conditions=conditions_of(settings), lanes=lanes,
            )  # fmt: skip

    def is_due(self, version: int) -> bool:
        """Whether `version`, which was just made by an update, is to be sent."""
        if self._conductor is not None:
            is_due = self._conductor.end_iteration(version)
        else:
            is_due = self._scheme != "none"
            if self._seam is not None:
                self._seam.begin_iteration()
        if self._logs and self._seam is not None and self._seam.newest is not None:
            self._emit(_collectives(version, self._seam.newest))
        return is_due

    def send(self, job: Job) -> None:
        """Begin to send a version; under `"blocking"`, return when it is whole everywhere."""
        self._newest_sent = job.version
        self._transfer.start(job)
        if self._scheme == "blocking":
            self._transfer.wait()

    def wait(self) -> float:
        """Training has come to its update: let everything go, and wait until it is whole.

        Returns:
            Seconds spent waiting.
        """
        if self._conductor is not None:
            self._conductor.begin_update()
        return self._transfer.wait()

    def is_sent(self, version: int) -> bool:
        """Whether this version was sent, or none ever is."""
        return self._scheme == "none" or self._newest_sent == version

    def close(self) -> None:
        """Finish what is under way."""
        self.wait()
        self._transfer.close()

    def _mark(self) -> int:
        return 0 if self._conductor is None else self._conductor.mark

    def _say_complete(self, done: Done) -> None:
        for sent in done.sent:
            self._emit(
                events.Transfer(
                    version=done.version,
                    span=sent.span,
                    peer=sent.peer,
                    sent_bytes=sent.sent_bytes,
                    start_s=sent.start_s,
                    end_s=sent.end_s,
                )
            )
        next_version = done.version + 1
        if self._conductor is not None:
            next_version = self._conductor.next_version
        self._emit(
            events.VersionComplete(
                version=done.version,
                sent_bytes=done.sent_bytes,
                local_s=done.local_s,
                duration_s=done.duration_s,
                next_version=next_version,
            )
        )


def _lanes(settings: Settings, slab: Slab) -> Lanes:
    """The GPU's lanes, and its way into the slab; all ranks come here at the same time."""
    pin(slab.memory)
    is_sent = settings.replicas > 1 and settings.scheme in SCHEDULED
    torch_distributed: Any = dist  # its stubs leave out what is used here
    return CudaLanes(torch_distributed.new_group(backend="nccl") if is_sent else None)


def _collectives(iteration: int, record: IterationRecord) -> events.Collectives:
    """An iteration's collectives; it ended just now."""
    collectives = record.collectives
    return events.Collectives(
        iteration=iteration,
        began_s=time.time() - record.iteration_s,
        names=tuple(one.name for one in collectives),
        sizes_bytes=tuple(one.size_bytes for one in collectives),
        starts_s=tuple(round(one.start_s, 6) for one in collectives),
        ends_s=tuple(round(one.end_s, 6) for one in collectives),
    )


def conditions_of(settings: Settings) -> tuple[str, ...]:
    """What the settings emulate, for every result that was made with them."""
    found = []
    if settings.link_bytes_per_s is not None:
        found.append(f"each node on a link paced to {format_bytes(settings.link_bytes_per_s)}/s")
    if settings.copy_bytes_per_s is not None:
        found.append(f"sub-buffers emptied at {format_bytes(settings.copy_bytes_per_s)}/s")
    return tuple(found)


def open_link(settings: Settings, start: WorkerStart, group: CheckpointGroup) -> LinkBucket | None:
    """The emulated link of this worker's node, or `None`; every rank calls it.

    Args:
        settings: The job's.
        start: What the worker was told at its start.
        group: All ranks.
    """
    if settings.link_bytes_per_s is None:
        return None
    return node_link(
        job=start.rendezvous,
        node=start.seats.node_of(start.rank),
        bytes_per_s=settings.link_bytes_per_s,
        barrier=group.barrier,
    )
