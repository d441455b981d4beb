"""Lab 07: the slowest link and the fewest standbys for the reader's cluster."""

from collections.abc import Callable

from gemini_lab_course.verdict import need, number, whole_number


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
    hint = "It is free on one side of the answer and costs on the other: halve what is between."
    cost_s = delay_s(rate)
    costs = f"{rate:.4g} Gbit/s make an iteration {cost_s:.2f} s longer"
    need(cost_s < free_s, costs, hint=hint)
    is_fast = f"{rate:.4g} Gbit/s are free, but so is a slower link"
    need(delay_s(0.9 * rate) >= free_s, is_fast, hint=hint)
    return f"right: {rate:.0f} Gbit/s (model)"


def exercise_2(
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
    hint = "Try `with_standbys` from 0 on: each one more helps less than the one before."
    is_less = f"{ratio:.2%} with {count}, and shrinking reaches {wanted:.2%}"
    need(ratio >= wanted, is_less, hint=hint)
    fewer = reached(count - 1) if count else 0.0
    need(fewer < wanted, f"{count} are enough, but so are fewer", hint=hint)
    return f"right: {count}, {ratio:.2%} against {wanted:.2%} (simulated)"
