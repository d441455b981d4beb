"""Copies that follow the risk: when they are placed anew, and how nothing is at stake meanwhile.

Where they are to be placed anew, all ranks stop as for a drain, when a version is whole. The plan
of the restart brings it to the new places too; the old ones keep theirs. Only at a later start,
once a version is whole in the new places, do copies that are too many go. So whatever fails
meanwhile, memory has as much as before. A recovery from a failure, at which all workers start anew
anyway, takes such a change along, if it loads the same version with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.placement import Placement, Risk
from gemini_lab.placement.following import Change, Follower
from gemini_lab.recovery.drains import seat_to_leave
from gemini_lab.recovery.messages import EventSaid, JobOrder, WorkerEnded
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.recovery.protocol import AgentJoined, Emit, FromAgent, Happening, Instruction
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.stop import Living, Stop
from gemini_lab.seats import Seats, dangers, listed, node_name, shards_that_fit
from gemini_lab.settings import Settings

MEMORY_SHARE: Final = 0.5
"""Of the memory that is free when a node joins, what copies may take; training has the rest."""
LOOK_S: Final = 30.0
"""So often rates are looked at where nothing has happened: they fall with time."""

Make = Callable[[RootState], RecoveryPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlacement:
    """The placement and the plan of a restart."""

    state: RootState  # the run's, with the placement that the plan is for
    plan: RecoveryPlan  # what is loaded from where
    told: tuple[Emit, ...] = ()  # what is to be said of it


def follows(state: RootState) -> bool:
    """Return whether copies follow the risk; a root agent or placement of the user's does not."""
    is_known = state.setup.settings is not None and state.setup.settings.adapt_replicas
    return is_known and not state.job.root and state.job.seats.placement is None


def follower(settings: Settings) -> Follower:
    """Return the follower that changes placements as these settings ask for."""
    return Follower(
        target=settings.survival_target,
        horizon_days=settings.survival_days,
        fewest_replicas=settings.replicas,
    )


def known_risk(state: RootState, order: JobOrder) -> Risk:
    """Return a job's first risk: seen here, and for the first job learned from logs."""
    return (
        state.copies.risk.after(order.seats.risk)
        if state.setup.order is None
        else state.copies.risk
    )


def memory_of(living: Living) -> dict[str, int]:
    """Return the bytes for copies on each node; nodes of one machine share its memory."""
    nodes = Counter(one.machine for one in living.values() if one.machine)
    return {
        name: int(MEMORY_SHARE * one.memory_bytes / nodes.get(one.machine, 1))
        for name, one in living.items()
        if one.memory_bytes
    }


def seats_with(state: RootState, living: Living, at_s: float) -> Seats:
    """Return the seats with the machines' risk and memory."""
    known = {**state.seats.risk.memory_bytes, **memory_of(living)}
    return replace(state.seats, risk=replace(state.copies.risk.at(at_s), memory_bytes=known))


def next_change(state: RootState, seats: Seats) -> Change | None:
    """Return the change that the placement needs now; `None` for none."""
    settings = state.read_settings()
    return follower(settings).change(
        seats.holders,
        dangers=dangers(seats, settings),
        fits=shards_that_fit(seats, settings, state.setup.shard_bytes),
        causes=_seen(seats, settings),
    )


