"""Lab 07: the slowest link that sends a third copy for free."""

from collections.abc import Callable

from gemini_lab_course.verdict import need, number


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
