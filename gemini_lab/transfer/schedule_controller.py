"""Does what a running job's planner orders: measures the wire, plans chunks, and changes the route.

What is decided, and that all ranks decide it alike, is `pipeliner.online`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.log import events
from gemini_lab.pipeliner.agreement import encode, mean_profile
from gemini_lab.pipeliner.felt import Felt, expected_of
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.online import MakePlan, OnlinePlanner, Order, UseBackground
from gemini_lab.pipeliner.ranks import plan_for_ranks
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.drift import Drift
from gemini_lab.profiler.observe import IterationRecord, SequenceChange
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings
from gemini_lab.transfer.calibration import SIZES, calibrate, paced_sizes
from gemini_lab.transfer.comm_hook import Gate
from gemini_lab.transfer.device_route import DeviceRoute
from gemini_lab.transfer.route import Route
from gemini_lab.transfer.scheduled_route import ScheduledRoute
from gemini_lab.transfer.version import Peers, Wire
from gemini_lab.units import format_seconds


class Mover(Protocol):
    """The part of `Replicator` that the controller calls."""

    def follow(self, route: Route | None) -> None: ...

    def take_marks(self) -> tuple[int, ...]: ...


class Seam(Protocol):
    """The part of `CommHook` that the controller calls."""

    def expect(self, profile: Profile | None, *, gate: Gate | None = None) -> None: ...

    def wait_for_span(self, span: int | None) -> None: ...


class ScheduleController:
    """Carries out one rank's orders, between iterations; called by training's thread.

    Args:
        wire: What versions travel over; its group is idle whenever `end_iteration` is called.
        hook: Says when a chunk may leave, and is told of the profile that is followed.

    Attributes:
        schedule: This rank's, while one is followed.
    """

    def __init__(
        self,
        planner: OnlinePlanner,
        settings: Settings,
        *,
        wire: Wire,
        peers: Peers,
        shard_bytes: Sequence[int],
        replicator: Mover,
        hook: Seam,
        emit: Callable[[events.AnyEvent], None],
    ) -> None:
        self.schedule: ChunkSchedule | None = None
        self._planner = planner
        self._settings = settings
        self._wire = wire
        self._peers = peers
        self._shard_bytes = shard_bytes
        self._replicator = replicator
        self._hook = hook
        self._emit = emit

    def end_iteration(self, version: int, record: IterationRecord | None) -> bool:
        """Go on to the next iteration, by another plan if it is time for one.

        Returns:
            Whether `version` is to be sent.
        """
        for order in self._planner.end_iteration(record, self._replicator.take_marks()):
            self._obey(order)
        return self._planner.admit(version)

    def go_back(self, version: int) -> None:
        """Go back: the version after this one is the next that will be made."""
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
                f"chunks are felt: they cost an iteration {format_seconds(felt_s)} beside what "
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
            carry=self._wire.carry,
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
