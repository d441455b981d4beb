"""When a worker counts as hung: what was last seen of each of them, and how long that may last.

A rank that waits for another one in a collective stands still, too, and is healthy. So as long as
anybody gets on, or may still take its time, nobody is hung who speaks. When all stand still for
longer than they may, those are hung that do not wait for the others; where all wait, those that are
furthest behind. A worker that says nothing at all is judged by itself.

Ranks meet in `protect`. While some are there, those that are not are named, and no more than that:
they may still load a model. Once all of these stand in a collective, where those in `protect` will
never join them, or have done nothing at all for long, or have ended, they have gone past it.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from gemini_lab.recovery.ends import Places
from gemini_lab.recovery.messages import Doing, Entered, WorkerPulse
from gemini_lab.seats import listed

STILL_S: Final = 3.0
"""Who is still for less gets on, as far as anybody is told."""
LATE_S: Final = 20.0
"""In `protect` for so long: those that are not there are named."""
PAST_S: Final = 60.0
"""In a collective for so long, while others are in `protect`: they will not come."""
STAND_S: Final = 10.0
"""All stand still for so long, and no pace is known yet: what each of them does is said."""
MOST_TOLD: Final = 3
"""Collectives that a message names; a deadlock has two."""
UNPROTECTED_S: Final = 120.0
"""No rank has called `protect` for so long since the first start: that is said."""
DOING: Final[dict[Doing, str]] = {
    "starting": "starting",
    "meeting": "in protect",
    "restoring": "restoring its shard",
    "step": "in a step",
    "between steps": "between two steps",
    "paused": "paused",
    "held": "stopped for a node to leave",
    "finishing": "finishing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a worker may stand still."""

    stopped_s: float  # while its process is stopped, and in what should go on by itself
    step_s: float | None  # in a step; `None` while no pace is known, as in the first one
    idle_s: float  # in the script's own code, without doing anything at all; and without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A worker that has to be started again."""

    rank: int
    quiet_s: float  # how long it has stood still, or said nothing
    limit_s: float  # how long that may be
    seen: str  # what was seen of it and of the others, in words
    is_past: bool = False  # whether its script has gone past `protect`, where others wait for it


