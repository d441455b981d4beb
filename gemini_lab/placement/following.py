"""A placement that follows the risk: its changes, and when they are worth it.

Only copies that differ are moved. A shard that is in danger gets a copy more where there is room;
one all of whose copies are in one rack, a copy elsewhere; a node that has less memory than its
predecessor keeps fewer; and what is far more than the target asks for goes. Between getting worse
and being mended, and between being too good and being cut back, there is a gap, so that a rate
that wavers changes nothing.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.placement.dangers import Dangers, allowed_per_day
from gemini_lab.placement.planner import Placement

AIM: Final = 0.5
"""After a change, losses are expected this much less often than allowed."""
SPARE: Final = 0.1
"""A copy goes where losses without it are expected this much less often than allowed."""
WORTH: Final = 0.8
"""A change that does not bring losses down to this share is not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Another placement, and what makes it better."""

    placement: Placement  # who is to keep what
    # Who keeps what until a version is whole in the new places: old and new holders.
    between: Placement
    # The shard's position and the one that is to keep it, of each copy that comes.
    added: tuple[tuple[int, int], ...]
    dropped: tuple[tuple[int, int], ...]  # the same of each copy that goes
    loss_chance_then: float  # the chance, as it is, that memory does not suffice within the horizon
    loss_chance: float  # with the change
    met: bool  # whether that reaches the target
    reason: str  # why, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """Changes placements as the risk does."""

    target: float  # the chance that memory suffices for `horizon_days`, below 1
    horizon_days: float  # how long
    fewest_replicas: int = 2  # no shard has fewer copies, unless memory is short
    most_replicas: int = 6  # no shard gets more

    def __post_init__(self) -> None:
        if not 0 <= self.target < 1 or self.horizon_days < 0 or self.fewest_replicas < 1:
            raise ConfigError(
                "a target lies between 0 and 1, a horizon starts at 0 and replicas at 1 (got "
                f"target={self.target}, horizon_days={self.horizon_days}, "
                f"fewest_replicas={self.fewest_replicas})"
            )

    def change(
        self, current: Placement, *, dangers: Dangers, fits: Sequence[int], causes: str = ""
    ) -> Change | None:
        """Return the change to make to a placement; `None` if it may stay.

        Args:
            current: Who keeps what now.
            dangers: What befalls the nodes.
            fits: How many shards each node has room for, its own among them.
            causes: What was seen, for the reason.
        """
        draft = _Draft(current, dangers, fits, most=self.most_replicas)
        allowed = allowed_per_day(self.target, self.horizon_days)
        before = dangers.total_per_day(current)
        why = [text for text in (draft.relieve(), draft.spread()) if text]
        if before > allowed or why:
            draft.grow(AIM * allowed)
        elif before <= SPARE * allowed and math.isfinite(allowed):
            draft.shrink(SPARE * allowed, fewest=self.fewest_replicas)
        after = dangers.total_per_day(draft.placement())
        if before > allowed and not why and after > WORTH * before:
            return None
        if draft.holders == list(current.holders):
            return None
        if not why:
            why = ["memory may not suffice" if before > allowed else "fewer copies are enough"]
        return self._made(current, draft, why=why, causes=causes, rates=(before, after))

    def is_met(self, placement: Placement, dangers: Dangers) -> bool:
        """Return whether a placement reaches the target."""
        return dangers.total_per_day(placement) <= allowed_per_day(self.target, self.horizon_days)

    def _made(
        self,
        current: Placement,
        draft: "_Draft",
        *,
        why: Sequence[str],
        causes: str,
        rates: tuple[float, float],
    ) -> Change:
        then, now = (-math.expm1(-rate * self.horizon_days) for rate in rates)
        met = rates[1] <= allowed_per_day(self.target, self.horizon_days)
        seen = f" ({causes})" if causes else ""
        return Change(
            placement=draft.placement(),
            between=draft.between(),
            added=_differing(draft.holders, current.holders),
            dropped=_differing(current.holders, draft.holders),
            loss_chance_then=then,
            loss_chance=now,
            met=met,
            reason=f"{'; '.join(why)}{seen}: the chance that memory does not suffice within "
            f"{self.horizon_days:g} days goes from {then:.2g} to {now:.2g}; at most "
            f"{1 - self.target:.2g} are wanted" + ("" if met else ", which memory does not allow"),
        )


def _differing(
    these: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> tuple[tuple[int, int], ...]:
    """Return each shard and holder that is among these and not among the others."""
    return tuple(
        (shard, holder)
        for shard, kept in enumerate(these)
        for holder in kept
        if holder not in others[shard]
    )


class _Draft:
    """A placement that is being changed."""

    def __init__(
        self, current: Placement, dangers: Dangers, fits: Sequence[int], *, most: int
    ) -> None:
        self._current, self._dangers = current, dangers
        self._most = min(most, current.nodes)
        self.holders = list(current.holders)  # who keeps each shard, owner first
        self._rates: dict[frozenset[int], float] = {}
        # A copy that goes leaves no room before a version is whole without it.
        self._room = [fit - load for fit, load in zip(fits, current.loads, strict=True)]

    def placement(self) -> Placement:
        """Return the current placement."""
        return _placed(self.holders)

    def between(self) -> Placement:
        """Begin with all earlier holders that have room."""
        return _placed(
            [
                (*kept, *(one for one in before if one not in kept and self._room[one] >= 0))
                for kept, before in zip(self.holders, self._current.holders, strict=True)
            ]
        )

    def relieve(self) -> str:
        """Move copies away from nodes that have no room for them."""
        full = [node for node, room in enumerate(self._room) if room < 0]
        for node in full:
            guests = [s for s, kept in enumerate(self.holders) if node in kept[1:]]
            guests.sort(key=lambda shard: -len(self.holders[shard]))
            for shard in guests[: -self._room[node]]:
                self.holders[shard] = tuple(one for one in self.holders[shard] if one != node)
                self._add([shard], without={node})
        return f"{len(full)} nodes have less memory than their copies take" if full else ""

    def spread(self) -> str:
        """Copy each shard that only one rack holds to another rack, if there is room."""
        racks, moved = self._dangers.racks, list[int]()
        for shard, kept in enumerate(self.holders):
            if racks is None or len(kept) == 1 or len({racks[one] for one in kept}) > 1:
                continue
            host = self._host(kept)
            if host is None or racks[host] == racks[shard]:
                continue
            self._room[host] -= 1
            worst = max(kept[1:], key=lambda one: (self._dangers.failures_per_day[one], one))
            self.holders[shard] = tuple(host if one == worst else one for one in kept)
            moved.append(shard)
        return f"{len(moved)} shards had all copies in one rack" if moved else ""

    def grow(self, allowed: float) -> None:
        """Add a copy of the shards most in danger, until losses are so rare."""
        stuck: set[frozenset[int]] = set()
        while True:
            sharing = self._sharing()
            rates = {kept: self._rate(kept) for kept in sharing}
            worst = max(
                rates.keys() - stuck, key=lambda kept: (rates[kept], sorted(kept)), default=None
            )
            if worst is None or math.fsum(rates.values()) <= allowed:
                return
            if len(worst) >= self._most or not rates[worst] or not self._add(sharing[worst]):
                stuck.add(worst)

    def shrink(self, allowed: float, *, fewest: int) -> None:
        """Remove copies while losses stay so rare, the least needed first."""
        kept_on: set[frozenset[int]] = set()
        while True:
            sharing = self._sharing()
            least: tuple[float, list[int], frozenset[int]] | None = None
            for kept, shards in sharing.items():
                if len(kept) <= fewest or kept in kept_on:
                    continue
                rate = max(self._dangers.loss_rate_per_day(self._fewer(one)) for one in shards)
                if least is None or (rate, shards) < least[:2]:
                    least = rate, shards, kept
            if least is None:
                return
            before = {shard: self.holders[shard] for shard in least[1]}
            for shard in least[1]:
                self.holders[shard] = self._fewer(shard)
            if self._dangers.total_per_day(self.placement()) > allowed or self._is_alone(least[1]):
                for shard, kept_by in before.items():
                    self.holders[shard] = kept_by
                kept_on.add(least[2])

    def _rate(self, kept: frozenset[int]) -> float:
        if kept not in self._rates:
            self._rates[kept] = self._dangers.loss_rate_per_day(kept)
        return self._rates[kept]

    def _fewer(self, shard: int) -> tuple[int, ...]:
        """Return a shard's holders without the one that fails most often; its owner stays."""
        kept = self.holders[shard]
        worst = max(kept[1:], key=lambda one: (self._dangers.failures_per_day[one], one))
        return tuple(one for one in kept if one != worst)

    def _is_alone(self, shards: Collection[int]) -> bool:
        racks = self._dangers.racks
        if racks is None:
            return False
        every = len(set(racks)) > 1
        return every and any(len({racks[one] for one in self.holders[s]}) == 1 for s in shards)

    def _sharing(self) -> dict[frozenset[int], list[int]]:
        """Return the shards that the same nodes keep, by their nodes."""
        sharing: dict[frozenset[int], list[int]] = defaultdict(list)
        for shard, kept in enumerate(self.holders):
            sharing[frozenset(kept)].append(shard)
        return sharing

    def _add(self, shards: Sequence[int], *, without: Collection[int] = ()) -> bool:
        """Add a copy of each of these shards, or of none if there is no room for all."""
        before, room = [self.holders[shard] for shard in shards], list(self._room)
        for shard in shards:
            host = self._host((*self.holders[shard], *without))
            if host is None:
                for one, kept in zip(shards, before, strict=True):
                    self.holders[one] = kept
                self._room = room
                return False
            self._room[host] -= 1
            self.holders[shard] = (*self.holders[shard], host)
        return True

    def _host(self, kept: Collection[int]) -> int | None:
        """Return the node with room for one more copy: another rack's, the safest, the emptiest."""
        racks, rates = self._dangers.racks, self._dangers.failures_per_day
        near = set() if racks is None else {racks[one] for one in kept}
        able = [n for n, room in enumerate(self._room) if room > 0 and n not in kept]
        return min(
            able,
            key=lambda n: (racks is not None and racks[n] in near, rates[n], -self._room[n], n),
            default=None,
        )


def _placed(holders: Sequence[tuple[int, ...]]) -> Placement:
    return Placement(
        nodes=len(holders),
        replicas=min(len(kept) for kept in holders),
        strategy="following",
        groups=(),
        holders=tuple(holders),
    )
