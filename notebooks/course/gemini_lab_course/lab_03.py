"""Lab 03: placements that do better than the planner's, and a planner that is attacked."""

from itertools import combinations

from gemini_lab.placement import (
    Placement,
    best_possible,
    enumerated_probability,
    plan_placement,
)
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.verdict import given, need, number

_PLACEMENT = "a Placement"


def exercise_1(five: object) -> str:
    """Judge a placement of five shards with as few fatal pairs as can be.

    Raises:
        WrongAnswerError: It is none, of another size, or more pairs are fatal.
    """
    placement = given(five, Placement, name="five", words=_PLACEMENT)
    need(
        (placement.nodes, placement.replicas) == (5, 2),
        f"five nodes and two replicas are asked for, not {placement}",
    )
    copies = {len(kept) for kept in placement.holders}
    need(copies == {2}, "two copies of each shard are asked for, not more")
    fatal = [pair for pair in combinations(range(5), 2) if not placement.survives(pair)]
    chance = enumerated_probability(placement, 2)
    need(
        chance == best_possible(5, 2),
        f"{len(fatal)} pairs are fatal: {fatal}",
        hint="A pair is fatal if it holds all copies of a shard. Which shards could share a pair?",
        shows=placement,
    )
    usual = plan_placement(nodes=5, replicas=2).loads
    return (
        f"right: {len(fatal)} pairs are fatal: {fatal}. The price: a node keeps up to "
        f"{max(placement.loads)} shards, and {max(usual)} with Algorithm 1"
    )


def exercise_2(deficit: object) -> str:
    """Judge how much worse a ring is than groups, by trying all sets of four lost machines.

    Raises:
        WrongAnswerError: It is no share, or a thousandth off.
    """
    share = number(deficit, name="deficit", words="a number between 0 and 1")
    need(0 <= share <= 1, f"`deficit` has to be a share between 0 and 1, and yours is {share:g}")
    need(round(share, 3) != 0.667, "that is what the bounds say, and both are below the truth")
    ring, groups = (
        enumerated_probability(plan_placement(nodes=16, strategy=strategy), 4)
        for strategy in ("ring", "group")
    )
    truth = float(1 - ring / groups)
    need(
        abs(share - truth) < 1e-3,
        f"not {share:g}: all 1,820 sets of four machines were tried",
        hint="`chances.recovery_probability` counts exactly. Compare both placements with it.",
    )
    return f"right: {share:.1%} worse, and all 1,820 sets of four were tried"


def exercise_3(tough: object) -> str:
    """Judge a placement that survives any two of four racks, with as few copies as can be.

    Raises:
        WrongAnswerError: It is none, some pair of racks is fatal, or copies can be spared.
    """
    placement = given(tough, Placement, name="tough", words=_PLACEMENT)
    need(placement.nodes == 16, f"sixteen machines are asked for, not {placement.nodes}")
    lost = {pair: [n for n in range(16) if n // 4 in pair] for pair in combinations(range(4), 2)}
    fatal = [pair for pair, nodes in lost.items() if not placement.survives(nodes)]
    need(
        not fatal,
        f"{len(fatal)} of the 6 pairs of racks are fatal: {fatal}",
        hint="In how many racks does a shard need a holder, so that any two may go?",
        shows=placement,
    )
    # Two racks can go, so every shard needs a holder in a third one.
    copies = sum(placement.loads)
    need(copies == 3 * 16, f"it survives, with {copies} copies in all; it can be done with fewer")
    return f"right: {placement}, {copies} copies in all"


def exercise_4(planner: object) -> str:
    """Judge a planner of placements by attacking it.

    Raises:
        WrongAnswerError: It is no function, or there is a counterexample.
    """
    words = "a function of `nodes` and `replicas`"
    result = withstood(planner, name="planner", stage="placement", words=words)
    return f"right: {result.words}\n{compared(result)}"
