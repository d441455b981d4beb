"""Seats: nodes on positions, ranks on nodes, replicas on positions.

A position is a place in the job that outlives the machine on it: position `p` runs the ranks
`p * workers_per_node` and following, and a standby that takes a lost node's position runs those
ranks too. A placement speaks of positions, workers speak of ranks, and agents of nodes by name; all
the arithmetic between the three is here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral

from gemini_lab.errors import CapacityError, ConfigError, shown
from gemini_lab.placement import Placement, Risk, plan_placement, propose_placement
from gemini_lab.placement.dangers import Dangers
from gemini_lab.placement.memory import BUFFERS
from gemini_lab.settings import SCHEDULED, Settings
from gemini_lab.units import check_number, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Nodes, standbys, racks, workers, and who keeps whose shard.

    Attributes:
        nodes: Positions.
        standbys: Machines that are to wait beside them.
        workers_per_node: Ranks on each position.
        members: The node on each position; `None` where none is. Empty before the first start.
        rack_of: The rack of each node whose rack is known, by the node's name.
        placement: Which positions keep which shards; `None` until the job's settings are known.
        risk: What is known of the machines' failures and memory, for copies that follow the risk.
    """

    nodes: int
    standbys: int = 0
    workers_per_node: int = 1
    members: tuple[str | None, ...] = ()
    rack_of: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    risk: Risk = field(default_factory=Risk)

    def __post_init__(self) -> None:
        counts = (self.nodes, self.workers_per_node, self.standbys)
        is_whole = all(isinstance(count, Integral) for count in counts)
        if not is_whole or self.nodes < 1 or self.workers_per_node < 1 or self.standbys < 0:
            raise ConfigError(
                "a lab needs at least one node and one worker on it, and no fewer than 0 standbys, "
                f"in whole numbers (got nodes={shown(self.nodes)}, "
                f"workers_per_node={shown(self.workers_per_node)}, "
                f"standbys={shown(self.standbys)})"
            )
        for name in ("nodes", "workers_per_node", "standbys"):
            check_number(name, getattr(self, name), is_whole=True)
        check_number("ranks", self.world_size, is_whole=True)
        if self.members and len(self.members) != self.nodes:
            raise ConfigError(f"{self.nodes} positions cannot seat the members {self.members}")

    # -- how many --------------------------------------------------------------------------------

    @property
    def in_words(self) -> str:
        """Describe how many machines there are to be."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        standbys = "1 standby" if self.standbys == 1 else f"{self.standbys} standbys"
        return f"{nodes} and {standbys}" if self.standbys else nodes

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self.nodes * self.workers_per_node

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.world_size)

    @property
    def machines(self) -> int:
        """Nodes and standbys together."""
        return self.nodes + self.standbys

    @property
    def nodes_by_rack(self) -> dict[str, list[str]]:
        """Names of the nodes in each rack; nodes that come later are in none."""
        nodes: dict[str, list[str]] = {}
        for node, rack in self.rack_of.items():
            nodes.setdefault(rack, []).append(node)
        return nodes

    # -- ranks, positions, nodes -----------------------------------------------------------------

    def position_of(self, rank: int) -> int:
        """Return the position on which `rank` runs."""
        return rank // self.workers_per_node

    def local_rank_of(self, rank: int) -> int:
        """Return the number of `rank` among the workers of its node."""
        return rank % self.workers_per_node

    def node_of(self, rank: int) -> str:
        """Return the node on which `rank` runs.

        Raises:
            ConfigError: There is no such rank, or no node on its position.
        """
        if rank not in self.ranks:
            raise ConfigError(f"no rank {rank} runs; ranks go from 0 to {self.world_size - 1}")
        position = self.position_of(rank)
        node = self.members[position] if self.members else None
        if node is None:
            raise ConfigError(f"rank {rank} has no node: nobody sits on position {position}")
        return node

    def ranks_at(self, position: int) -> range:
        """Return the ranks of a position."""
        first = position * self.workers_per_node
        return range(first, first + self.workers_per_node)

    def ranks_on(self, node: str) -> range:
        """Return the ranks that run on `node`: none for a standby."""
        return self.ranks_at(self.members.index(node)) if node in self.members else range(0)

    def spares(self, nodes: Collection[str]) -> list[str]:
        """Return the `nodes` without a position, in counting order."""
        return in_order(set(nodes) - set(self.members))

    # -- who keeps what --------------------------------------------------------------------------

    @property
    def holders(self) -> Placement:
        """The placement.

        Raises:
            ConfigError: There is none yet.
        """
        if self.placement is None:
            raise ConfigError("no placement is known before the job's settings are")
        return self.placement

    def peers_that_keep(self, rank: int) -> tuple[int, ...]:
        """Return the ranks beside the owner that keep replicas of `rank`'s shard, in order.

        A shard's replicas go to the workers with the owner's local rank on the other positions.
        """
        positions = self.holders.holders[self.position_of(rank)][1:]
        local_rank = self.local_rank_of(rank)
        return tuple(p * self.workers_per_node + local_rank for p in positions)

    def kept_shards(self, rank: int) -> tuple[int, ...]:
        """Return the shards in `rank`'s slab, its own first."""
        local_rank = self.local_rank_of(rank)
        kept = self.holders.kept_by(self.position_of(rank))
        return tuple(position * self.workers_per_node + local_rank for position in kept)

    def replica_numbers(self, rank: int) -> dict[int, int]:
        """Each other shard in `rank`'s slab, and which of its replicas this is (1, 2, ...)."""
        return {
            shard: self.peers_that_keep(shard).index(rank) + 1
            for shard in self.kept_shards(rank)[1:]
        }

    def rank_on(self, node: str, *, keeping: int) -> int:
        """Return the rank on `node` in whose slab the shard `keeping` lies: the same local rank."""
        return self.ranks_on(node)[self.local_rank_of(keeping)]

    # -- other seats -----------------------------------------------------------------------------

    def seated(self, members: Sequence[str | None]) -> "Seats":
        """Return the seats with these nodes on the positions."""
        return replace(self, members=tuple(members))

    @property
    def racks(self) -> list[str] | None:
        """The rack of each position, where every one's is known."""
        known = [self.rack_of.get(member or "") for member in self.members]
        racks = [rack for rack in known if rack is not None]
        return racks if racks and len(racks) == self.nodes else None

    def placed(
        self,
        settings: Settings,
        *,
        shard_bytes: int | None = None,
        node_bytes: Sequence[int] = (),
    ) -> "Seats":
        """Return the seats with a placement: the present one, or what `settings` ask for.

        Args:
            settings: The job's.
            shard_bytes: Of all ranks' shards the largest; `None` where it is not known yet, so
                that memory does not count.
            node_bytes: Of each position's shards together, where they are known.

        Raises:
            ConfigError: There are fewer nodes than replicas, the strategy does not fit them, or the
                placement that is there is of something else.
            CapacityError: Copies follow the risk, and a node has no room for its own shard.
        """
        if self.placement is not None:
            self._check_placement(self.placement, settings)
            return self
        if settings.adapt_replicas:
            return replace(self, placement=first_placement(self, settings, shard_bytes, node_bytes))
        placement = plan_placement(
            nodes=self.nodes,
            replicas=settings.replicas,
            strategy=settings.strategy,
            racks=self.racks,
            node_bytes=node_bytes,
        )
        return replace(self, placement=placement)

    def _check_placement(self, placement: Placement, settings: Settings) -> None:
        """Refuse a placement that these nodes cannot have, or that settings contradict."""
        if placement.nodes != self.nodes:
            raise ConfigError(
                f"the placement is of {placement.nodes} nodes, and {self.nodes} train; make one of "
                f"{self.nodes}, or a lab of {placement.nodes}"
            )
        if settings.adapt_replicas:
            return
        if placement.replicas != settings.replicas:
            raise ConfigError(
                f"the placement has {placement.replicas} replicas, and the settings say "
                f"replicas={settings.replicas}; leave the setting out"
            )
        more = [
            shard for shard, kept in enumerate(placement.holders) if len(kept) > placement.replicas
        ]
        if more and settings.scheme in SCHEDULED:
            raise ConfigError(
                f"shard {more[0]} has more than {placement.replicas} copies, and "
                f"scheme={settings.scheme!r} plans for as many of each; use scheme='background'"
            )