class Pulses:
    """The last pulse of each rank; a rank without one makes progress."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[WorkerPulse, float]] = {}  # and when
        self._iterations: dict[int, int] = {}
        self._is_late_told = self._is_standing_told = False
        # How ranks stood at the last look, and at which: each is asked of three times.
        self._last: tuple[object, list[_Standing]] | None = None

    def restart(self) -> None:
        """Forget all pulses, because all workers start."""
        self._heard, self._iterations, self._last = {}, {}, None
        self._is_late_told = self._is_standing_told = False

    def hear(self, pulse: WorkerPulse, *, at_s: float) -> None:
        """Note what an agent sees of a worker."""
        self._heard[pulse.rank], self._last = (pulse, at_s), None

    @property
    def waiting(self) -> frozenset[int]:
        """Return the ranks that were last seen in a collective and still report."""
        heard = (pulse for pulse, _ in self._heard.values())
        return frozenset(one.rank for one in heard if one.waits_in and one.silent_s == 0)

    def read_tier(self, ranks: Iterable[int]) -> bool:
        """Return whether all of these were last seen reading the persistent tier."""
        seen = [self._heard[rank][0] for rank in ranks if rank in self._heard]
        return bool(seen) and all(
            one.doing == "restoring" and one.detail == "persistent" for one in seen
        )

    def places(self, at_s: float, limits: Limits, *, node_of: Callable[[int], str]) -> Places:
        """Return what is seen of the ranks that do not get on."""
        seen = [self._standing(rank, at_s, limits) for rank in sorted(self._heard)]
        return Places(
            node_of=node_of,
            words={one.pulse.rank: _activity(one.pulse) for one in seen},
            in_step=[one.pulse.rank for one in seen if one.pulse.doing == "step"],
            waiting=[one.pulse.rank for one in seen if _waits_long(one)],
        )

    def stand(self, at_s: float, limits: Limits, *, ranks: Iterable[int]) -> bool:
        """Return whether all these do nothing any more, or nothing that gets them on."""
        return all(_does_nothing(self._standing(rank, at_s, limits), limits) for rank in ranks)

    def note_iteration(self, rank: int, iteration: int) -> None:
        """Note that a rank has finished an iteration, and forget its pulse."""
        self._heard.pop(rank, None)
        self._iterations[rank], self._last = iteration, None

    def hung(
        self, at_s: float, limits: Limits, *, ranks: Iterable[int], finished: Collection[int]
    ) -> list[Hung]:
        """Return the hung ranks, in order.

        Args:
            at_s: Now.
            limits: How long a worker may stand still.
            ranks: All of them.
            finished: Those whose scripts have ended.
        """
        seen = self._seen(at_s, limits, ranks=ranks, finished=finished)
        if past := _past_protect(seen, finished, limits):
            return past
        culprits = [one for one in seen if one.is_overdue and one.pulse.silent_s > 0]
        if not culprits and seen and all(one.quiet_s >= STILL_S for one in seen):
            culprits = self._culprits(seen)
        named = {one.pulse.rank for one in culprits}
        waiting = [one for one in seen if one.pulse.rank not in named]
        return [
            Hung(
                rank=one.pulse.rank,
                quiet_s=one.quiet_s,
                limit_s=one.limit_s,
                seen=f"{_told(one)}{_told_of_others(waiting)}{_told_of_collectives(seen)}",
            )
            for one in culprits
        ]

    def late(
        self, at_s: float, limits: Limits, *, ranks: Iterable[int], finished: Collection[int]
    ) -> str:
        """Return, once a start, which ranks `protect` waits for; else an empty text.

        Args:
            at_s: Now.
            limits: As for `hung`.
            ranks: All of them.
            finished: Those whose scripts have ended.
        """
        seen = self._seen(at_s, limits, ranks=ranks, finished=finished)
        here, away = _met(seen)
        if self._is_late_told or not here or min(one.quiet_s for one in here) < LATE_S:
            return ""
        absent = [_absent(one) for one in away] + [f"rank {r} (it has ended)" for r in finished]
        if not absent:
            return ""
        self._is_late_told = True
        return f"{_told_of_waiting(here)} for {listed(absent)}; every rank must call protect"

    @property
    def is_any_in_protect(self) -> bool:
        """Whether any rank was seen in `protect`, or beyond it."""
        return any(
            pulse.doing not in {"starting", "finishing"} for pulse, _ in self._heard.values()
        )

    def standing(
        self, at_s: float, limits: Limits, *, ranks: Iterable[int], finished: Collection[int]
    ) -> str:
        """Return, once a start, where all ranks stand; else an empty text.

        Before a first step no pace tells a hang from a slow start, so that nobody is started anew
        for long. Who reads the places in the script can tell.

        Args:
            at_s: Now.
            limits: As for `hung`.
            ranks: All of them.
            finished: Those whose scripts have ended.
        """
        seen = self._seen(at_s, limits, ranks=ranks, finished=finished)
        if self._is_standing_told or limits.step_s is not None or not seen:
            return ""
        if any(one.idle_s < STAND_S or one.may_stand for one in seen):
            return ""
        self._is_standing_told = True
        places: dict[str, list[int]] = {}
        for one in seen:
            places.setdefault(_activity(one.pulse), []).append(one.pulse.rank)
        named = [f"{_ranks(there)} {activity}" for activity, there in places.items()]
        if finished:
            named.append(f"{_ranks(sorted(finished))} at the script's end")
        idle_s = min(one.idle_s for one in seen)
        return (
            f"nothing has moved on any rank for {idle_s:.0f} s: {listed(named, '; ')}"
            f"{_told_of_collectives(seen)}; if that stays so, all start "
            f"again after {limits.idle_s:.0f} s (idle_s)"
        )

    def _seen(
        self, at_s: float, limits: Limits, *, ranks: Iterable[int], finished: Collection[int]
    ) -> list["_Standing"]:
        """Return how the ranks stand; nobody, at no cost, while all of them make progress."""
        if not self._heard:
            return []
        look = at_s, limits, ranks, len(finished)
        if self._last is None or self._last[0] != look:
            seen = [self._standing(rank, at_s, limits) for rank in ranks if rank not in finished]
            self._last = look, seen
        return self._last[1]

    def _standing(self, rank: int, at_s: float, limits: Limits) -> "_Standing":
        pulse, heard_s = self._heard.get(rank, (WorkerPulse(rank=rank, epoch=0), at_s))
        quiet_s, limit_s = _quiet_and_limit(pulse, limits)
        if quiet_s >= STILL_S:  # and ever since, or its agent would have told
            quiet_s += at_s - heard_s
        idle_s = pulse.idle_s + at_s - heard_s if pulse.idle_s >= STILL_S else 0.0
        return _Standing(pulse=pulse, quiet_s=quiet_s, limit_s=limit_s, idle_s=idle_s)

    def _culprits(self, seen: list["_Standing"]) -> list["_Standing"]:
        """Return the ranks that the others wait for, if these have stood still for too long."""
        active = [one for one in seen if not one.pulse.waits_in]
        if not all(one.is_overdue for one in active or seen):
            return []
        if missing := {rank for one in _open_collectives(seen) for rank in one.culprits}:
            return [one for one in seen if one.pulse.rank in missing]
        if 0 < len(active) < len(seen):
            return active
        return self._last_of(seen)  # all wait, or a device's waits look like work

    def _last_of(self, seen: list["_Standing"]) -> list["_Standing"]:
        """Return the ranks furthest behind, by iterations and by collectives in the newest."""

        def done(one: _Standing) -> tuple[int, int]:
            return self._iterations.get(one.pulse.rank, 0), one.pulse.calls

        least = min(map(done, seen))
        return [one for one in seen if done(one) == least]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """One rank's activity, since when, and how long it may last."""

    pulse: WorkerPulse
    quiet_s: float
    limit_s: float
    idle_s: float

    @property
    def may_stand(self) -> bool:
        """Whether it waits for known work, or is reported elsewhere."""
        is_known = self.pulse.doing in {"paused", "held", "meeting", "restoring", "finishing"}
        return is_known or self.pulse.runs_other or self.pulse.compiles or self.pulse.silent_s > 0

    @property
    def is_overdue(self) -> bool:
        return self.quiet_s > self.limit_s


