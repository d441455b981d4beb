"""Lab 09: which state lives where, and what a version keeps of it."""

from collections.abc import Callable, Mapping, Sequence

from gemini_lab.report.recovery import Recovery
from gemini_lab.units import MIB, format_bytes
from gemini_lab_course.attacks import compared, withstood
from gemini_lab_course.holdings import KINDS, Held, in_letters, letters_of, pieces_of
from gemini_lab_course.verdict import WrongAnswerError, another_kind, given, need

SMALL_BYTES = 2 * MIB
"""A version has room for small state, too: counters, generators, the data's position."""


def exercise_1(layout: object, *, train: Callable[[], Sequence[Held]]) -> str:
    """Judge which ranks hold the same by what a run's ranks told.

    Args:
        layout: The student's: for each kind of state a letter for each rank.
        train: Trains, and gives what the ranks held.

    Raises:
        WrongAnswerError: It is no such dictionary, or the log has something else.
    """
    words = 'a dictionary such as {"weights": "AABB", ...}'
    letters = given(layout, dict, name="layout", words=words)
    for kind in KINDS:
        need(kind in letters, f"`layout` says nothing of the {kind}")
        if not isinstance(letters[kind], str):
            raise another_kind(letters[kind], name=f'layout["{kind}"]', words="letters: a text")
        if "?" in letters[kind]:
            raise WrongAnswerError(f"no answer yet: `layout` has a `?` for the {kind}")
    ranks = train()
    count = len(ranks)
    for kind in KINDS:
        mine = len(letters[kind])
        need(mine == count, f"of the {kind}, {mine} ranks have a letter, and {count} train")
    wrong = [kind for kind in KINDS if in_letters(letters[kind]) != letters_of(ranks, kind)]
    need(
        not wrong,
        f"the log has something else for {' and '.join(wrong)}",
        hint="Which ranks compute on the same samples? And which of the axes cut a weight?",
    )
    return "right: " + ", ".join(f"{kind} {letters_of(ranks, kind)}" for kind in KINDS)


def exercise_2(
    divide: object,
    *,
    held: Mapping[str, Sequence[Held]],
    recovered: Mapping[str, Recovery],
) -> str:
    """Judge a division by attacking it, and by the versions of real runs.

    Args:
        divide: The student's.
        held: For each run what its ranks told.
        recovered: For each run its recovery, with a receipt for each rank's shard.

    Raises:
        WrongAnswerError: It is no function, there is a counterexample, or a log has other sizes.
    """
    result = withstood(divide, name="divide", stage="division", words="a function of `held`")
    assert callable(divide)
    for way, ranks in held.items():
        answer = divide(held=pieces_of(ranks, "weights", "moments"))
        for receipt in recovered[way].receipts:
            mine_bytes = sum(answer[receipt.shard].values())
            need(
                0 <= receipt.size_bytes - mine_bytes <= SMALL_BYTES,
                f"under {way} rank {receipt.shard} keeps {format_bytes(receipt.size_bytes)} by the "
                f"log, and {format_bytes(mine_bytes)} by yours",
            )
    runs = f"and the logs of {len(held)} runs have the same, but for {format_bytes(SMALL_BYTES)}"
    return f"right: {result.words}; {runs}\n{compared(result)}"