class ReplicaPlacing:
    """Copies that follow the risk, as a root agent follows them.

    Args:
        stop: Of the ranks.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._looked: tuple[object, ...] = ()  # at what
        self._looked_s = 0.0
        self._short = ""  # what was last said of a target that is not reached

    def hear(
        self, happening: Happening, done: Iterable[Instruction], state: RootState
    ) -> RootState:
        """Return the state with the risk that a happening and its answer show."""
        risk = state.copies.risk
        if isinstance(happening, AgentJoined):
            risk = risk.joined(happening.node, happening.at_s)
        said = [one.event for one in done if isinstance(one, Emit)]
        at_s = getattr(happening, "at_s", 0.0)
        for event in said:
            match event:
                case events.NodeLost(name=name) if name in {
                    *state.drain.leaving,
                    *state.drain.moved,
                }:
                    risk = risk.left(name, at_s)
                case events.NodeLost(name=name):
                    rack_of = {} if state.setup.placed is None else state.setup.placed.rack_of
                    risk = risk.lost(name, at_s, rack_of=rack_of)
                case events.WorkerHung(rank=rank):
                    risk = risk.failed(state.seats.node_of(rank), at_s)
                case events.RecoveryStarted(cause="worker_exited"):
                    risk = _with_killed(risk, happening)
                case _:
                    pass
        if risk is not state.copies.risk:
            state = state.with_parts(replace(state.copies, risk=risk))
        return _with_size(state, happening)

    def place(
        self, at_s: float, state: RootState, plan: RecoveryPlan, living: Living, make: Make
    ) -> RestartPlacement:
        """Return the placement for the next start, and the plan for it.

        Args:
            at_s: Now.
            state: The run's, which `plan` was made for.
            plan: What is loaded as copies are placed now.
            living: Who is there.
            make: Makes the plan for another state.
        """
        seats = replace(seats_with(state, living, at_s), members=plan.members)
        if seats.placement is None:  # the workers choose, once they know the sizes
            return RestartPlacement(
                state=state.with_parts(replace(state.setup, placed=seats)), plan=plan
            )
        if not follows(state) or plan.cuts:
            return RestartPlacement(state=state, plan=plan)
        for placement, later, told in self._offers(state, seats, plan):
            other = state.with_parts(
                replace(state.setup, placed=replace(seats, placement=placement)),
                replace(state.copies, later=later, placed_at_s=at_s),
            )
            made = make(other)
            if _what(made) == _what(plan) and _keeps_copies(seats, placement, plan, made):
                return RestartPlacement(state=other, plan=made, told=(told,))
        return RestartPlacement(
            state=state.with_parts(replace(state.setup, placed=seats)), plan=plan
        )

    def _offers(
        self, state: RootState, seats: Seats, plan: RecoveryPlan
    ) -> Iterator[tuple[Placement, Placement | None, Emit]]:
        """Yield better placements, the best first, each with the one that follows it."""
        if later := _later(state):
            reason = "the copies in their new places are whole, and the others are not needed"
            yield later, None, _told(seats, later, state, reason)
        change = next_change(state, seats)
        if change is None:
            return
        if plan.tier != "memory" or change.between == change.placement:
            yield change.placement, None, _told(seats, change.placement, state, change.reason)
        else:
            yield (
                change.between,
                change.placement,
                _told(seats, change.between, state, change.reason),
            )

    def begin_if_due(self, at_s: float, state: RootState, living: Living) -> Iterator[Instruction]:
        """Order all ranks to stop if copies have to be placed again and can be now."""
        is_idle = state.phase == "running" and not self._stop.is_under_way
        if not is_idle or not follows(state) or seat_to_leave(state):
            return
        if state.goal != state.seats.nodes or None in state.members:
            return
        pause_s = state.read_settings().adapt_pause_s
        if state.copies.placed_at_s and at_s < state.copies.placed_at_s + pause_s:
            return
        looked = (state.copies.risk.failures, state.members, state.copies.later, state.epoch)
        if looked == self._looked and at_s < self._looked_s + LOOK_S:
            return
        self._looked, self._looked_s = looked, at_s
        seats = seats_with(state, living, at_s)
        if _later(state) or next_change(state, seats):
            state = state.with_parts(replace(state.copies, is_replacing=True, placed_at_s=at_s))
            yield from self._stop.begin(at_s, state, living)
        else:
            yield from self._say_short(state, seats)

    def _say_short(self, state: RootState, seats: Seats) -> Iterator[Instruction]:
        settings = state.read_settings()
        known = dangers(seats, settings)
        wanted = follower(settings)
        is_met = wanted.is_met(seats.holders, known)
        chance = known.loss_chance(seats.holders, horizon_days=settings.survival_days)
        fits = shards_that_fit(seats, settings, state.setup.shard_bytes)
        room = sum(fits) - sum(seats.holders.loads)
        said = "" if is_met else f"{seats.members}{room > 0}"
        if said and said != self._short:
            reason = (
                f"memory may not suffice within {settings.survival_days:g} days with chance "
                f"{chance:.2g}, at most {1 - settings.survival_target:.2g} are wanted, and "
                + (
                    "no copy more would help"
                    if room > 0
                    else "there is no memory for more copies; give nodes more (replica_memory), or "
                    "ask for less (survival_target)"
                )
            )
            yield Emit(event=events.ReplicasShort(loss_chance=chance, reason=reason))
        self._short = said


def _later(state: RootState) -> Placement | None:
    """Return the placement that follows this one, if there are still as many nodes."""
    later = state.copies.later
    return later if later is not None and later.nodes == state.seats.nodes else None


def _what(plan: RecoveryPlan) -> tuple[object, ...]:
    return plan.tier, plan.version, plan.lineage, plan.cuts


def _keeps_copies(
    seats: Seats, placement: Placement, plan: RecoveryPlan, made: RecoveryPlan
) -> bool:
    """Return whether no copy is freed before the copies that stay are there.

    Args:
        seats: With the placement of now.
        placement: The one that is to be.
        plan: For the placement of now.
        made: For the one that is to be.
    """
    lacking = {(seats.position_of(one.shard), one.receiver) for one in plan.transfers}
    coming = {seats.position_of(one.shard) for one in made.transfers}
    return made.members == plan.members and not any(
        holder not in placement.holders[shard]
        and (shard, seats.members[holder]) not in lacking
        and shard in coming
        for shard, kept in enumerate(seats.holders.holders)
        for holder in kept
    )


def _with_killed(risk: Risk, happening: Happening) -> Risk:
    """Return the risk after a worker ended; the script's own errors change nothing."""
    if not (isinstance(happening, FromAgent) and isinstance(happening.message, WorkerEnded)):
        return risk
    is_killed = happening.message.code < 0  # by a signal
    return risk.failed(happening.node, happening.at_s) if is_killed else risk