def _waits_long(one: _Standing) -> bool:
    """Return whether a rank stands in a collective, or has done nothing since its start."""
    if one.pulse.waits_in:
        return one.quiet_s >= STAND_S
    return one.pulse.doing == "starting" and one.idle_s >= PAST_S


def _does_nothing(one: _Standing, limits: Limits) -> bool:
    pulse = one.pulse
    is_known = pulse.doing in {"paused", "held", "meeting", "restoring"}
    if is_known or pulse.runs_other or pulse.compiles or pulse.silent_s > 0:
        return False
    waits = bool(pulse.waits_in) and one.quiet_s >= STILL_S  # which may spin, on a device
    return waits or one.idle_s >= STILL_S or one.quiet_s >= limits.stopped_s


def _quiet_and_limit(pulse: WorkerPulse, limits: Limits) -> tuple[float, float]:
    """Return how long a worker had been quiet when it was seen, and its limit."""
    if pulse.silent_s > 0 and pulse.is_stopped:
        return pulse.silent_s, limits.stopped_s
    if pulse.doing in {"paused", "meeting", "held"}:
        return pulse.still_s, inf
    if pulse.silent_s > 0:  # one call that lets no other thread run says nothing, either
        return pulse.silent_s, max(limits.stopped_s, limits.idle_s)
    match pulse.doing:
        case "step" if limits.step_s is not None and not (pulse.runs_other or pulse.compiles):
            return pulse.still_s, limits.step_s
        case "restoring" if pulse.detail != "persistent":
            return pulse.idle_s, limits.stopped_s
        case "finishing":
            return pulse.idle_s, limits.step_s or limits.idle_s
    # What a device's collective spins away is no work.
    return pulse.still_s if pulse.waits_in else pulse.idle_s, limits.idle_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenCollective:
    """A collective in which some ranks wait, because others have not entered it."""

    newest: Entered  # the collective, as one of those that wait has entered it
    waiting: dict[int, Entered]  # the ranks that wait in it, and what each calls
    # The ranks of its group that have not entered it, and their last one there.
    absent: dict[int, Entered]
    # Those of `absent` that wait in no other collective; all, if each of them does.
    culprits: frozenset[int]

    def __str__(self) -> str:
        """Return it in words."""
        calls: dict[str, list[int]] = {}
        for rank, one in self.waiting.items():
            calls.setdefault(one.what, []).append(rank)
        named = " and ".join(f"{_ranks(ranks)} in {what}" for what, ranks in calls.items())
        which = f"collective {self.newest.number} of process group {self.newest.group}"
        if len(calls) > 1:
            return f"{which} is not the same on all ranks: {named}"
        lasts: dict[str, list[int]] = {}
        for rank, one in self.absent.items():
            last = f"{one.number} ({one.what})" if one.number else "none"
            lasts.setdefault(last, []).append(rank)
        missing = [f"{_ranks(ranks)}, last in {last}" for last, ranks in lasts.items()]
        return f"{which} ({self.newest.what}) was never entered by {listed(missing, '; by ')}"


