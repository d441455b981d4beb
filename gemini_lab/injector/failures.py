"""Failures (paper, section 6.2, and beyond) as plain values, without the means to cause them.

    Failure
    ├── WorkerCrash   a training process is killed; its node's memory stays
    ├── WorkerHang    a training process stops without ending
    ├── NodeLoss      a machine goes, and its memory with it
    ├── NodeFreeze    a machine falls silent: its connections stay open, nothing answers
    ├── RootLoss      the machine with the root agent goes
    ├── NodesLoss     several machines go at once
    ├── RackLoss      all machines of a rack go at once
    ├── LinkCut       connections close: a node's to the root agent, or two nodes' workers'
    ├── BitFlip       a bit of a replica in memory turns
    ├── WrongSums     a machine computes wrong: bits turn in its gradients, activations or updates
    └── StoreFull     the persistent tier takes no more bytes

A failure says where by a *place*: a node's name (`"node-2"`); `"rank-2"`, the node that runs rank 2
when the failure comes; or `"root"`, the node with the root agent.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Final, Literal, get_args

from gemini_lab.errors import ConfigError, kind_of, shortened, shown
from gemini_lab.limits import require_text
from gemini_lab.units import LARGEST, check_number

_PLACE: Final = re.compile(r"(?:node|rank)-[0-9]{1,9}|root")
_PLACES: Final = "a node's name like node-2, rank-2 for the node that runs rank 2, or root"


def check_place(place: str) -> None:
    """Refuse what names no place.

    Raises:
        ConfigError: `place` has none of the three forms.
    """
    if not isinstance(place, str) or not _PLACE.fullmatch(place):
        raise ConfigError(f"{shown(place)} names no place; write {_PLACES}")


def rank_of(place: str) -> int | None:
    """Return the rank in a place like `"rank-2"`, else None."""
    return int(place.removeprefix("rank-")) if place.startswith("rank-") else None


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that breaks. Use one of the kinds above."""

    kind: ClassVar[str] = ""

    @property
    def places(self) -> tuple[str, ...]:
        """Return the nodes that it strikes; empty if that is no node."""
        return ()

    def to_json(self) -> dict[str, object]:
        """Plain values, with the kind's name under `"kind"`."""
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def from_json(record: Mapping[str, object]) -> "Failure":
        """Return the failure that `to_json` gave as `record`.

        Raises:
            ConfigError: It has no known kind, or other values than its kind has.
        """
        values = dict(record)
        kind = values.pop("kind", None)
        if not isinstance(kind, str) or kind not in FAILURES:
            raise ConfigError(
                f"no failure is called {shown(kind)}; choose from {', '.join(FAILURES)}"
            )
        known = [field.name for field in fields(FAILURES[kind])]
        try:
            return FAILURES[kind](**values)
        except TypeError as error:
            raise ConfigError(
                f"{kind} takes {' and '.join(known) or 'nothing'} "
                f"(got {' and '.join(map(shortened, sorted(values)[:8])) or 'nothing'})"
            ) from error

    def __str__(self) -> str:
        where = " ".join(str(value) for value in asdict(self).values() if value is not None)
        return f"{self.kind.replace('_', ' ')} {where}".strip()


@dataclass(frozen=True, slots=True)
class _AtNode(Failure):
    """A failure of one node."""

    node: str  # its place: `"node-2"`, `"rank-2"` or `"root"`

    def __post_init__(self) -> None:
        check_place(self.node)

    @property
    def places(self) -> tuple[str, ...]:
        """The one place it strikes."""
        return (self.node,)


@dataclass(frozen=True, slots=True)
class WorkerCrash(_AtNode):
    """SIGKILL to a worker: that of the rank for `"rank-2"`, else the first worker of the node."""

    kind: ClassVar[str] = "worker_crash"


@dataclass(frozen=True, slots=True)
class WorkerHang(_AtNode):
    """SIGSTOP to a worker, chosen as for `WorkerCrash`: it lives and does nothing."""

    kind: ClassVar[str] = "worker_hang"


@dataclass(frozen=True, slots=True)
class NodeLoss(_AtNode):
    """SIGKILL to all processes of a node, agent included: its memory is gone."""

    kind: ClassVar[str] = "node_loss"


@dataclass(frozen=True, slots=True)
class NodeFreeze(_AtNode):
    """SIGSTOP to all processes of a node: only its lease, which expires, shows it."""

    kind: ClassVar[str] = "node_freeze"


@dataclass(frozen=True, slots=True)
class RootLoss(Failure):
    """The loss of the node whose agent is the root agent."""

    kind: ClassVar[str] = "root_loss"

    @property
    def places(self) -> tuple[str, ...]:
        """The root's place."""
        return ("root",)


@dataclass(frozen=True, slots=True)
class NodesLoss(Failure):
    """The loss of several nodes in one moment.

    Attributes:
        nodes: Their places, at least one, none twice.
    """

    kind: ClassVar[str] = "nodes_loss"
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str) or not isinstance(self.nodes, Sequence):
            raise ConfigError(f"nodes= is {kind_of(self.nodes)}; give several places in a list")
        object.__setattr__(self, "nodes", tuple(self.nodes))
        for node in self.nodes:
            check_place(node)
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ConfigError(f"nodes_loss needs different nodes (got {shown(list(self.nodes))})")

    @property
    def places(self) -> tuple[str, ...]:
        """All places it strikes."""
        return self.nodes

    def to_json(self) -> dict[str, object]:
        """Plain values, with the nodes as a list."""
        return {"kind": self.kind, "nodes": list(self.nodes)}

    def __str__(self) -> str:
        return f"nodes loss {' '.join(self.nodes)}"


