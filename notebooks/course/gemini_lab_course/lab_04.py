"""Lab 04: the naive scheme's buffer, and a planner of chunks."""

from collections.abc import Callable

from gemini_lab.units import KIB, format_bytes
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.verdict import need, number


def exercise_1(
    smallest_bytes: object, *, is_accepted: Callable[[float], bool], shard_bytes: int
) -> str:
    """Judge the smallest buffer that is accepted, to a KiB.

    Raises:
        WrongAnswerError: It is no number, is refused, or is not the smallest.
    """
    size = number(smallest_bytes, name="smallest_bytes", words="a number of bytes")
    need(size > 0, f"a buffer has a size above 0, and yours has {size:g}")
    hint = "Give room for everything: which of the chunks that come then is the largest?"
    is_small = f"a buffer of {format_bytes(size)} is refused, also with a KiB more"
    need(is_accepted(size + KIB), is_small, hint=hint)
    is_large = f"{format_bytes(size)} are accepted, but so is a KiB less"
    need(not is_accepted(size - KIB), is_large, hint=hint)
    return f"right: {format_bytes(size)}, {size / shard_bytes:.0%} of the shard"


def exercise_2(planner: object) -> str:
    """Judge a planner of chunks by attacking it.

    Raises:
        WrongAnswerError: It is no function, or there is a counterexample.
    """
    words = "a function of `profile` and more"
    result = withstood(planner, name="planner", stage="chunks", words=words)
    return f"right: {result.words}\n{compared(result)}"