def _open_collectives(seen: list[_Standing]) -> list[_OpenCollective]:
    """Return the collectives that some ranks have entered and others have not, by group."""
    groups: dict[str, dict[int, Entered]] = {}
    for standing in seen:
        for one in standing.pulse.entered if standing.pulse.silent_s == 0 else ():
            groups.setdefault(one.group, {})[standing.pulse.rank] = one
    waits = {rank for ranks in groups.values() for rank, one in ranks.items() if one.waits}
    found = []
    for ranks in groups.values():
        newest = max(
            (one for one in ranks.values() if one.waits), key=lambda one: one.number, default=None
        )
        if newest is None:
            continue
        waiting = {r: one for r, one in ranks.items() if one.waits and one.number == newest.number}
        absent = {rank: one for rank, one in ranks.items() if one.number < newest.number}
        if absent or len({one.what for one in waiting.values()}) > 1:
            idle = frozenset(absent) - waits
            found.append(
                _OpenCollective(
                    newest=newest,
                    waiting=waiting,
                    absent=absent,
                    culprits=idle or frozenset(absent),
                )
            )
    return found


def _told_of_collectives(seen: list[_Standing]) -> str:
    """Return, for users, which collectives are open and which ranks have not entered them."""
    return "".join(f"; {one}" for one in _open_collectives(seen)[:MOST_TOLD])


def _met(seen: list[_Standing]) -> tuple[list[_Standing], list[_Standing]]:
    """Return the ranks in `protect`, and all others."""
    here = [one for one in seen if one.pulse.doing == "meeting"]
    return here, [one for one in seen if one.pulse.doing != "meeting"]


def _past_protect(seen: list[_Standing], finished: Collection[int], limits: Limits) -> list[Hung]:
    """Return the ranks that certainly never come to `protect`, in which others wait."""
    here, away = _met(seen)
    # Who has ended comes for certain no more.
    if not here or min(one.quiet_s for one in here) < (STILL_S if finished else PAST_S):
        return []
    if finished:
        ended = listed([f"rank {rank}" for rank in sorted(finished)])
        told = f"{_told_of_waiting(here)}; the script of {ended} has ended without calling it"
        return [_gone_past(one, told) for one in here]
    # A backward pass may wait for other ranks without being seen in a collective.
    if all(one.idle_s >= (PAST_S if one.pulse.waits_in else limits.idle_s) for one in away):
        places = listed([_absent(one) for one in away])
        told = f"{_told_of_waiting(here)}, which was not called by {places}"
        return [_gone_past(one, told) for one in away]
    return []


def _gone_past(one: _Standing, told: str) -> Hung:
    return Hung(rank=one.pulse.rank, quiet_s=one.quiet_s, limit_s=PAST_S, seen=told, is_past=True)


def _told_of_waiting(here: list[_Standing]) -> str:
    ranks = listed([str(one.pulse.rank) for one in here])
    they_wait = f"rank {ranks} has waited" if len(here) == 1 else f"ranks {ranks} have waited"
    return f"{they_wait} in protect for {min(one.quiet_s for one in here):.0f} s"


def _absent(one: _Standing) -> str:
    """Return, for users, where a rank is that is not in `protect`."""
    pulse = one.pulse
    if one.idle_s < STILL_S:
        return f"rank {pulse.rank} (at work)"
    return f"rank {pulse.rank} ({_activity(pulse)}, for {one.idle_s:.0f} s)"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([*map(str, ranks)])}"


def _told(one: _Standing) -> str:
    pulse = one.pulse
    if pulse.silent_s == 0:
        return f"rank {pulse.rank} has been {_activity(pulse)} for {one.quiet_s:.0f} s"
    stopped = ", its process is stopped" if pulse.is_stopped else ""
    said = f"rank {pulse.rank} has said nothing for {one.quiet_s:.0f} s{stopped}"
    return f"{said}; it was {_activity(pulse)}"


def _activity(pulse: WorkerPulse) -> str:
    words = [DOING[pulse.doing]]
    if pulse.waits_in:
        words.append(f"in {pulse.waits_in}")
    if pulse.lock:
        words.append(f"{'compiling under' if pulse.compiles else 'waiting for'} {pulse.lock}")
    if pulse.where:
        words.append(f"at {pulse.where}")
    return ", ".join(words)


def _told_of_others(others: list[_Standing]) -> str:
    """In which collectives the others wait, such as `; ranks 0, 2 wait in all_reduce for 31 s`."""
    told = ""
    for place in dict.fromkeys(one.pulse.waits_in for one in others if one.pulse.waits_in):
        there = [one for one in others if one.pulse.waits_in == place]
        ranks = ", ".join(str(one.pulse.rank) for one in there)
        they_wait = f"rank {ranks} waits" if len(there) == 1 else f"ranks {ranks} wait"
        told += f"; {they_wait} in {place} for {min(one.quiet_s for one in there):.0f} s"
    return told
