"""Seats of a simulated cluster and the copies that are left: the input of a recovery.

A recovery concerns only the groups of positions that lost something; everywhere else each shard
lies where it belongs. So the real planner is asked about those groups alone, and 10,000 machines
cost no more than eight.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gemini_lab.placement import Placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, Stored, plan_recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPart:
    """Some positions with all that they keep for one another, numbered from 0 as a cluster."""

    positions: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]

    @property
    def nodes(self) -> int:
        return len(self.positions)


class SimulatedCluster:
    """Machines on positions, standbys, and the newest version of every copy.

    Attributes:
        placement: Who keeps whose replica.
    """

    def __init__(self, placement: Placement, *, standbys: int) -> None:
        nodes = placement.nodes
        # The machine on each position; `None` where there is none.
        self.members: list[str | None] = [f"node-{i}" for i in range(nodes)]
        # Machines without a position, in the order in which they are used.
        self.standbys = [f"node-{nodes + i}" for i in range(standbys)]
        self.dead: set[str] = set()  # machines that were lost and still stand in `members`
        self.blank: set[int] = set()  # positions whose memory holds no copies
        self.vacant: set[int] = set()  # positions without a machine
        self.memory_version: int | None = None  # the newest version in the memory of all others
        self.persisted: int | None = None  # the newest one in the persistent tier
        self._named = nodes + standbys
        self.place(placement)
        self._lost: set[int] = set()  # positions whose machine stands in `dead`

    def place(self, placement: Placement) -> None:
        """Set the placement of copies from now on; new copies exist at once."""
        self.placement = placement
        positions = tuple(range(placement.nodes))
        self._whole = ClusterPart(positions=positions, holders=placement.holders)
        self._groups = _closed_groups(placement)
        self._group_of = {p: number for number, group in enumerate(self._groups) for p in group}

    @property
    def everything(self) -> ClusterPart:
        return self._whole

    def is_up(self, position: int) -> bool:
        return position not in self.vacant and position not in self._lost

    def lose(self, position: int, *, memory: bool) -> str:
        """Take a machine out, with its memory or with the memory still readable; gives its name."""
        name = self.members[position]
        assert name is not None
        self.dead.add(name)
        self._lost.add(position)
        if memory:
            self.blank.add(position)
        return name

    def arrive(self) -> str:
        """Add a new machine as a standby, and return its name."""
        name = f"node-{self._named}"
        self._named += 1
        self.standbys.append(name)
        return name

    def concerned(self) -> ClusterPart:
        """Return the groups that lost a machine; the first group if none did."""
        touched = sorted({self._group_of[p] for p in self.blank | self.vacant | self._lost} or {0})
        positions = tuple(sorted(p for number in touched for p in self._groups[number]))
        if len(positions) == self._whole.nodes:
            return self._whole
        place = {position: i for i, position in enumerate(positions)}
        holders = (self._whole.holders[p] for p in positions)
        return ClusterPart(
            positions=positions,
            holders=tuple(tuple(place[holder] for holder in kept) for kept in holders),
        )

    def plan(self, part: ClusterPart) -> RecoveryPlan:
        """Plan one part's recovery from the copies that are left, by the real planner.

        A machine whose accelerator failed gives what its memory holds to the one in its place.
        """
        members = self._seated(part.positions)
        copies: list[Copy] = []
        if self.memory_version is not None:
            copies = [
                Copy(shard=shard, version=self.memory_version, node=name)
                for shard, holders in enumerate(part.holders)
                for holder in holders
                if part.positions[holder] not in self.blank
                and (name := members[holder]) is not None
            ]
        return plan_recovery(
            placement=part,
            members=members,
            copies=copies,
            living={name for name in members if name is not None},
            persistent=() if self.persisted is None else (Stored(version=self.persisted),),
        )

    def _seated(self, positions: Iterable[int]) -> list[str | None]:
        """Return the members on these positions, with standbys in the empty places."""
        spares = iter(self.standbys)
        return [
            self.members[position] if self.is_up(position) else next(spares, None)
            for position in positions
        ]

    def moved(self) -> tuple[int, ...]:
        """Return positions whose machine goes although its memory is readable."""
        return tuple(sorted(self._lost - self.blank))

    def take(self, part: ClusterPart, plan: RecoveryPlan) -> None:
        """Seat the machines as planned; the dead are gone."""
        for position, name in zip(part.positions, plan.members, strict=True):
            self.members[position] = name
            (self.vacant.add if name is None else self.vacant.discard)(position)
        seated = set(plan.members)
        self.standbys = [name for name in self.standbys if name not in seated]
        self.dead.clear()
        self._lost.clear()

    def loaded(self, plan: RecoveryPlan) -> None:
        """Give all nodes the planned version, and the copies that belong there."""
        self.blank = set(self.vacant)
        self.memory_version = plan.version if plan.tier == "memory" else None

    def fill(self) -> None:
        """Give empty positions to standbys, as far as there are any."""
        spares = iter(self.standbys)
        for position in sorted(self.vacant):
            self.members[position] = next(spares, None)
        self.standbys = list(spares)
        self.vacant = {p for p in self.vacant if self.members[p] is None}


def busiest_sends(plan: RecoveryPlan) -> int:
    """Return shards that the busiest machine sends to others, one after the other."""
    sends = Counter(s.holder for s in plan.sources if s.tier == "peer" and s.holder)
    return max(sends.values(), default=0)


def _closed_groups(placement: Placement) -> Sequence[Sequence[int]]:
    """Return sets of positions that exchange no copies; one set if that is not plain."""
    group_of = {p: number for number, group in enumerate(placement.groups) for p in group}
    same: Callable[[Sequence[int]], bool] = lambda kept: len({group_of.get(p) for p in kept}) == 1  # noqa: E731
    if len(group_of) == placement.nodes and all(map(same, placement.holders)):
        return placement.groups
    return (tuple(range(placement.nodes)),)
