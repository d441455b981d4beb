"""A recovery's planner under attack: every small way to lose nodes while a version is on its way.

Each case has version 7 whole in memory, version 8 on its way, with some of its copies there and
some not, and perhaps a version in the persistent tier. Then nodes die.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Final, TypeVar

from gemini_lab.errors import kind_of
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.plan import (
    Copy,
    CopyTransfer,
    RecoveryPlan,
    Source,
    Stored,
    plan_recovery,
)
from gemini_lab.seats import in_order
from gemini_lab_course.attacks.outcome import BesideOurs, StageFault, counted
from gemini_lab_course.attacks.search import Attacked, NotOneError

T = TypeVar("T")
MOST_NODES: Final = 4
FEW: Final = 2
"""With most nodes, no more are lost, and fewer copies are missing, or there."""
OLD: Final = 7
NEW: Final = 8
STORED: Final = ((), (4,), (4, 9, 5))
"""Versions in the persistent tier."""
SPARES: Final = ((0, 0), (1, 0), (2, 0), (2, 1))
"""How many nodes wait, and how many of these are lost, too."""


@dataclass(frozen=True, kw_only=True)
class RecoveryCase:
    """Nodes that were lost while version `NEW` was on its way.

    Attributes:
        placement: Who keeps whose shard.
        lost: Numbers of the lost nodes, of standbys too.
        arrived: Copies of `NEW` that were there, each a shard and the node that has it.
        standbys: Nodes that waited before.
        stored: Versions in the persistent tier.
    """

    placement: Placement
    lost: frozenset[int]
    arrived: frozenset[tuple[int, int]]
    standbys: int = 0
    stored: tuple[int, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """The node on each position."""
        return tuple(f"node-{position}" for position in range(self.placement.nodes))

    @property
    def spares(self) -> tuple[str, ...]:
        """The standbys' names."""
        first = self.placement.nodes
        return tuple(f"node-{number}" for number in range(first, first + self.standbys))

    @cached_property
    def living(self) -> frozenset[str]:
        """The nodes that are left, standbys among them."""
        lost = {f"node-{number}" for number in self.lost}
        return frozenset(self.members + self.spares) - lost

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """The copies in memory before the loss."""
        every = [
            (shard, node) for shard, kept in enumerate(self.placement.holders) for node in kept
        ]
        old = [Copy(shard=shard, version=OLD, node=f"node-{node}") for shard, node in every]
        new = [c for c in every if c in self.arrived]
        return (*old, *(Copy(shard=shard, version=NEW, node=f"node-{node}") for shard, node in new))

    @property
    def arguments(self) -> dict[str, object]:
        """As `plan_recovery` takes them."""
        return {
            "placement": self.placement,
            "members": self.members,
            "copies": self.copies,
            "living": self.living,
            "standbys": self.spares,
            "persistent": tuple(Stored(version=version) for version in self.stored),
        }

    @cached_property
    def _left(self) -> dict[tuple[int, int], set[str]]:
        """By version and shard, the living nodes that have a copy."""
        found: dict[tuple[int, int], set[str]] = defaultdict(set)
        for copy in self.copies:
            if copy.node in self.living:
                found[copy.version, copy.shard].add(copy.node)
        return found

    def holders(self, version: int, shard: int) -> set[str]:
        """Return the living nodes that have a copy."""
        return self._left.get((version, shard), set())

    def is_whole(self, version: int) -> bool:
        """Return whether every shard of a version is still in memory somewhere."""
        return all(self.holders(version, shard) for shard in range(self.placement.nodes))

    def __str__(self) -> str:
        lost = ", ".join(f"node-{number}" for number in sorted(self.lost)) or "no node"
        has = len(self.arrived)
        parts = [
            counted(self.placement.nodes, "node"),
            counted(self.placement.replicas, "replica"),
            f"{lost} lost",
            *([counted(self.standbys, "standby")] if self.standbys else []),
            *([f"{has} {'copy' if has == 1 else 'copies'} of version {NEW} there"] if has else []),
            *(f"version {version} stored" for version in self.stored),
        ]
        return ", ".join(parts)


LARGE: Final = RecoveryCase(
    placement=plan_placement(nodes=8, replicas=4),
    lost=frozenset({0, 1, 4}),
    arrived=frozenset(),
    standbys=3,
)
"""More nodes; figures are given for it."""


