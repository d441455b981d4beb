"""A placement planner under attack: which nodes have to die until a shard is gone?"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.placement import Placement, best_possible, plan_placement, theorem_gap
from gemini_lab.placement.own import Holders, read_placement
from gemini_lab_course.attacks.outcome import BesideOurs, StageFault, counted
from gemini_lab_course.attacks.search import Attacked, NotOneError

MOST_NODES: Final = 16
MOST_REPLICAS: Final = 4
COMPARED: Final = ((5, 2), (16, 2), (16, 3))
"""Nodes and replicas that figures are given for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCase:
    """So many nodes, and so many copies of each shard."""

    nodes: int
    replicas: int

    @property
    def arguments(self) -> dict[str, object]:
        """As `plan_placement` takes them."""
        return {"nodes": self.nodes, "replicas": self.replicas}

    def __str__(self) -> str:
        return f"{counted(self.nodes, 'node')}, {counted(self.replicas, 'replica')}"


def cases() -> Iterator[PlacementCase]:
    """Few nodes first, then few replicas."""
    for nodes in range(1, MOST_NODES + 1):
        for replicas in range(1, min(nodes, MOST_REPLICAS) + 1):
            yield PlacementCase(nodes=nodes, replicas=replicas)


def read(answer: object) -> Placement | Holders:
    """Return a placement; or, for each shard, who keeps it.

    Raises:
        NotOneError: The answer is neither.
    """
    try:
        return read_placement(answer)
    except ConfigError as error:
        raise NotOneError(str(error)) from None


def fault(case: PlacementCase, answer: Placement | Holders) -> StageFault | None:
    """Return what is wrong with a placement of this many nodes: the fewest failures first."""
    if isinstance(answer, Placement):
        said = answer.nodes, answer.replicas
        if said != (case.nodes, case.replicas):
            return StageFault(why=f"the answer says {said[0]} nodes and {said[1]} replicas")
    holders = _holders(answer)
    if len(holders) != case.nodes:
        return StageFault(
            why=f"there are {case.nodes} shards, and the answer places {len(holders)}"
        )
    return (
        _misplaced(case, holders)
        or _few_copies(case, holders)
        or _many_copies(case, holders)
        or _fatal_sets(case, holders)
    )


def _misplaced(case: PlacementCase, holders: Holders) -> StageFault | None:
    for shard, kept in enumerate(holders):
        strange = [position for position in kept if not 0 <= position < case.nodes]
        if strange:
            where = f"node {strange[0]}, and nodes go from 0 to {case.nodes - 1}"
            return StageFault(why=f"shard {shard} is to lie on {where}", shards=(shard,))
        if not kept or kept[0] != shard:
            why = f"shard {shard} does not name its owner first, from whom a crashed worker reads"
            return StageFault(why=why, shards=(shard,))
    return None


def _few_copies(case: PlacementCase, holders: Holders) -> StageFault | None:
    """Losing fewer nodes than there are to be copies must not be fatal."""
    shard = min(range(case.nodes), key=lambda each: len(set(holders[each])))
    kept = sorted(set(holders[shard]))
    if len(kept) >= case.replicas:
        return None
    return StageFault(
        why=f"lose {_named(kept)}, and shard {shard} is gone: only "
        f"{counted(len(kept), 'node')} had it, and {case.replicas} were asked for",
        lost=_nodes(kept),
        shards=(shard,),
    )


def _many_copies(case: PlacementCase, holders: Holders) -> StageFault | None:
    for shard, kept in enumerate(holders):
        if len(kept) > case.replicas:
            were = "1 copy is" if case.replicas == 1 else f"{case.replicas} copies are"
            why = f"shard {shard} is kept {len(kept)} times, and {were} asked for"
            return StageFault(why=why, shards=(shard,))
    return None


def _fatal_sets(case: PlacementCase, holders: Holders) -> StageFault | None:
    """Losing as many nodes as there are copies is fatal for some sets; Theorem 1 says how many."""
    fatal = {frozenset(kept) for kept in holders}
    allowed = fatal_sets_allowed(case.nodes, case.replicas)
    if len(fatal) <= allowed:
        return None
    first = sorted(min(fatal, key=sorted))
    shards = tuple(shard for shard, kept in enumerate(holders) if set(kept) == set(first))
    sets = math.comb(case.nodes, case.replicas)
    return StageFault(
        why=f"lose {_named(first)}, and shard {shards[0]} is gone; {len(fatal)} of the {sets} sets "
        f"of {counted(case.replicas, 'node')} are fatal like this one, more than the "
        f"{allowed} that Theorem 1 allows",
        lost=_nodes(first),
        shards=shards,
    )


def fatal_sets_allowed(nodes: int, replicas: int) -> int:
    """Return how many sets of m nodes may be fatal: as many as Theorem 1 leaves to Algorithm 1."""
    chance = 1 - best_possible(nodes, replicas) + theorem_gap(nodes, replicas)
    return int(min(Fraction(1), chance) * math.comb(nodes, replicas))


def figures(
    answered: Callable[[PlacementCase], Placement | Holders | None],
    compared: Collection[tuple[int, int]] = COMPARED,
) -> tuple[BesideOurs, ...]:
    """Return the chance that memory outlives m lost nodes, and the most that one node keeps."""
    found: list[BesideOurs] = []
    for nodes, replicas in compared:
        case = PlacementCase(nodes=nodes, replicas=replicas)
        answer, ours = answered(case), plan_placement(nodes=nodes, replicas=replicas)
        if answer is not None:
            found += _compared(case, _holders(answer), ours)
    return tuple(found)


def _compared(case: PlacementCase, yours: Holders, ours: Placement) -> Iterator[BesideOurs]:
    yield BesideOurs(
        what=f"survives {counted(case.replicas, 'lost node')} of {case.nodes}",
        yours=survival(yours),
        reference=survival(ours.holders),
        optimum=float(best_possible(case.nodes, case.replicas)),
        unit="share",
    )
    yield BesideOurs(
        what=f"most shards on a node, {case}",
        yours=_most(yours),
        reference=max(ours.loads),
        optimum=case.replicas,
    )


def _holders(answer: Placement | Holders) -> Holders:
    return answer.holders if isinstance(answer, Placement) else answer


def survival(holders: Holders) -> float:
    """Return the chance to survive m lost nodes, where every shard has m holders."""
    sets = math.comb(len(holders), len(holders[0]))
    return float(1 - len({frozenset(kept) for kept in holders}) / sets)


def _most(holders: Holders) -> int:
    return max(sum(node in kept for kept in holders) for node in range(len(holders)))


def _nodes(positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"node-{position}" for position in positions)


def _named(positions: Sequence[int]) -> str:
    names = _nodes(positions)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} at once"


PLACEMENT: Final = Attacked(
    name="placement",
    scope=f"up to {MOST_NODES} nodes and {MOST_REPLICAS} replicas, as many nodes lost as replicas",
    read=read,
    fault=fault,
    figures=figures,
)
"""The stage."""
