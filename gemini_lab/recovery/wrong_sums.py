"""Which machine computes wrong: a piece of work computed on several machines, and who differs.

Training is deterministic, so the same work has one answer, to the bit. Every `verify_every`-th
iteration the work of each rank is computed a second time, by a rank of the next machine; where the
two answers differ, by the one after that, too. In what may be concluded from the answers two rules
suffice, and both stand on one assumption: **two machines that compute wrong do not do so in the
same bits**.

1. What two machines say of the same work is right, so whoever says something else is wrong.
2. A machine that says two things of the same work is wrong in one of them.

A machine that neither rule names is not accused. So one wrong machine of three or more is named
after two replays. With two machines only one is that is not wrong in the same way each time, by
rule 2. If several are wrong, some of them may stay suspects, beside right ones that nothing speaks
for.

The root agent ends such a run, or goes on without the machine, from what was verified.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gemini_lab.log.events import WrongSums
from gemini_lab.recovery.plan import VersionId
from gemini_lab.shard.lineage import Lineage

Work = Literal["gradient", "update"]
"""What is computed: a rank's part of the gradients; an optimizer's update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A machine's answer to a piece of work."""

    rank: int  # whose work it was
    node: str  # where it was computed
    digest: int  # A checksum of what came out


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict that some answers allow."""

    wrong: tuple[str, ...] = ()  # nodes that computed wrong, for certain
    # Of these nodes at least one did besides, and which cannot be told.
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # whose work was not the same everywhere

    @property
    def is_clean(self) -> bool:
        """Whether all machines gave the same answers."""
        return not self.ranks

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left open."""
        return not self.suspects


def judge(answers: Iterable[Answer]) -> Verdict:
    """Return the verdict on these answers of any number of replays."""
    said: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for one in answers:
        said[one.rank][one.node].add(one.digest)
    differing = {rank: by_node for rank, by_node in said.items() if len(_digests(by_node)) > 1}
    wrong = {node for by_node in differing.values() for node in _convicted(by_node)}
    suspects = {
        node
        for by_node in differing.values()
        if _is_open(by_node, wrong)
        for node in by_node.keys() - wrong
    }
    return Verdict(
        wrong=tuple(sorted(wrong)),
        suspects=tuple(sorted(suspects)),
        ranks=tuple(sorted(differing)),
    )


def _digests(by_node: Mapping[str, set[int]]) -> set[int]:
    return set().union(*by_node.values())


def _supported(by_node: Mapping[str, set[int]]) -> set[int]:
    """Return the answers that two machines gave."""
    return {
        digest
        for digest in _digests(by_node)
        if sum(digest in given for given in by_node.values()) > 1
    }


def _convicted(by_node: Mapping[str, set[int]]) -> set[str]:
    """Return the nodes that are wrong by the answers to one piece of work."""
    contradicted = {node for node, given in by_node.items() if len(given) > 1}
    right = _supported(by_node)
    if len(right) != 1:  # with more than one, machines are wrong in the same bits: no telling
        return contradicted
    return contradicted | {node for node, given in by_node.items() if given != right}


def _is_open(by_node: Mapping[str, set[int]], wrong: set[str]) -> bool:
    """Return whether nodes that are not known to be wrong still contradict one another."""
    others = {node: given for node, given in by_node.items() if node not in wrong}
    return len(_digests(others)) > 1


def shifts(nodes: int) -> tuple[int, ...]:
    """Return by how many machines work moves in each replay, the later ones if answers differ.

    Args:
        nodes: Machines of the job.
    """
    if nodes == 1:
        return (0,)  # finds what does not repeat
    return (1, 0) if nodes == 2 else (1, 2)


def left_by(said: WrongSums, *, run: int) -> VersionId:
    """Return what is left behind if training goes back to the newest verified version."""
    lineage = Lineage(run=run, epoch=said.epoch, rewinds=said.rewinds)
    return VersionId(version=said.version, lineage=lineage)