def dangers(seats: Seats, settings: Settings) -> Dangers:
    """Return the failure rates of the nodes on these positions at one moment."""
    racks, risk = seats.racks, seats.risk
    nodes = [member or "" for member in seats.members] or [""] * seats.nodes
    return Dangers(
        failures_per_day=risk.per_day(nodes, 0.0, expected=settings.expected_failures),
        repair_s=settings.repair_s,
        racks=racks,
        racks_per_day=risk.racks_per_day(
            set(racks or ()), 0.0, expected=settings.rack_failures_per_day
        ),
    )


def memory_for_copies(seats: Seats, settings: Settings) -> list[int | None]:
    """Bytes for copies on each position's node; `None` where nothing is known of it."""
    said, found = settings.room_for_replicas, seats.risk.memory_bytes

    def of(node: str) -> int | None:
        if node in said.named or said.usual is not None:
            return int(said.of(node))
        return found.get(node)

    return [of(member or "") for member in seats.members] or [None] * seats.nodes


def shards_that_fit(seats: Seats, settings: Settings, shard_bytes: int | None) -> list[int]:
    """Return how many shards each position has room for; all if its memory is unknown."""
    each = settings.buffers * seats.workers_per_node * (shard_bytes or 0)
    memory = memory_for_copies(seats, settings)
    return [seats.nodes if not each or room is None else room // each for room in memory]


def first_placement(
    seats: Seats, settings: Settings, shard_bytes: int | None, node_bytes: Sequence[int] = ()
) -> Placement:
    """Return the first placement of copies that follow the risk.

    A node that has no room for the largest shards keeps its own, if there is room for these.

    Raises:
        CapacityError: A node has no room for its own shard.
    """
    known = dangers(seats, settings)
    fits = shards_that_fit(seats, settings, shard_bytes)
    own = [settings.buffers * size for size in node_bytes]
    own = own or [settings.buffers * seats.workers_per_node * (shard_bytes or 0)] * seats.nodes
    rooms = memory_for_copies(seats, settings)
    fits = [max(fit, int((rooms[n] or 0) >= own[n])) for n, fit in enumerate(fits)]
    if shard_bytes and min(fits) < 1:
        position = fits.index(min(fits))
        room, own_bytes = rooms[position], own[position]
        raise CapacityError(
            f"{seats.members[position]} has {format_bytes(room or 0)} for copies, but its own "
            f"shards need {format_bytes(own_bytes)} ({settings.buffers} buffers of "
            f"{format_bytes(own_bytes // settings.buffers)}); give it more (replica_memory), or "
            "use more nodes"
        )
    # The planner counts two buffers a copy; how many there are is in `fits` already.
    return propose_placement(
        nodes=seats.nodes,
        failures_per_node_per_day=known.failures_per_day,
        repair_s=known.repair_s,
        memory_bytes=[BUFFERS * fit for fit in fits],
        shard_bytes=1,
        target=settings.survival_target,
        horizon_days=settings.survival_days,
        fewest_replicas=settings.replicas,
        racks=known.racks,
        racks_per_day=known.racks_per_day,
    ).placement


def node_name(number: int) -> str:
    """Return the name of the machine with this number; numbers count up and are never reused."""
    return f"node-{number}"


def node_number(name: str) -> int:
    """Return the number in a machine's name."""
    return int(name.rpartition("-")[2])


def in_order(nodes: Iterable[str]) -> list[str]:
    """Names in counting order: node-2 before node-10."""
    return sorted(nodes, key=lambda name: (len(name), name))


def listed(names: Sequence[object], comma: str = ", ", *, most: int = 8) -> str:
    """Return names for users: all of a few, the first of many and how many more there are."""
    told = comma.join(map(str, names[:most]))
    return told if len(names) <= most else f"{told} and {len(names) - most} more"