def cases() -> Iterator[RecoveryCase]:
    """Few nodes first, then few failures, then few standbys, versions and copies; `LARGE` last."""
    for placement in _placements():
        every = [(shard, node) for shard, kept in enumerate(placement.holders) for node in kept]
        for lost in _subsets(range(placement.nodes)):
            if placement.nodes == MOST_NODES and len(lost) > FEW:
                break
            for (standbys, dead), stored in itertools.product(SPARES, STORED):
                waited = range(placement.nodes, placement.nodes + dead)
                for arrived in _subsets(every, small=placement.nodes == MOST_NODES):
                    yield RecoveryCase(
                        placement=placement,
                        lost=frozenset({*lost, *waited}),
                        arrived=frozenset(arrived),
                        standbys=standbys,
                        stored=stored,
                    )
    yield LARGE


def _placements() -> Iterator[Placement]:
    for nodes in range(1, MOST_NODES + 1):
        for replicas in range(1, min(nodes, 2) + 1):
            plain = plan_placement(nodes=nodes, replicas=replicas)
            yield plain
            ring = plan_placement(nodes=nodes, replicas=replicas, strategy="ring")
            if ring.holders != plain.holders:
                yield ring


def _subsets(items: Sequence[T], *, small: bool = False) -> Iterator[tuple[T, ...]]:
    """Yield all subsets, smallest first; `small`: those of few, or without few."""
    for count in range(len(items) + 1):
        if not small or min(count, len(items) - count) < FEW:
            yield from itertools.combinations(items, count)


def read(answer: object) -> RecoveryPlan:
    """Return a recovery plan, without its reason: that is for people.

    Raises:
        NotOneError: The answer is none, or has something strange in it.
    """
    if not isinstance(answer, RecoveryPlan):
        raise NotOneError(f"the answer has to be a RecoveryPlan, and it is {kind_of(answer)}")
    _check("the version", answer.version, Integral, type(None))
    _check("the tier", answer.tier, str)
    members = _listed("members", answer.members, str, type(None))
    sources = _listed("sources", answer.sources, Source)
    transfers = _listed("transfers", answer.transfers, CopyTransfer)
    for each in sources:
        _check("a source's shard", each.shard, Integral)
        _check("a source's tier", each.tier, str)
        _check("a source's holder", each.holder, str, type(None))
    for each in transfers:
        _check("a transfer's shard", each.shard, Integral)
        _check("a transfer's sender", each.sender, str, type(None))
        _check("a transfer's receiver", each.receiver, str, type(None))
    return replace(answer, members=members, sources=sources, transfers=transfers, reason="")


def _listed(name: str, given: object, *kinds: type) -> tuple[Any, ...]:
    _check(f"the {name}", given, Iterable)
    found: tuple[Any, ...] = tuple(given)  # type: ignore[arg-type]
    for each in found:
        _check(f"one of the {name}", each, *kinds)
    return found


