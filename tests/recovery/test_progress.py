"""How far the ranks are: counted as they say it, the same as if all were asked each time."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.recovery.progress import Progress, Slowest

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1)


@given(first=st.dictionaries(st.integers(0, 4), st.integers(0, 6)), steps=STEPS)
def test_the_least_number_is_that_of_all_ranks_after_every_step(first, steps):
    slowest, known = Slowest(first), dict(first)
    for rank, number in steps:
        slowest.note(rank, number)
        known[rank] = number
        assert slowest.number == min(known.values())
        assert len(slowest) == len(known)


def test_an_iteration_is_done_when_the_last_rank_has_finished_it():
    progress = Progress()
    progress.restart(range(3), iteration=4)
    for rank in (2, 0):
        progress.note(rank, 5, duration_s=1.0)
        assert progress.done == 4
    progress.note(1, 5, duration_s=1.0)
    assert progress.done == 5
