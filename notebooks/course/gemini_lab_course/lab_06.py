"""Lab 06: how often to checkpoint into a fast store, and how many standbys."""

from collections.abc import Callable

from gemini_lab.simulator import Outcome
from gemini_lab_course.attacks.outcome import counted
from gemini_lab_course.verdict import need, whole_number


def exercise_1(iterations: object, *, every: Callable[[int], Outcome]) -> str:
    """Judge an interval by simulation: within one point of the best effective ratio.

    Args:
        iterations: The student's.
        every: The outcome with a checkpoint after every so many iterations.

    Raises:
        WrongAnswerError: It is no whole number from 1 on, or another interval does much better.
    """
    count = whole_number(iterations, name="iterations")
    need(count >= 1, f"there is no checkpoint every {count} iterations; 1 is the least")
    yours = every(count).effective_ratio
    best = max(every(each).effective_ratio for each in (4, 8, 12, 16, 20, 24))
    need(
        yours > best - 0.01,
        f"{yours:.1%} with {count}; over a point more is possible",
        hint="Try a few with `every`. Rare ones lose progress, frequent ones stall training.",
    )
    return f"right: every {count} iterations, {yours:.1%} of the time counts (simulated)"


def exercise_2(enough: object, *, waiting: Callable[[int], float], nodes: int = 1000) -> str:
    """Judge the smallest number of standbys with which little time is spent waiting.

    Args:
        enough: The student's.
        waiting: The share of the time that is spent waiting with so many standbys.
        nodes: Machines in the cluster.

    Raises:
        WrongAnswerError: It is no whole number, is too small, or is not the smallest.
    """
    count = whole_number(enough, name="enough")
    need(0 <= count <= nodes, f"between 0 and {nodes} standbys can wait, not {count}")
    share = waiting(count)
    hint = "A lost machine is replaced within minutes. How many die within the same minutes?"
    is_few = f"with {counted(count, 'standby')}, {share:.2%} of the time is spent waiting"
    need(share < 0.001, is_few, hint=hint)
    less = waiting(count - 1) if count else 1.0
    need(less >= 0.001, f"{count} are enough, but so are fewer", hint=hint)
    return f"right: {count}, waiting {share:.4%} of the time (simulated); {less:.2%} with less"