def _check(name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise NotOneError(f"in a plan, {name} cannot be {kind_of(value)}")


def fault(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    """Return what is wrong with a plan: its members, version, sources or copies."""
    return (
        _wrong_members(case, plan)
        or _wrong_version(case, plan)
        or _wrong_tier(case, plan)
        or _wrong_sources(case, plan)
        or _wrong_transfers(case, plan)
    )


def _wrong_members(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    if len(plan.members) != case.placement.nodes:
        return _fault(case, f"there are {case.placement.nodes} positions, not {len(plan.members)}")
    for position, (before, now) in enumerate(zip(case.members, plan.members, strict=True)):
        if now is not None and now not in case.living:
            return _fault(case, f"position {position} is given to {now}, which is not alive")
        if before in case.living and now != before:
            why = f"{before} lives and has position {position}'s shards, and loses the position"
            return _fault(case, why)
    seated = [node for node in plan.members if node is not None]
    if len(set(seated)) < len(seated):
        return _fault(case, "a node has two positions")
    idle = [node for node in case.spares if node in case.living and node not in seated]
    if idle and len(seated) < case.placement.nodes:
        return _fault(case, f"a position stays empty although {idle[0]} waits")
    return None


def _wrong_version(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    at_hand = [version for version in (OLD, NEW) if case.is_whole(version)]
    newest = max([*at_hand, *case.stored], default=None)
    if plan.version == newest:
        return None
    if plan.version is None:
        return _fault(case, "training starts over although a whole version is left")
    if plan.version not in at_hand and plan.version not in case.stored:
        shards = tuple(
            shard for shard in range(case.placement.nodes) if not case.holders(plan.version, shard)
        )
        lacking = f"no living node has shard {shards[0]} of it"
        why = f"version {plan.version} is to be loaded, and {lacking}"
        return _fault(case, why, shards)
    return _fault(case, f"version {plan.version} is to be loaded although a newer one is whole")


def _wrong_tier(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    if plan.version is None:
        right = plan.tier == "start"
    elif case.is_whole(plan.version):
        right = plan.tier == "memory"
    else:
        right = plan.tier == "persistent"
    return None if right else _fault(case, f"the version is not in the tier {plan.tier!r}")


def _wrong_sources(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    shards = [source.shard for source in plan.sources]
    if shards != list(range(case.placement.nodes)):
        return _fault(case, f"each shard needs one source, in order; the plan has {shards}")
    for source in plan.sources:
        if plan.tier != "memory" or plan.version is None:
            if source.tier != plan.tier or source.holder is not None:
                why = (
                    f"all ranks load the same version from the tier {plan.tier!r}, and shard "
                    f"{source.shard}'s source says {source.tier!r} from {source.holder}"
                )
                return _fault(case, why, (source.shard,))
            continue
        owner, having = plan.members[source.shard], case.holders(plan.version, source.shard)
        is_local = owner is not None and owner in having
        if is_local != (source.tier == "local") or source.tier not in {"local", "peer"}:
            has = "has" if is_local else "does not have"
            why = (
                f"shard {source.shard}'s source is {source.tier!r}, and its owner {has} version "
                f"{plan.version} of it"
            )
            return _fault(case, why, (source.shard,))
        if owner is not None and source.holder not in having:
            why = f"shard {source.shard} is to come from {source.holder}, which does not have it"
            return _fault(case, why, (source.shard,))
        if is_local and source.holder != owner:
            why = f"shard {source.shard} is local, and is to come from {source.holder}"
            return _fault(case, why, (source.shard,))
    return None


def _wrong_transfers(case: RecoveryCase, plan: RecoveryPlan) -> StageFault | None:
    """Afterwards each shard has all its replicas again, at no needless cost."""
    if plan.tier != "memory" or plan.version is None:
        needless = "copies are to go from node to node, and the version is not in memory"
        return _fault(case, needless) if plan.transfers else None
    after = {shard: set(case.holders(plan.version, shard)) for shard in range(len(plan.members))}
    for each in plan.transfers:
        where = f"shard {each.shard} is to go from {each.sender} to {each.receiver}"
        if each.sender not in case.holders(plan.version, each.shard):
            return _fault(case, f"{where}, and the sender does not have it", (each.shard,))
        if each.receiver in after[each.shard]:
            return _fault(case, f"{where}, and the receiver has it already", (each.shard,))
        after[each.shard].add(each.receiver)
    for shard, kept in enumerate(case.placement.holders):
        wanted = {plan.members[position] for position in kept} - {None}
        if missing := in_order(str(node) for node in wanted - after[shard]):
            why = (
                f"{missing[0]} keeps shard {shard} from now on and is sent no copy: the next "
                "failure may lose it"
            )
            return _fault(case, why, (shard,))
        if extra := in_order(after[shard] - wanted - case.holders(plan.version, shard)):
            why = f"shard {shard} goes to {extra[0]}, which does not keep it"
            return _fault(case, why, (shard,))
    return None


def _fault(case: RecoveryCase, why: str, shards: tuple[int, ...] = ()) -> StageFault:
    lost = tuple(f"node-{number}" for number in sorted(case.lost))
    return StageFault(why=why, lost=lost, shards=shards)


def figures(
    answered: Callable[[RecoveryCase], RecoveryPlan | None],
) -> tuple[BesideOurs, ...]:
    """Return how many copies the busiest sender has to send, on eight nodes that lost three."""
    plan = answered(LARGE)
    if plan is None:
        return ()
    ours = plan_recovery(**LARGE.arguments)  # type: ignore[arg-type]
    return (
        BesideOurs(
            what="copies that the busiest node sends, 3 of 8 nodes lost",
            yours=_busiest(plan),
            reference=_busiest(ours),
            optimum=fewest(LARGE, plan),
        ),
        BesideOurs(
            what="copies that are sent",
            yours=len(plan.transfers),
            reference=len(ours.transfers),
            optimum=len(ours.transfers),
        ),
    )


def _busiest(plan: RecoveryPlan) -> int:
    return max(Counter(each.sender for each in plan.transfers).values(), default=0)


def fewest(case: RecoveryCase, plan: RecoveryPlan) -> int:
    """Return a bound: in each group, what is to be sent is spread over those who are left."""
    bounds = []
    for group in case.placement.groups:
        senders = [p for p in group if case.members[p] in case.living]
        sent = sum(each.shard in group for each in plan.transfers)
        bounds.append(-(-sent // len(senders)) if senders else 0)
    return max(bounds, default=0)


RECOVERY: Final = Attacked(
    name="recovery",
    scope=f"up to {MOST_NODES} nodes, and 8 that lose 3",
    read=read,
    fault=fault,
    figures=figures,
)
"""The stage."""
