"""Who computes wrong is told from what machines said of the same work, and from nothing else."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.recovery.wrong_sums import Answer, Verdict, judge, shifts

RIGHT = 7


def answers(nodes: int, computes: Callable[[int, int], int], shift: int) -> Iterator[Answer]:
    """What each of `nodes` machines says of the work of the one so many before it."""
    for place in range(nodes):
        rank = (place - shift) % nodes
        yield Answer(rank=rank, node=f"node-{place}", digest=computes(place, rank))


def verdict_of(nodes: int, computes: Callable[[int, int], int]) -> tuple[Verdict, int]:
    """What comes out, and after how many replays, if as many are made as are needed."""
    said = [*answers(nodes, computes, 0)]
    for replays, shift in enumerate(shifts(nodes), start=1):
        said += answers(nodes, computes, shift)
        if judge(said).is_clean:
            return Verdict(), replays
    return judge(said), len(shifts(nodes))


def broken(drawn: random.Random, bad: set[int], *, lasts: bool) -> Callable[[int, int], int]:
    """Machines of which some compute wrong, each in bits of its own: each time, or at times."""
    wrong: dict[tuple[int, int], int] = {}

    def compute(place: int, rank: int) -> int:
        if place not in bad:
            return RIGHT
        if lasts:
            return wrong.setdefault((place, rank), drawn.getrandbits(60) + RIGHT + 1)
        return drawn.choice([RIGHT, drawn.getrandbits(60) + RIGHT + 1])

    return compute


@pytest.mark.parametrize("lasts", [True, False], ids=["each time", "at times"])
def test_one_wrong_machine_of_three_or_more_is_named_within_two_replays(lasts):
    """A hundred machines drawn: of those that were wrong at times, some were not wrong here."""
    for seed in range(100):
        drawn = random.Random(seed)
        nodes = drawn.randint(3, 12)
        bad = drawn.randrange(nodes)
        said: list[int] = []
        computes = broken(drawn, {bad}, lasts=lasts)

        def heard(place: int, rank: int, computes=computes, said=said) -> int:
            said.append(computes(place, rank))
            return said[-1]

        verdict, replays = verdict_of(nodes, heard)
        was_wrong = any(digest != RIGHT for digest in said)
        assert verdict.wrong == ((f"node-{bad}",) if was_wrong else ())
        assert verdict.is_sure
        assert replays <= 2
        assert was_wrong or not lasts


def test_a_thousand_clean_replays_accuse_nobody():
    for seed in range(1000):
        nodes = random.Random(seed).randint(1, 12)
        verdict, replays = verdict_of(nodes, lambda _, rank: RIGHT + rank)
        assert verdict == Verdict()
        assert replays == 1


@given(
    nodes=st.integers(2, 9),
    seed=st.integers(0, 2**32),
    lasts=st.booleans(),
    data=st.data(),
)
def test_however_many_are_wrong_no_right_machine_is_accused(nodes, seed, lasts, data):
    bad = data.draw(st.sets(st.integers(0, nodes - 1)))
    verdict, _ = verdict_of(nodes, broken(random.Random(seed), bad, lasts=lasts))
    assert {*verdict.wrong} <= {f"node-{place}" for place in bad}
    assert not {*verdict.wrong} & {*verdict.suspects}
    assert bad or verdict.is_clean


@given(nodes=st.integers(2, 9), seed=st.integers(0, 2**32), data=st.data())
def test_what_stays_open_is_among_those_of_whom_one_at_least_is_wrong(nodes, seed, data):
    bad = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1))
    verdict, _ = verdict_of(nodes, broken(random.Random(seed), bad, lasts=True))
    assert verdict.wrong or verdict.suspects
    if not verdict.is_sure:
        assert {*verdict.suspects} & {f"node-{place}" for place in bad}


def test_two_machines_that_each_stand_by_their_word_cannot_be_told_apart():
    verdict, replays = verdict_of(2, lambda place, _: RIGHT + place)
    assert verdict == Verdict(suspects=("node-0", "node-1"), ranks=(0, 1))
    assert replays == 2


def test_of_two_machines_the_one_that_contradicts_itself_is_wrong():
    times: list[int] = []

    def computes(_: int, rank: int) -> int:
        times.append(rank)
        return RIGHT + (len(times) == 1)  # the very first time

    verdict, _ = verdict_of(2, computes)
    assert verdict == Verdict(wrong=("node-0",), ranks=(0,))


def test_two_that_are_wrong_in_the_same_bits_accuse_nobody_where_two_others_disagree():
    """The assumption does not hold then, and with three answers it could not be seen."""
    said = [Answer(rank=0, node=f"node-{place}", digest=RIGHT + (place < 2)) for place in range(4)]
    assert judge(said).wrong == ()
    assert judge(said).suspects == ("node-0", "node-1", "node-2", "node-3")
