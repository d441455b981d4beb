"""Says when versions leave, and how: profiles the running job, plans with it, and watches it.

A job begins in the background. After some iterations it is profiled: every second iteration runs
without checkpoint traffic and is recorded, and the version that was not sent before it is the price
(a failure then costs one iteration more). When all ranks have a profile they agree on one, measure
the wire, and plan; from then on chunks leave in their spans. When the sequence of collectives
changes on any rank, all go back to the background and profile again.

All ranks must send the same versions in the same way. So these decisions follow only from what all
ranks know alike: version numbers, and the marks that the ranks exchanged with the newest version.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.log import events
from gemini_lab.pipeliner.agreement import encode, mean_profile
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import ChunkSchedule, Scheme, plan_chunks
from gemini_lab.profiler.observe import SKIP, Profiler, SequenceChange
from gemini_lab.profiler.profile import Profile
from gemini_lab.settings import Settings
from gemini_lab.transfer.calibration import SIZES, calibrate, paced_sizes
from gemini_lab.transfer.device import DeviceRoute
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.lanes import Lanes
from gemini_lab.transfer.route import Route, ScheduledRoute
from gemini_lab.transfer.seam import CommSeam
from gemini_lab.transfer.transfer import Transfer

PATIENCE: Final = 3
"""After so many times the iterations of a profile without one, the job counts as unsteady."""
_POLL_S: Final = 60.0


class Conductor:
    """Decides for one rank; every method but `wait_for_span` is called by training's thread.

    Args:
        settings: The job's.
        group: The checkpoints' process group, idle whenever `end_iteration` is called.
        transfer: Moves the versions.
        seam: Attached to DeepSpeed's comm object, and recording.
        sizes: Payload bytes of every rank's shard.
        sends_to: The ranks that keep this rank's replicas 1, 2, ...
        receives_from: Rank of each shard that is kept here, and which replica this is.
        emit: Says an event.
        carry: Takes bytes over an emulated link.
        empty: Takes bytes over an emulated bus from sub-buffer to slab.
        conditions: See `Profile.conditions`.
        lanes: The device's, if training runs on one.

    Attributes:
        schedule: This rank's, while one is followed.
        next_version: The next version that will be sent.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        group: CheckpointGroup,
        transfer: Transfer,
        seam: CommSeam,
        sizes: Sequence[int],
        sends_to: Sequence[int],
        receives_from: Mapping[int, int],
        emit: Callable[[events.AnyEvent], None],
        carry: Callable[[float], None] | None = None,
        empty: Callable[[float], None] | None = None,
        conditions: Sequence[str] = (),
        lanes: Lanes | None = None,
    ) -> None:
        self._settings, self._group, self._transfer, self._seam = settings, group, transfer, seam
        self._sizes, self._sends_to, self._receives_from = sizes, sends_to, receives_from
        self._emit, self._carry, self._empty = emit, carry, empty
        self._conditions = tuple(conditions)
        self._lanes = lanes
        self.schedule: ChunkSchedule | None = None
        self.next_version = 0
        self._is_loaded = True  # whether a version travels in the iteration that is computed
        self._changes = 0
        self._every = 1
        self._is_over = group.world_size == 1  # nothing to plan, or given up
        self._settle()

    @property
    def mark(self) -> int:
        """What this rank tells the others with each version: which profile it has; 0 is none."""
        profile = self._profiler.profile
        if profile is None:
            return 0
        calls = profile.collectives_before_update
        return (int(profile.fingerprint, 16) ^ calls) % (2**62) + 1

    def wait_for_span(self, span: int | None) -> None:
        """Return when a chunk of `span` may leave; called by the transfer's thread."""
        while not self._seam.wait_to_send(span, timeout_s=_POLL_S):
            pass

    def begin_update(self) -> None:
        """Training has come to its update, or to its end: whatever is left goes now."""
        self._seam.begin_update()

    def end_iteration(self, version: int) -> bool:
        """The update is done and `version` is there; returns whether it is to be sent."""
        record = self._seam.begin_iteration()
        self._age += 1
        if record is not None and not self._is_over:
            is_known = self._profiler.profile is not None
            if is_known or (not self._is_loaded and self._age > self._settles):
                change = self._profiler.observe(record)
                if isinstance(change, SequenceChange):
                    text = f"rank {self._group.rank}: {change.difference}"
                    self._emit(events.Note(text=text))
        if not self._is_over and self._transfer.marks:
            self._decide(self._transfer.marks)
        self._is_loaded = version >= self.next_version
        if self._is_loaded:
            self.next_version = version + self._stride()
        return self._is_loaded

    # -- decisions that all ranks take alike ---------------------------------------------------

    def _stride(self) -> int:
        if self.schedule is not None:
            return self._every
        return 1 if self._is_over or self._age < self._settles else 2

    def _decide(self, marks: Sequence[int]) -> None:
        if self.schedule is not None:
            if len({*marks}) > 1 or not marks[0]:
                self._fall_back()
        elif all(marks) and len({*marks}) == 1 and self._profiler.profile is not None:
            self._plan(self._profiler.profile)
        elif all(marks):
            self._give_up("the ranks' collectives differ from each other")
        elif self._age > self._settles + 2 * PATIENCE * self._settings.profile_iterations:
            self._give_up("the collectives do not repeat from iteration to iteration")

    def _settle(self) -> None:
        """Begin anew: some iterations to settle, more after every change, then profiling."""
        self._age = 0
        self._settles = SKIP * 2 ** min(self._changes, 5)
        self._profiler = Profiler(
            iterations=self._settings.profile_iterations, skip=0,
            world_size=self._group.world_size, conditions=self._conditions,
        )  # fmt: skip

    def _fall_back(self) -> None:
        self._leave_route()
        self._transfer.marks = ()
        self._changes += 1
        self._settle()
        self._say(
            "the sequence of collectives changed: versions leave in the background until the job "
            "is profiled again"
        )

    def _give_up(self, why: str) -> None:
        self._is_over = True
        self._leave_route()
        self._say(f"versions leave in the background, not in idle spans: {why}")

    def _leave_route(self) -> None:
        self.schedule = None
        self._seam.expect(None)
        self._seam.gate = None
        if self._transfer.route is not None:
            self._transfer.route.close()
            self._transfer.route = None

    def _say(self, text: str) -> None:
        if self._group.rank == 0:
            self._emit(events.Note(text=text))

    # -- the plan --------------------------------------------------------------------------------

    def _plan(self, profile: Profile) -> None:
        agreed = mean_profile(profile, self._group.all_gather(encode(profile)))
        calibration = self._calibrate()
        if calibration is None:
            return
        try:
            by_size = {
                size_bytes: self._schedule(agreed, calibration, size_bytes)
                for size_bytes in set(self._sizes)
            }
        except CapacityError as error:
            self._give_up(f"the scheme was refused: {error}")
            return
        schedules = dict(enumerate(by_size[size_bytes] for size_bytes in self._sizes))
        self._every = max(schedule.every_iterations for schedule in by_size.values())
        self._transfer.route = self._route(agreed, schedules)
        self.schedule = schedules[self._group.rank]
        self._seam.expect(agreed)
        if self._group.rank == 0:
            self._emit(
                events.Profiled(profile=agreed, schedule=self.schedule, calibration=calibration)
            )
        for text in self.schedule.notes:
            self._say(text)

    def _route(self, profile: Profile, schedules: Mapping[int, ChunkSchedule]) -> Route:
        if self._lanes is None:
            return ScheduledRoute(
                group=self._group, rank=self._group.rank, schedules=schedules,
                sends_to=self._sends_to, receives_from=self._receives_from,
                wait_for_span=self.wait_for_span, carry=self._carry, empty=self._empty,
            )  # fmt: skip
        route = DeviceRoute(
            lanes=self._lanes, rank=self._group.rank, schedules=schedules,
            sends_to=self._sends_to, receives_from=self._receives_from,
            spans_after=[span.after for span in profile.idle_spans],
        )  # fmt: skip
        self._seam.gate = route
        return route

    def _schedule(
        self, profile: Profile, calibration: Calibration, size_bytes: int
    ) -> ChunkSchedule:
        settings = self._settings
        return plan_chunks(
            profile,
            checkpoint_bytes=size_bytes,
            replicas=settings.replicas,
            bandwidth_bytes_per_s=calibration.bandwidth_bytes_per_s,
            alpha_s=calibration.alpha_s,
            copy_bytes_per_s=settings.copy_bytes_per_s
            or (math.inf if self._lanes is None else calibration.copy_bytes_per_s),
            scheme=cast("Scheme", settings.scheme),
            buffer_bytes=settings.buffer_bytes,
            sub_buffers=settings.sub_buffers,
            mu=settings.mu,
            max_overhead=settings.max_overhead,
        )

    def _calibrate(self) -> Calibration | None:
        """The wire as measured now; the same on every rank, as all see the same times."""
        link = self._settings.link_bytes_per_s
        sizes = SIZES if link is None else paced_sizes(link)
        try:
            return calibrate(
                self._group, sizes=sizes, carry=self._carry, conditions=self._conditions,
                lanes=self._lanes,
            )  # fmt: skip
        except ConfigError as error:
            self._give_up(f"the wire could not be measured ({error})")
            return None