def _with_size(state: RootState, happening: Happening) -> RootState:
    """Return the state with the size of the largest shard, as workers reported it."""
    message = happening.message if isinstance(happening, FromAgent) else None
    said = message.entry.event if isinstance(message, EventSaid) else None
    if not isinstance(said, events.Protected):
        return state
    known = 0 if said.rank == 0 else state.setup.shard_bytes
    return state.with_parts(replace(state.setup, shard_bytes=max(known, said.shard_bytes)))


def _told(seats: Seats, placement: Placement, state: RootState, reason: str) -> Emit:
    """Return the event of a change, with the names of nodes."""
    settings = state.read_settings()
    known, horizon_days = dangers(seats, settings), settings.survival_days
    before = seats.holders

    def differing(these: Placement, others: Placement) -> tuple[tuple[int, str], ...]:
        return tuple(
            (shard, str(seats.members[holder]))
            for shard, kept in enumerate(these.holders)
            for holder in kept
            if holder not in others.holders[shard]
        )

    return Emit(
        event=events.ReplicasPlaced(
            placement=placement,
            added=differing(placement, before),
            dropped=differing(before, placement),
            loss_chance_then=known.loss_chance(before, horizon_days=horizon_days),
            loss_chance=known.loss_chance(placement, horizon_days=horizon_days),
            reason=reason,
        )
    )


