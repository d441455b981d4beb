"""Iterations that are done again: what is the same, what differs first, and what that points to."""

import math
from collections.abc import Mapping

import pytest

from gemini_lab.log.events import Diverged, Inputs, Iteration, IterationBegun, Number
from gemini_lab.recovery.repeats import MOST_SAID, Repeats, Said

FIRST = Inputs(batch="a", random={"torch": "r"}, learning_rate=0.1)
VALUES: Mapping[str, Number] = {"loss": 2.5, "grad_norm": 0.5}


def begun(number: int, *, epoch: int = 1, rank: int = 0, inputs: Inputs = FIRST) -> IterationBegun:
    return IterationBegun(rank=rank, epoch=epoch, iteration=number, inputs=inputs)


def done(
    number: int,
    *,
    epoch: int = 1,
    rank: int = 0,
    values: Mapping[str, Number] = VALUES,
    restored: bool = False,
) -> Iteration:
    return Iteration(
        rank=rank,
        epoch=epoch,
        iteration=number,
        duration_s=1.0,
        waited_s=0.0,
        values=dict(values),
        restored=restored,
    )


def whole(number: int, *, inputs: Inputs = FIRST, **more) -> list[Said]:
    """An iteration from its first forward pass to its end."""
    where = {name: more[name] for name in ("epoch", "rank") if name in more}
    return [begun(number, inputs=inputs, **where), done(number, **more)]


def told(repeats: Repeats, *said: Said) -> list[Diverged | None]:
    return [repeats.take(one) for one in said]


def again(before: list[Said], after: list[Said]) -> Diverged | None:
    """What is said of the second account, whichever of its parts shows it."""
    repeats = Repeats()
    assert set(told(repeats, *before)) == {None}
    found = [one for one in told(repeats, *after) if one is not None]
    assert len(found) <= 1
    return found[0] if found else None


def test_an_iteration_that_is_done_again_as_it_was_is_compared_and_not_remarked_on():
    repeats = Repeats()
    assert set(told(repeats, *whole(3), *whole(3, epoch=2))) == {None}
    assert repeats.compared == {2: 1}


def test_one_bit_of_a_loss_is_a_difference():
    values = {**VALUES, "loss": math.nextafter(2.5, 3.0)}
    found = again(whole(3), whole(3, epoch=2, values=values))
    assert (found.iteration, found.rank, found.epoch) == (3, 0, 2)
    assert (found.differs, found.before, found.after) == ("loss", "2.5", "2.5000000000000004")
    assert "deterministic" in found.cause


@pytest.mark.parametrize("value", ["nan", -0.0, 0.0, "inf"])
def test_a_loss_that_is_the_same_oddity_twice_is_the_same(value):
    values = {"loss": value}
    assert again(whole(3, values=values), whole(3, epoch=2, values=values)) is None


def test_zeros_of_another_sign_differ():
    found = again(whole(3, values={"loss": 0.0}), whole(3, epoch=2, values={"loss": -0.0}))
    assert found.differs == "loss"


@pytest.mark.parametrize(
    ("inputs", "differs", "points_to"),
    [
        (Inputs(batch="b", random={"torch": "x"}, learning_rate=0.2), "batch", "data="),
        (Inputs(batch="a", random={"torch": "x"}, learning_rate=0.2), "random", "dropout"),
        (Inputs(batch="a", random={"torch": "r"}, learning_rate=0.2), "learning_rate", "scheduler"),
        (FIRST, "loss", "weights"),
    ],
)
def test_what_an_iteration_began_with_tells_why_its_loss_differs(inputs, differs, points_to):
    values = {**VALUES, "loss": 9.0}
    found = again(whole(3), whole(3, epoch=2, values=values, inputs=inputs))
    assert found.differs == differs
    assert points_to in found.cause


