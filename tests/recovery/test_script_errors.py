"""A script's own exception is not a machine's failure: it is not met with ever new starts."""

from collections.abc import Sequence
from itertools import product

import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.recovery.faults import MAX_BARREN, cause_of, own_error, reason_to_give_up
from gemini_lab.recovery.messages import ScriptError, WorkerEnded
from gemini_lab.recovery.protocol import JobSubmitted

from .story import Story, job

NO_NCCL = "Distributed package doesn't have NCCL built in"
NO_GPU = "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"


def raise_in(story: Story, rank: int, error: str, text: str, *, iteration: int) -> None:
    """A rank's script ends with an exception after one more iteration of all."""
    story.iterate(iteration)
    output = f"Traceback (most recent call last):\n{error}: {text}"
    story.exit(rank, 1, output, ScriptError(error=error, text=text))
    if story.root.state.phase == "starting":
        story.protect()


def test_the_same_error_over_and_over_ends_the_run_although_it_makes_progress():
    story = Story().start(iterations=3)
    for iteration in range(4, 12):
        if story.root.state.phase != "failed":
            raise_in(story, 0, "ValueError", f"bad row {iteration}", iteration=iteration)
    (ending,) = story.of(events.RunFailed)
    assert len(story.of(events.RecoveryStarted)) == 4
    assert "raised the same error, 5 times in this run" in ending.reason
    assert "ValueError: bad row 8" in ending.reason
    assert "max_same_errors" in ending.reason
    assert ending.output[-1] == "ValueError: bad row 8"


def test_other_errors_and_those_of_lost_machines_are_met_with_a_new_start():
    story = Story().start(iterations=3)
    said = [("RuntimeError", "Connection closed by peer [10.0.0.1]:22"), ("OSError", "disk")]
    for iteration in range(4, 12):
        error, text = said[iteration % 2] if iteration != 9 else ("KeyError", "'x'")
        if iteration < 11:
            raise_in(story, 0, error, text, iteration=iteration)
    assert story.of(events.RunFailed) == []


def test_a_setting_allows_as_many_as_one_likes():
    story = Story().start(iterations=3, max_same_errors=None)
    for iteration in range(4, 12):
        raise_in(story, 0, "ValueError", "bad row", iteration=iteration)
    assert story.of(events.RunFailed) == []


def fail_soon(story: Story, ranks: Sequence[int], code: int, *, versions: int = 1) -> None:
    """Every start makes so many versions, and then one of these ranks ends without a word."""
    for rank in ranks:
        if story.root.state.phase == "starting":
            story.protect()
        for _ in range(versions):
            story.iterate(story.root.state.reached.iteration + 1)
        story.exit(rank, code, "loading plugin\ncannot go on")


@pytest.mark.parametrize("code", [3, -9])
def test_a_worker_that_ends_soon_after_each_start_is_not_started_for_ever(code):
    story = Story().start(iterations=0)
    fail_soon(story, [0, 1] * 5, code)
    (ending,) = story.of(events.RunFailed)
    assert len(story.of(events.RecoveryStarted)) == MAX_BARREN - 1
    assert f"{MAX_BARREN} starts in a row failed" in ending.reason
    assert f"rank 1 on node-1, exit status {code}: cannot go on" in ending.reason
    assert "look for what ends workers there" in ending.reason
    assert ending.cause == ("script" if code > 0 else "machines")


def test_a_start_that_gets_further_ends_the_count():
    story = Story().start(iterations=3)
    for _ in range(3):
        fail_soon(story, [0, 1] * 4, 3)
        fail_soon(story, [0], 3, versions=2)
    assert story.of(events.RunFailed) == []


def test_machines_that_go_between_do_not_make_a_long_start_a_short_one():
    story = Story().start(iterations=3)
    for _ in range(12):
        fail_soon(story, [0], 3)
        story.protect()
        for _ in range(5):
            story.iterate(story.root.state.reached.iteration + 1)
        story.lose("node-2")
        story.join("node-2")
    assert story.of(events.RunFailed) == []


def fail_without_versions(story: Story, *, rank: int, iterations: int) -> None:
    for iteration, (each, node) in product(range(1, iterations + 1), enumerate(story.members())):
        done = events.Iteration(
            rank=each, epoch=story.epoch, iteration=iteration, duration_s=1.0, waited_s=0.0
        )
        story.event(node, done)
    story.exit(rank, 3)
    if story.root.state.phase == "starting":
        story.protect()


def test_iterations_count_where_no_version_is_kept():
    story = Story().start(iterations=0, scheme="none")
    for _ in range(2 * MAX_BARREN):
        fail_without_versions(story, rank=0, iterations=2)
    assert story.of(events.RunFailed) == []
    for rank in [0, 1] * 5:
        fail_without_versions(story, rank=rank, iterations=1)
    assert len(story.of(events.RunFailed)) == 1


def test_a_machine_on_which_all_of_them_failed_is_left_for_another_one():
    story = Story().start(iterations=0)
    fail_soon(story, [2] * MAX_BARREN, -7)
    assert story.of(events.RunFailed) == []
    assert [one.name for one in story.of(events.NodeExcluded)] == ["node-2"]


@pytest.mark.parametrize(
    ("code", "error", "is_own"),
    [
        (1, ScriptError(error="ValueError", text="row 7"), True),
        (-9, None, False),
        (3, None, False),
        (1, ScriptError(error="DistBackendError", text="something"), False),
        (1, ScriptError(error="RuntimeError", text="[gloo/pair.cc:54] Read error"), False),
        (1, ScriptError(error="RuntimeError", text=NO_NCCL), True),
        (1, ScriptError(error="ValueError", text=NO_GPU), False),
        (1, ScriptError(error="BrokenPipeError", text="[Errno 32] Broken pipe"), False),
    ],
)
def test_what_another_machines_loss_may_have_raised_is_not_the_scripts_own(code, error, is_own):
    exited = made(WorkerEnded, code=code, error=error)
    assert bool(own_error(exited)) == is_own


def test_a_backend_that_this_torch_lacks_ends_the_run_at_once_with_the_way_out():
    error = ScriptError(error="RuntimeError", text=NO_NCCL)
    exited = made(WorkerEnded, code=1, error=error)
    reason = reason_to_give_up(exited, node="node-0", attempts=1)
    assert NO_NCCL in reason
    assert "gloo on CPUs" in reason
    assert cause_of(exited) == "script"


def test_numbers_do_not_make_another_error():
    said = [ScriptError(error="ValueError", text=f"row {number}") for number in (7, 812)]
    told = {own_error(made(WorkerEnded, code=1, error=e)) for e in said}
    assert told == {"ValueError: row #"}


REFUSED = (
    "usage: train.py [-h] --epochs EPOCHS\ntrain.py: error: the following arguments are required"
)


def test_a_script_that_refuses_its_arguments_ends_the_run_at_once_with_what_it_said():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    story.exit(0, 2, REFUSED, ScriptError(error="SystemExit", text="2"))
    (ending,) = story.of(events.RunFailed)
    assert ending.cause == "script"
    assert ending.reason.endswith(
        "exit status 2: train.py: error: the following arguments are required"
    )
    assert story.of(events.RecoveryStarted) == []


def test_the_same_status_after_iterations_is_met_with_a_new_start():
    story = Story().start(iterations=3)
    story.exit(0, 2, "gone", ScriptError(error="SystemExit", text="2"))
    assert story.of(events.RunFailed) == []
    assert len(story.of(events.RecoveryStarted)) == 1