def _seen(seats: Seats, settings: Settings) -> str:
    """Return, for users, which nodes and racks have failed, and the rate."""
    risk, expected = seats.risk, settings.expected_failures
    members: Mapping[str, None] = dict.fromkeys(node for node in seats.members if node)
    failed = [(node, risk.nodes[node]) for node in members if node in risk.nodes]
    told = [
        f"{node} failed {_times(one.failures)}: {one.per_day(0.0, expected=expected.of(node)):.2g} "
        "a day"
        for node, one in failed
        if one.failures
    ]
    told += [
        f"rack {rack} failed {_times(one.failures)}"
        for rack, one in risk.racks.items()
        if one.failures
    ]
    return listed(told, most=4)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- how often machines fail, by the logs of earlier runs ------------------------------------------

RISK_EVENTS: Final = (
    events.RunStarted,
    events.RunFinished,
    events.RunFailed,
    events.NodeJoined,
    events.NodeReady,
    events.NodeLost,
    events.NodeLeaving,
    events.NodeDrained,
    events.Protected,
    events.WorkerExited,
    events.WorkerHung,
    events.RecoveryStarted,
)
"""The events that tell of machines; of a long log few lines are others'."""


class RiskReader:
    """The risk of each machine, as one run's log shows it.

    A machine fails when it is lost, falls silent, or when one of its workers is killed by a signal
    or hangs. Errors of the script's own, and machines that were to go, are no failures.

    Attributes:
        risk: What was seen.
    """

    def __init__(self) -> None:
        self.risk = Risk()
        self._rack_of: Mapping[str, str] = {}
        self._node_of: dict[int, str] = {}
        self._going: set[str] = set()
        self._killed = ""  # whose worker was, before a recovery began that is due to it
        self._is_awaited = False  # whether such a recovery began before its worker's end was said
        self._last_s = 0.0

    def take(self, entry: Entry) -> None:
        """Update the risk by one entry."""
        at_s, event = entry.at_s, entry.event
        self._last_s = at_s
        match event:
            case events.RunStarted(racks=racks):
                self._rack_of = {node_name(n): rack for n, rack in enumerate(racks or ())}
            case events.NodeJoined(name=name) | events.NodeReady(name=name):
                self.risk = self.risk.joined(name, at_s)
            case events.Protected(rank=rank):
                self._node_of[rank] = entry.node
                self.risk = self.risk.joined(entry.node, at_s)
            case events.NodeLeaving(name=name) | events.NodeDrained(name=name):
                self._going.add(name)
            case events.NodeLost(name=name) if name in self._going:
                self.risk = self.risk.left(name, at_s)
            case events.NodeLost(name=name):
                self.risk = self.risk.lost(name, at_s, rack_of=self._rack_of)
            case events.WorkerHung(rank=rank) if rank in self._node_of:
                self.risk = self.risk.failed(self._node_of[rank], at_s)
            case events.WorkerExited() | events.RecoveryStarted():
                self._take_end(at_s, entry.node, event)
            case events.RunFinished() | events.RunFailed():
                self.close()
            case _:
                pass

    def close(self) -> None:
        """Close the risk at the last entry's moment."""
        self.risk = self.risk.at(self._last_s)

    def _take_end(
        self, at_s: float, node: str, event: events.WorkerExited | events.RecoveryStarted
    ) -> None:
        """A killed worker counts where a recovery answers it; which is said first is chance."""
        if isinstance(event, events.WorkerExited):
            if event.signal is not None and self._is_awaited:
                self.risk, self._is_awaited = self.risk.failed(node, at_s), False
            elif event.signal is not None:
                self._killed = node
            return
        self._is_awaited = event.cause == "worker_exited" and not self._killed
        if event.cause == "worker_exited" and self._killed:
            self.risk = self.risk.failed(self._killed, at_s)
        self._killed = ""


def learn_risk(entries: Iterable[Entry]) -> Risk:
    """Return the risk that the entries of one run's log show."""
    reader = RiskReader()
    for entry in entries:
        reader.take(entry)
    reader.close()
    return replace(reader.risk, memory_bytes={})