@pytest.mark.parametrize("values", [VALUES, {"grad_norm": 0.5}], ids=["loss", "norm"])
def test_random_numbers_that_change_nothing_are_no_difference_but_a_learning_rate_is(values):
    other = Inputs(batch="b", random={"torch": "x"}, learning_rate=0.1)
    assert again(whole(3, values=values), whole(3, epoch=2, values=values, inputs=other)) is None
    other = Inputs(batch="a", random={"torch": "r"}, learning_rate=0.2)
    found = again(whole(3, values=values), whole(3, epoch=2, values=values, inputs=other))
    assert found.differs == "learning_rate"


def test_a_gradient_norm_shows_what_no_loss_does():
    found = again([done(3, values={"grad_norm": 0.5})], [done(3, epoch=2, values={"grad_norm": 1})])
    assert found.differs == "grad_norm"
    assert "does not say with what" in found.cause


def test_an_iteration_that_had_only_begun_is_compared_with_what_it_began():
    """A failure right after a version is whole: nothing that ended is done again."""
    for inputs, differs in ((FIRST, None), (Inputs(batch="b", random={"torch": "r"}), "batch")):
        repeats = Repeats()
        before = told(repeats, *whole(3), begun(4), done(3, epoch=2, restored=True))
        assert set(before) == {None}
        found, *rest = told(repeats, *whole(4, epoch=2, inputs=inputs))
        assert (found and found.differs) == differs
        assert rest == [None]
        assert repeats.compared == {2: 1}


def test_a_loss_that_is_logged_after_the_step_is_waited_for_and_compared():
    repeats = Repeats()
    early = {"grad_norm": 0.5}
    random = Inputs(batch="a", random={"torch": "x"}, learning_rate=0.1)
    said = [*whole(3, values=early), done(3), *whole(3, epoch=2, values=early, inputs=random)]
    assert set(told(repeats, *said)) == {None}
    assert repeats.take(done(3, epoch=2, values={**early, "loss": 9.0})).differs == "random"


def test_a_speed_or_a_time_is_not_compared():
    before = whole(3, values={**VALUES, "tokens_per_s": 5.0})
    assert again(before, whole(3, epoch=2, values={**VALUES, "tokens_per_s": 6.0})) is None


def test_a_number_that_is_not_the_next_one_is_a_difference():
    repeats = Repeats()
    found = told(repeats, done(3, epoch=2, restored=True), done(1, epoch=2))[1]
    assert (found.differs, found.before, found.after) == ("order", "4", "1")


def test_words_that_a_broken_connection_lost_are_no_iterations_that_were_left_out():
    repeats = Repeats()
    told(repeats, *whole(1, rank=0), *whole(1, rank=1))
    repeats.skip([1, 7])
    assert told(repeats, *whole(5, rank=1), *whole(6, rank=1)) == [None] * 4
    assert told(repeats, done(8, rank=1))[0].differs == "order"
    assert told(repeats, done(5, rank=0))[0].differs == "order"


def test_of_each_rank_the_first_difference_of_a_start_is_said_and_of_a_few_ranks_only():
    repeats = Repeats()
    found = []
    for epoch, loss in ((1, 1.0), (2, 2.0), (3, 3.0)):
        for number in (5, 6):
            for rank in range(2 * MOST_SAID):
                said = whole(number, epoch=epoch, rank=rank, values={"loss": loss})
                found += told(repeats, *said)
    listed = [(one.epoch, one.rank, one.iteration) for one in found if one is not None]
    assert listed == [(epoch, rank, 5) for epoch in (2, 3) for rank in range(MOST_SAID)]


def test_what_arrives_late_from_replaced_workers_is_not_compared():
    repeats = Repeats()
    assert told(repeats, done(3, epoch=2), done(3, values={"loss": 9.0})) == [None, None]
    other = Inputs(batch="b", random={})
    assert told(repeats, begun(4, epoch=2), begun(4, inputs=other)) == [None, None]
    assert set(told(repeats, *whole(4, epoch=3))) == {None}


def test_what_others_remember_is_compared_with_too():
    """A root agent that was just elected has heard nothing itself."""
    repeats = Repeats()
    repeats.learn([*whole(3), *whole(4), begun(5)])
    assert set(told(repeats, *whole(3, epoch=2))) == {None}
    assert repeats.take(done(4, epoch=2, values={"loss": 9.0})).differs == "loss"
    assert repeats.compared == {2: 2}


