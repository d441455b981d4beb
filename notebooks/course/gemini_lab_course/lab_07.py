"""Lab 07: a link, a placement, standbys and a policy for a cluster of one's own."""

from collections.abc import Callable
from dataclasses import replace

from gemini_lab.placement import Placement
from gemini_lab.simulator import Outcome, Policy
from gemini_lab_course.verdict import given, need, number, whole_number


def exercise_1(slowest: object, *, delay_s: Callable[[float], float], free_s: float) -> str:
    """Judge the slowest link that costs nothing, to within a tenth.

    Args:
        slowest: The student's, in Gbit/s.
        delay_s: How much longer an iteration takes with a link of so many Gbit/s.
        free_s: Less than this counts as nothing.

    Raises:
        WrongAnswerError: It is no positive number, costs something, or is not the slowest.
    """
    rate = number(slowest, name="slowest", words="a number of Gbit/s")
    need(rate > 0, f"a link has a rate above 0, and yours has {rate:g} Gbit/s")
    cost_s = delay_s(rate)
    need(cost_s < free_s, f"{rate:.4g} Gbit/s make an iteration {cost_s:.2f} s longer")
    need(delay_s(0.9 * rate) >= free_s, f"{rate:.4g} Gbit/s are free, but so is a slower link")
    return f"right: {rate:.0f} Gbit/s (model)"


def exercise_2(careful: object, *, plain: Placement, loss: Callable[[Placement], float]) -> str:
    """Judge a placement by its chance of loss: less than half of `plain`'s, with no more load.

    Args:
        careful: The student's.
        plain: What it has to be better than.
        loss: The chance that memory does not suffice.

    Raises:
        WrongAnswerError: It is none, of another size, keeps more, or is not good enough.
    """
    placement = given(careful, Placement, name="careful", words="a Placement")
    need(
        (placement.nodes, placement.replicas) == (plain.nodes, plain.replicas),
        f"{plain.nodes} machines and {plain.replicas} replicas are asked for, not {placement}",
    )
    load = max(placement.loads)
    need(load == max(plain.loads), f"{max(plain.loads)} shards a machine are asked for, not {load}")
    before, after = loss(plain), loss(placement)
    need(after < before / 2, f"a chance of {after:.2g} is not less than half of {before:.2g}")
    return f"right: {after:.2g} instead of {before:.2g} (model), with no byte more"


def exercise_3(
    standbys_needed: object, *, reached: Callable[[int], float], wanted: float, nodes: int
) -> str:
    """Judge the smallest number of standbys that reaches an effective ratio.

    Args:
        standbys_needed: The student's.
        reached: The effective ratio with so many standbys.
        wanted: The ratio to reach.
        nodes: Machines in the cluster.

    Raises:
        WrongAnswerError: It is no whole number, does not reach it, or is not the smallest.
    """
    count = whole_number(standbys_needed, name="standbys_needed")
    need(0 <= count <= nodes, f"between 0 and {nodes} standbys can wait, not {count}")
    ratio = reached(count)
    need(ratio >= wanted, f"{ratio:.2%} with {count}, and shrinking reaches {wanted:.2%}")
    fewer = reached(count - 1) if count else 0.0
    need(fewer < wanted, f"{count} are enough, but so are fewer")
    return f"right: {count}, {ratio:.2%} against {wanted:.2%} (simulated)"


def exercise_4(raw_bytes: object, *, papers: Policy, simulate: Callable[[Policy], Outcome]) -> str:
    """Judge a policy that has nothing to serialise at a failure.

    Args:
        raw_bytes: The student's.
        papers: The paper's.
        simulate: What a year comes to with a policy.

    Raises:
        WrongAnswerError: It is none, changes something else, or is not worth anything.
    """
    policy = given(raw_bytes, Policy, name="raw_bytes", words="a Policy")
    need(policy.name != papers.name, f"your policy needs a name of its own, not {papers.name!r}")
    need(policy.assumptions != papers.assumptions, "say what your policy takes for granted")
    own = ("name", "source", "assumptions", "serialise_s")
    rest = replace(policy, **{field: getattr(papers, field) for field in own})
    need(rest == papers, "your policy differs in more than what it serialises")
    need(policy.serialise_s == 0, f"it serialises for {policy.serialise_s:.4g} s at each failure")
    mine, theirs = (simulate(each).effective_ratio for each in (policy, papers))
    need(mine > theirs, f"its {mine:.3%} of the year are not more than the paper's {theirs:.3%}")
    return f"right: {mine:.3%} instead of {theirs:.3%} of the year (simulated)"
