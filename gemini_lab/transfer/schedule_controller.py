"""The execution of a running job's planner: measures the wire, plans chunks, and changes the route.

`pipeliner.online` decides, alike on all ranks. `calibrate` measures alpha and B of the wire, and
the rates of copy and checksum.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import torch

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.log import events
from gemini_lab.memory.slab import chunk_digest
from gemini_lab.pipeliner.machine import Calibration, WireFit, fit_wire
from gemini_lab.pipeliner.online import MakePlan, OnlinePlanner, Order, UseBackground
from gemini_lab.pipeliner.planning import plan_for_ranks
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.pipeliner.slowdown import Felt, expected_of
from gemini_lab.profiler.average import encode, mean_profile
from gemini_lab.profiler.drift import Drift
from gemini_lab.profiler.observe import IterationRecord, SequenceChange
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.device_queues import Lanes
from gemini_lab.transfer.device_route import DeviceRoute
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.route import Route
from gemini_lab.transfer.scheduled_route import ScheduledRoute
from gemini_lab.transfer.version import Peers, Wire
from gemini_lab.units import KIB, MIB, format_seconds

SIZES: Final = (4 * KIB, 64 * KIB, 512 * KIB, 2 * MIB, 8 * MIB)
# Of eight messages one at least meets neither a timer nor another process.
REPEATS: Final = 8
ATTEMPTS: Final = 3
"""A machine that stalls while small messages are measured is given another chance."""
MEMORY_BYTES: Final = 16 * MIB
PACED_S: Final = (0.0001, 0.002, 0.01)
"""How long an emulated link carries the messages that measure it. Sleeping and waking add some
tenths of a millisecond: the first says how many, and against the last they are small."""


def paced_sizes(link_bytes_per_s: float) -> tuple[int, ...]:
    """Return message sizes that measure an emulated link of that rate."""
    return tuple(max(1, round(link_bytes_per_s * time_s)) for time_s in PACED_S)


def calibrate(
    group: CheckpointGroup,  # used by nothing else meanwhile
    *,
    sizes: Sequence[int] = SIZES,  # message sizes
    repeats: int = REPEATS,  # messages of each size, in turn with those of the other sizes
    # Takes a message over an emulated link (`LinkBucket.carry`), before it is sent.
    carry: Callable[[float], None] | None = None,
    conditions: Sequence[str] = (),  # see `Calibration.conditions`
    lanes: Lanes | None = None,  # the device's, where chunks go from device to device
) -> Calibration:
    """Measure the machine; every rank of `group` calls it at the same time.

    Every rank sends to the next and receives from the one before it, as checkpoints do. For each
    size the slowest rank's time counts, so that all ranks get the same alpha and B. Of a rank's own
    times the fastest counts: what held the others up was not the wire.

    Raises:
        ConfigError: The group has one rank only, or the times make no line.
    """
    if group.world_size < 2:
        raise ConfigError("a wire needs two ranks to be measured (got 1); start more workers")
    if lanes is None:
        fit = _measured_wire(group, sizes, repeats, lambda size: _exchange_s(group, size, carry))
        copy_bytes_per_s = copy_rate(repeats=repeats)
    else:
        fit = _measured_wire(group, sizes, repeats, lambda size: _swap_s(group, size, lanes))
        copy_bytes_per_s = _bus_rate(group, lanes, repeats)
    return Calibration(
        alpha_s=fit.alpha_s,
        bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s,
        copy_bytes_per_s=copy_bytes_per_s,
        hash_bytes_per_s=hash_rate(repeats=repeats),
        worst_error=fit.worst_error,
        conditions=tuple(conditions),
    )


def _measured_wire(
    group: CheckpointGroup,
    sizes: Sequence[int],
    repeats: int,
    exchange_s: Callable[[int], float],
) -> WireFit:
    """Return the wire's line; all ranks see the same times, so all of them try again or none."""
    for attempt in range(1, ATTEMPTS + 1):
        turns = [[exchange_s(size) for size in sizes] for _ in range(repeats + 1)]
        times_s = zip(*turns[1:], strict=True)  # the first turn warms up
        fastest_ns = [round(min(times) * 1e9) for times in times_s]
        slowest_ns = [max(ranks) for ranks in zip(*group.all_gather(fastest_ns), strict=True)]
        try:
            return fit_wire([(size, ns / 1e9) for size, ns in zip(sizes, slowest_ns, strict=True)])
        except ConfigError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _exchange_s(
    group: CheckpointGroup, size_bytes: int, carry: Callable[[float], None] | None
) -> float:
    """Return seconds from a common start until one message has left and one has come."""
    out, room = (torch.zeros(size_bytes, dtype=torch.uint8) for _ in range(2))
    after = (group.rank + 1) % group.world_size
    before = (group.rank - 1) % group.world_size
    group.barrier()
    started_s = time.perf_counter()
    coming = group.irecv(room, before)
    if carry is not None:
        carry(size_bytes)
    group.isend(out, after).wait()
    coming.wait()
    return time.perf_counter() - started_s


def _swap_s(group: CheckpointGroup, size_bytes: int, lanes: Lanes) -> float:
    out, room = lanes.room(size_bytes), lanes.room(size_bytes)
    after = (group.rank + 1) % group.world_size
    before = (group.rank - 1) % group.world_size
    lanes.follow("wire", lanes.mark("training"))
    lanes.finish(lanes.mark("wire"))
    group.barrier()
    started_s = time.perf_counter()
    lanes.swap("wire", [(out, after)], [(room, before)])
    lanes.finish(lanes.mark("wire"))
    return time.perf_counter() - started_s


