"""From a failure to orders: which node's agent does what to itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from typing import cast as typing_cast

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import (
    BitFlip,
    Failure,
    LinkCut,
    NodesLoss,
    RackLoss,
    RootLoss,
    StoreFull,
    Where,
    WrongSums,
    check_place,
    rank_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Nodes, ranks and roles at the moment of a failure.

    Attributes:
        members: The node on each position; position p runs the ranks from p x `workers_per_node`.
        root: The node with the root agent.
        workers_per_node: Ranks a node.
        standbys: Nodes without a position.
        racks: The nodes in each rack.
    """

    members: Sequence[str]
    root: str
    workers_per_node: int = 1
    standbys: Sequence[str] = ()
    racks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, each once."""
        return tuple(dict.fromkeys([*self.members, *self.standbys, self.root]))

    def node_at(self, place: str) -> str:
        """Return the name of the node that `place` means.

        Raises:
            ConfigError: No such node or rank is there.
        """
        check_place(place)
        if place == "root":
            return self.root
        rank = rank_of(place)
        if rank is not None:
            self.check_rank(rank, "rank")
            return self.members[rank // self.workers_per_node]
        if place not in self.nodes:
            raise ConfigError(f"no node {place!r} is there; there are {', '.join(self.nodes)}")
        return place

    def check_rank(self, number: int, what: str) -> None:
        """Refuse a rank that does not run, or a shard that is no rank's.

        Raises:
            ConfigError: It is one.
        """
        ranks = len(self.members) * self.workers_per_node
        if number >= ranks:
            raise ConfigError(f"no {what} {number} is there; {what}s go from 0 to {ranks - 1}")

    def ranks_on(self, node: str) -> tuple[int, ...]:
        """Return the ranks that a node runs.

        Raises:
            ConfigError: It runs none.
        """
        if node not in self.members:
            raise ConfigError(f"no worker runs on {node}; {', '.join(self.members)} run some")
        first = list(self.members).index(node) * self.workers_per_node
        return tuple(range(first, first + self.workers_per_node))


ActionKind = Literal[
    "worker_crash",
    "worker_hang",
    "node_loss",
    "node_freeze",
    "link_cut",
    "bit_flip",
    "wrong_sums",
    "store_full",
]
"""What an agent can do to its own node; other failures are several of these at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Action of an agent on its own node."""

    kind: ActionKind  # as the failures are called
    rank: int | None = None  # which worker is struck; `None`: the node's first
    shard: int | None = None  # whose copy a bit flips in; `None` leaves the choice to `seed`
    where: Where | None = None  # what is computed wrong; `None` for nothing
    lasts: bool = False  # whether it is each time, or once
    others: tuple[int, ...] = ()  # of a link, the ranks at its other end; none for the root agent
    seed: int = 0  # decides what is left open


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order to the agent of one node."""

    node: str
    action: Action


def orders(failure: Failure, cast: Cast, *, seed: int = 0) -> list[Order]:
    """Return the orders that cause `failure`, all to be given at once.

    Args:
        failure: What is to break.
        cast: Who plays which part now.
        seed: Decides what the failure leaves open.

    Raises:
        ConfigError: It names a node, rank, shard or rack that is not there.
    """
    match failure:
        case BitFlip(shard=int() as shard):
            cast.check_rank(shard, "shard")
        case RootLoss() | NodesLoss():
            return _losses(cast.node_at(place) for place in failure.places)
        case RackLoss(rack=rack):
            if rack not in cast.racks:
                known = ", ".join(cast.racks) or "none"
                raise ConfigError(f"no rack {rack!r} is there; there are: {known}")
            return _losses(node for node in cast.racks[rack] if node in cast.nodes)
        case LinkCut(node=node, to=str() as to):
            return _cuts(cast, cast.node_at(node), cast.node_at(to))
        case StoreFull():
            return [Order(node=node, action=Action(kind="store_full")) for node in cast.nodes]
    return [Order(node=cast.node_at(failure.places[0]), action=_action(failure, seed))]


def _action(failure: Failure, seed: int) -> Action:
    """Return the action of the one node that a failure strikes."""
    kind, rank = typing_cast(ActionKind, failure.kind), rank_of(failure.places[0])
    match failure:
        case BitFlip(shard=shard):
            return Action(kind=kind, rank=rank, shard=shard, seed=seed)
        case WrongSums(where=where, lasts=lasts, seed=own):
            chosen = seed if own is None else own
            return Action(kind=kind, rank=rank, where=where, lasts=lasts, seed=chosen)
    return Action(kind=kind, rank=rank, seed=seed)


def _cuts(cast: Cast, node: str, to: str) -> list[Order]:
    """Both ends of a link between two nodes' workers close it.

    Raises:
        ConfigError: They are one node, or a node has no workers.
    """
    if node == to:
        raise ConfigError(f"{node} has no link to itself; name two nodes")
    return [
        Order(node=one, action=Action(kind="link_cut", others=cast.ranks_on(other)))
        for one, other in ((node, to), (to, node))
    ]


def _losses(nodes: Iterable[str]) -> list[Order]:
    return [Order(node=node, action=Action(kind="node_loss")) for node in dict.fromkeys(nodes)]
