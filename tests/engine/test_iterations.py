"""What a worker says of its iterations: once, and once more when something is logged afterwards."""

import pytest

from gemini_lab.engine.iteration_log import IterationLog, iteration_in
from gemini_lab.log.events import Inputs, Iteration, IterationBegun
from gemini_lab.shard.codec import decode_framed, encode_framed


class Clock:
    """Goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now_s = -1.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def said():
    return []


@pytest.fixture
def log(said):
    return IterationLog(said.append, clock=Clock())


def test_what_is_logged_before_the_step_is_said_with_its_iteration(log, said) -> None:
    log.begin_forward()
    log.add({"loss": 2})
    log.end(1, waited_s=0.25)
    expected = Iteration(iteration=1, duration_s=1.0, waited_s=0.25, values={"loss": 2.0})
    assert said == [expected]


def test_what_is_logged_after_the_step_has_the_iteration_said_again(log, said) -> None:
    log.begin_forward()
    log.add({"loss": 2.0})
    log.end(1, waited_s=0.0)
    log.add({"norm": 0.5})
    assert [event.values for event in said] == [{"loss": 2.0}, {"loss": 2.0, "norm": 0.5}]
    assert said[1].duration_s == said[0].duration_s


def test_what_is_logged_once_the_next_forward_pass_began_is_the_next_iterations(log, said) -> None:
    log.begin_forward()
    log.end(1, waited_s=0.0)
    log.begin_forward()
    log.add({"loss": 1.0})
    assert len(said) == 1
    log.end(2, waited_s=0.0)
    assert [event.values for event in said] == [{}, {"loss": 1.0}]


def test_what_is_logged_before_any_iteration_belongs_to_the_first(log, said) -> None:
    log.add({"loss": 3.0})
    assert said == []
    log.end(1, waited_s=0.0)
    assert said[0].value("loss") == 3.0


def test_a_version_carries_the_newest_iteration_to_the_bit(log, said) -> None:
    """Also values that JSON has no number for."""
    log.begin_forward()
    log.add({"loss": 0.1 + 0.2, "norm": float("nan"), "scale": float("inf")})
    log.end(7, waited_s=0.5)
    carried = decode_framed(encode_framed(log.to_small()))
    assert iteration_in(carried) == said[0]
    assert iteration_in(carried).value("loss").hex() == (0.1 + 0.2).hex()


def test_the_version_from_before_the_first_iteration_carries_none(log) -> None:
    assert iteration_in(decode_framed(encode_framed(log.to_small()))) is None


def test_after_a_restore_the_log_goes_on_from_the_versions_iteration(said) -> None:
    newest = Iteration(iteration=4, duration_s=1.0, waited_s=0.0, values={"loss": 2.0})
    log = IterationLog(said.append, newest=newest, clock=Clock())
    assert iteration_in(log.to_small()) == newest
    log.begin_forward()
    log.end(5, waited_s=0.0)
    assert [event.iteration for event in said] == [5]


class Begun:
    """What an iteration began with, on a device that comes to it when it likes."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self.is_ready = is_ready

    def read(self) -> Inputs:
        return Inputs(batch="b", random={"torch": "r"})


BEGUN = IterationBegun(iteration=1, inputs=Inputs(batch="b", random={"torch": "r"}))


def test_with_what_an_iteration_begins_is_said_at_once_and_for_the_first_micro_batch(log, said):
    log.begin_with(1, Begun)
    assert said == [BEGUN]
    log.begin_with(1, lambda: pytest.fail("the first micro-batch counts"))
    log.end(1, waited_s=0.0)
    log.begin_with(2, Begun)
    assert [event.iteration for event in said] == [1, 1, 2]


@pytest.mark.parametrize("arrives", ["when a loss is logged", "never before the end"])
def test_a_device_that_is_behind_is_not_waited_for_until_the_iteration_ends(log, said, arrives):
    begun = Begun(is_ready=False)
    log.begin_with(1, lambda: begun)
    assert said == []
    begun.is_ready = arrives == "when a loss is logged"
    log.add({"loss": 1.0})
    assert said == ([BEGUN] if begun.is_ready else [])
    log.end(1, waited_s=0.0)
    assert said[0] == BEGUN
    assert [event.kind for event in said] == ["iteration_begun", "iteration"]


def test_what_is_measured_stands_beside_what_is_logged_which_has_the_last_word(said):
    log = IterationLog(said.append, measure=lambda: {"grad_norm": 2.0}, clock=Clock())
    log.add({"grad_norm": 1.0})
    log.end(1, waited_s=0.0)
    log.end(2, waited_s=0.0)
    assert [event.value("grad_norm") for event in said] == [1.0, 2.0]