def _bus_rate(group: CheckpointGroup, lanes: Lanes, repeats: int) -> float:
    """Return bytes per second from the device to pinned memory: the slowest rank's."""
    source, target = lanes.room(MEMORY_BYTES), lanes.home(MEMORY_BYTES)

    def copy() -> None:
        lanes.copy("bus", target, source)
        lanes.finish(lanes.mark("bus"))

    copy()
    ours = round(_rate(copy, MEMORY_BYTES, repeats))
    return float(min(rate for (rate,) in group.all_gather([ours])))


def copy_rate(*, repeats: int) -> float:
    """Return bytes per second of a memory copy between touched pages; the median of `repeats`."""
    source, target = (np.ones(MEMORY_BYTES, np.uint8) for _ in range(2))
    return _rate(lambda: np.copyto(target, source), MEMORY_BYTES, repeats)


def hash_rate(*, repeats: int) -> float:
    """Return bytes per second of the chunks' checksum; the median of `repeats`."""
    source = np.ones(MEMORY_BYTES, np.uint8)
    return _rate(lambda: chunk_digest(source), MEMORY_BYTES, repeats)


def _rate(work: Callable[[], object], size_bytes: int, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return size_bytes / statistics.median(times)


class Mover(Protocol):
    """The part of `Replicator` that the controller calls."""

    def follow(self, route: Route | None) -> None: ...

    def take_marks(self) -> tuple[int, ...]: ...


class ScheduleController:
    """Carries out one rank's orders, between iterations; called by training's thread."""

    def __init__(
        self,
        planner: OnlinePlanner,
        settings: Settings,
        *,
        # What versions travel over; its group is idle whenever `end_iteration` is called.
        wire: Wire,
        peers: Peers,
        shard_bytes: Sequence[int],
        replicator: Mover,
        hook: CommHook,  # says when a chunk may leave, and is told of the profile that is followed
        emit: Callable[[events.AnyEvent], None],
    ) -> None:
        self.schedule: ChunkSchedule | None = None  # this rank's, while one is followed
        self._planner = planner
        self._settings = settings
        self._wire = wire
        self._peers = peers
        self._shard_bytes = shard_bytes
        self._replicator = replicator
        self._hook = hook
        self._emit = emit

    def end_iteration(self, version: int, record: IterationRecord | None) -> bool:
        """Go on to the next iteration, maybe by another plan; return whether to send `version`."""
        for order in self._planner.end_iteration(record, self._replicator.take_marks()):
            self._obey(order)
        return self._planner.admit(version)

    def go_back(self, version: int) -> None:
        self._planner.go_back(version)

    def _obey(self, order: Order) -> None:
        match order:
            case SequenceChange() | Drift() | Felt():
                text = f"rank {self._peers.rank}: {order.difference}"
                self._emit(events.Note(text=text))
            case MakePlan():
                self._plan(order)
            case UseBackground():
                self.schedule = None
                self._hook.expect(None)
                self._replicator.follow(None)
                self._say(order.reason)

    def _say(self, text: str) -> None:
        if self._peers.rank == 0:
            self._emit(events.Note(text=text))

    def _plan(self, order: MakePlan) -> None:
        """Plan with all other ranks, and follow the plan; or give up with them."""
        # Whole nanoseconds: ranks exchange 64-bit integers, and must plan with the same number.
        told = self._wire.group.all_gather([round(order.felt_s * 1e9), *encode(order.profile)])
        agreed = mean_profile(order.profile, [table for _, *table in told])
        felt_s = max(nanoseconds for nanoseconds, *_ in told) / 1e9
        try:
            calibration = self._calibrate()
        except ConfigError as error:
            self._obey(self._planner.give_up(f"the wire could not be measured ({error})"))
            return
        try:
            schedules = plan_for_ranks(
                agreed,
                calibration,
                self._settings,
                shard_bytes=self._shard_bytes,
                felt_s=felt_s,
                on_device=self._wire.lanes is not None,
            )
        except CapacityError as error:
            self._obey(self._planner.give_up(f"the scheme was refused: {error}"))
            return
        self.schedule = schedule = schedules[self._peers.rank]
        self._follow(agreed, schedules, felt_s=felt_s)
        if self._peers.rank == 0:
            self._emit(events.Profiled(profile=agreed, schedule=schedule, calibration=calibration))
        if felt_s:
            self._say(
                f"chunks are felt: they cost an iteration {format_seconds(felt_s)} more than "
                "is modelled, which counts from now on"
            )
        for text in schedule.notes:
            self._say(text)

    def _calibrate(self) -> Calibration:
        """Return the wire as measured now; the same on every rank, as all see the same times."""
        link_bytes_per_s = self._settings.link_bytes_per_s
        sizes = SIZES if link_bytes_per_s is None else paced_sizes(link_bytes_per_s)
        return calibrate(
            self._wire.group,
            sizes=sizes,
            carry=None if self._wire.link is None else self._wire.link.carry,
            conditions=self._settings.conditions,
            lanes=self._wire.lanes,
        )

    def _follow(
        self, profile: Profile, schedules: Mapping[int, ChunkSchedule], *, felt_s: float
    ) -> None:
        """Send by these schedules from the next version on."""
        if self._wire.lanes is None:
            self._hook.expect(profile)
            self._replicator.follow(
                ScheduledRoute(
                    self._wire, self._peers, schedules, wait_for_span=self._hook.wait_for_span
                )
            )
        else:
            # On a device a span is a place between two calls, so the route itself is at the gate.
            route = DeviceRoute(
                self._wire.lanes,
                self._peers,
                schedules,
                spans_after=[span.after for span in profile.idle_spans],
            )
            self._hook.expect(profile, gate=route)
            self._replicator.follow(route)
        every = max(schedule.every_iterations for schedule in schedules.values())
        expected = expected_of(profile, schedules.values(), felt_s=felt_s)
        self._planner.follow(every_iterations=every, expected=expected)