def test_what_is_remembered_of_an_older_try_does_not_replace_a_newer_one():
    repeats = Repeats()
    repeats.take(done(3, epoch=2))
    repeats.learn([done(3, epoch=1, values={"loss": 9.0})])
    assert repeats.take(done(3, epoch=3)) is None


def test_a_version_tells_what_nobody_alive_has_heard():
    """The node that ended iteration 3 died before it could say so."""
    repeats = Repeats()
    told(repeats, begun(3), done(3, epoch=2, restored=True))
    assert repeats.take(done(3, epoch=3, values={"loss": 9.0})).differs == "loss"


def of_ranks(ranks: int, batch: str) -> Inputs:
    return Inputs(batch=batch, random={"torch": "r"}, learning_rate=0.1, ranks=ranks)


def test_ranks_of_another_number_are_not_compared():
    """Three go on from a version of four that only the persistent tier had, as a new root hears."""
    four, three = of_ranks(4, "a"), of_ranks(3, "b")
    repeats = Repeats()
    remembered = [*whole(43, inputs=four), *whole(44, inputs=four)]
    repeats.learn(remembered)
    repeats.restart(42, epoch=1, rewinds=0)
    other = {"loss": 9.0, "grad_norm": 0.6}
    assert set(told(repeats, *whole(43, epoch=2, inputs=three, values=other))) == {None}
    repeats.learn(remembered)
    repeats.restart(42, epoch=1, rewinds=0)
    assert set(told(repeats, *whole(43, epoch=3, inputs=three, values=other))) == {None}
    assert set(told(repeats, *whole(44, epoch=3, inputs=three, values=other))) == {None}
    assert repeats.compared == {3: 1}
    found = told(repeats, *whole(43, epoch=4, inputs=of_ranks(3, "c")))
    assert [one and one.differs for one in found] == [None, "batch"]


def unseeded(numpy: str, torch: str = "r") -> Inputs:
    return Inputs(batch="a", random={"numpy": numpy, "torch": torch}, learning_rate=0.1)


def test_a_generator_that_nobody_seeds_counts_for_nothing_once_that_was_seen():
    """A job begins anew, as all memory was lost, and then goes on from a version of that start."""
    repeats = Repeats()
    before = [*whole(1, inputs=unseeded("x")), begun(2, inputs=unseeded("x"))]
    told(repeats, *before)
    repeats.restart(None, epoch=0, rewinds=0)
    assert set(told(repeats, *whole(1, epoch=2, inputs=unseeded("y")))) == {None}
    repeats.learn(before)  # by who was there
    repeats.restart(1, epoch=2, rewinds=0)
    assert repeats.take(begun(2, epoch=3, inputs=unseeded("y"))) is None
    repeats.restart(1, epoch=2, rewinds=0)
    found = repeats.take(begun(2, epoch=4, inputs=unseeded("z", torch="s")))
    assert found.before == "torch r"


def test_a_start_from_the_beginning_need_not_begin_in_the_same_random_state():
    repeats = Repeats()
    told(repeats, begun(1, inputs=unseeded("x")))
    repeats.restart(None, epoch=0, rewinds=0)
    assert repeats.take(begun(1, epoch=2, inputs=unseeded("y"))) is None


def test_a_generator_that_is_felt_is_named_though_it_was_not_felt_before():
    repeats = Repeats()
    told(repeats, *whole(1, inputs=unseeded("x")), *whole(1, epoch=2, inputs=unseeded("y")))
    told(repeats, *whole(2, epoch=2, inputs=unseeded("y")))
    told(repeats, begun(2, epoch=3, inputs=unseeded("z")))
    assert repeats.take(done(2, epoch=3, values={**VALUES, "loss": 9.0})).differs == "random"


def test_the_newest_iterations_are_kept_however_far_back_training_begins_again():
    repeats = Repeats(newest=2)
    for epoch in (1, 2):
        for number in (1, 2, 3, 4, 5):
            told(repeats, *whole(number, epoch=epoch))
    assert repeats.compared == {2: 2}