@dataclass(frozen=True, slots=True)
class RackLoss(Failure):
    """The loss of all nodes of a rack in one moment.

    Attributes:
        rack: The rack's name in the lab's settings.
    """

    kind: ClassVar[str] = "rack_loss"
    rack: str

    def __post_init__(self) -> None:
        require_text("a rack's name", self.rack)


@dataclass(frozen=True, slots=True)
class LinkCut(_AtNode):
    """A loss of connections, once; no process dies.

    Attributes:
        to: Another node's place: all between the workers of the two close. None: those between the
            node's agent and the root agent.
    """

    kind: ClassVar[str] = "link_cut"
    to: str | None = None

    def __post_init__(self) -> None:
        check_place(self.node)
        if self.to is not None:
            check_place(self.to)

    @property
    def places(self) -> tuple[str, ...]:
        """The link's ends."""
        return (self.node,) if self.to is None else (self.node, self.to)


@dataclass(frozen=True, slots=True)
class BitFlip(_AtNode):
    """A flipped bit in the newest complete version of a shard on a node.

    Attributes:
        shard: The shard's rank; None leaves the choice to the scenario's seed.
    """

    kind: ClassVar[str] = "bit_flip"
    shard: int | None = None

    def __post_init__(self) -> None:
        check_place(self.node)
        if self.shard is not None:
            check_number("shard", self.shard, is_whole=True)


Where = Literal["gradient", "activation", "optimizer"]
"""What a machine computes wrong: a gradient, what a layer gives on, an optimizer's result."""


@dataclass(frozen=True, slots=True)
class WrongSums(_AtNode):
    """A flipped bit in what the workers of a node compute.

    Attributes:
        where: In what.
        lasts: Whether it turns each time from now on, also in workers that are started later, or
            once.
        seed: Decides in which weight or layer; None leaves that to the scenario's.
    """

    kind: ClassVar[str] = "wrong_sums"
    where: Where = "gradient"
    lasts: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        check_place(self.node)
        if self.where not in get_args(Where):
            raise ConfigError(
                f"sums are wrong in one of {', '.join(get_args(Where))} (got {shown(self.where)})"
            )
        if not isinstance(self.lasts, bool):
            raise ConfigError(f"lasts= is {kind_of(self.lasts)}; give True or False")
        if self.seed is not None:
            check_number("seed", self.seed, least=-LARGEST, is_whole=True)

    def __str__(self) -> str:
        return f"wrong sums {self.node} {self.where}, {'lasting' if self.lasts else 'once'}"


@dataclass(frozen=True, slots=True)
class StoreFull(Failure):
    """Every write to the persistent tier fails for lack of space from now on."""

    kind: ClassVar[str] = "store_full"


FAILURES: Final[dict[str, type[Failure]]] = {
    failure.kind: failure
    for failure in (
        WorkerCrash,
        WorkerHang,
        NodeLoss,
        NodeFreeze,
        RootLoss,
        NodesLoss,
        RackLoss,
        LinkCut,
        BitFlip,
        WrongSums,
        StoreFull,
    )
}
"""Every kind of failure by its name in JSON."""


def meaning(kind: type[Failure]) -> str:
    """Return a kind of failure in a line for users, with other kinds by their names in JSON."""
    line = (kind.__doc__ or "").partition("\n")[0].replace("`", "").replace('"', "")
    for name, other in FAILURES.items():
        line = line.replace(other.__name__, name)
    return line


def read_failure(
    kind: str,
    places: Sequence[str],
    shard: int | None = None,
    *,
    where: str | None = None,
    once: bool = False,
) -> Failure:
    """Parse a failure from the words of a command line.

    Args:
        kind: One of `FAILURES`.
        places: Where; for a `rack_loss` the words of the rack's name.
        shard: For a `bit_flip`, whose copy.
        where: For `wrong_sums`, in what a bit turns.
        once: The same: once, and not each time.

    Raises:
        ConfigError: There is no such kind, or it takes other words.
    """
    if kind not in FAILURES:
        return Failure.from_json({"kind": kind})  # which says so
    known = [field.name for field in fields(FAILURES[kind])]
    options = {"shard": shard, "where": where, "lasts": False if once else None}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - known:
        word = "once" if name == "lasts" else name
        raise ConfigError(f"{word!r} does not go with {kind}; leave it out")
    return Failure.from_json({"kind": kind, **_struck(kind, known, places), **given})


def _struck(kind: str, known: Sequence[str], places: Sequence[str]) -> dict[str, object]:
    """Return the place that a failure of `kind` strikes, as arguments named in `known`.

    Raises:
        ConfigError: It needs another number of places.
    """
    many = {"nodes": list(places), "rack": " ".join(places)}
    ends = [name for name in ("node", "to") if name in known]
    if not places and {*known} & {"node", *many}:
        wanted = "the rack's name" if "rack" in known else _PLACES
        raise ConfigError(f"{kind} needs to be told where; write {wanted} after it")
    if not {*known} & {*many} and len(places) > len(ends):
        most = ("no place", "one place", "two places at most")[len(ends)]
        raise ConfigError(f"{kind} takes {most} (got {len(places)}: {' '.join(places)})")
    return dict(zip(ends, places, strict=False)) | {n: v for n, v in many.items() if n in known}
