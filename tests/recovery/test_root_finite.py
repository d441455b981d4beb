"""What the root agent does when a loss is NaN: good versions stay in the persistent tier."""

import math

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.log import events
from gemini_lab.recovery.guard import LossWatch
from gemini_lab.recovery.messages import Committed, Persisted
from gemini_lab.recovery.protocol import Requested
from gemini_lab.recovery.requests import SaveVersion
from gemini_lab.settings import Settings

from .story import Story

TIER = {"persistent_url": "memory://runs", "persist_every_iterations": 1}


def done(epoch: int, iteration: int, rank: int = 0, **values: float) -> events.Iteration:
    return events.Iteration(
        rank=rank, epoch=epoch, iteration=iteration, duration_s=1.0, waited_s=0.0, values=values
    )


def say(story: Story, iteration: int, **values: float) -> Story:
    """Rank 0 ends an iteration with these values, all with none; then time passes."""
    node = story.members()[0]
    story.event(node, done(story.epoch, iteration, **values))
    story.iterate(iteration)
    story.tick(story.now_s + 0.1)
    return story


def saved(story: Story) -> list[int]:
    return [event.version for event in story.of(events.PersistStarted)]


def given_up(story: Story) -> list[int]:
    return [event.version for event in story.of(events.PersistFailed)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_no_version_is_saved_while_a_loss_is_no_number(loss):
    story = Story().start(0, **TIER)
    for iteration in (1, 2, 3):
        say(story, iteration, loss=loss)
    (said,) = story.of(events.LossNotFinite)
    assert (said.iteration, said.loss, said.is_held) == (1, str(loss), True)
    assert saved(story) == []
    assert story.root.state.phase == "running"
    say(story, 4, loss=2.5)
    (again,) = story.of(events.LossFinite)
    assert again.iteration == 4
    assert saved(story) == [5]


@pytest.mark.parametrize(("bad", "lost"), [(2, [2]), (3, [2]), (4, [])])
def test_a_version_on_its_way_whose_weights_made_such_a_loss_is_given_up(bad, lost):
    story = say(Story().start(0, **TIER), 1)
    assert saved(story) == [2]  # with these weights iteration 3 computes
    story.event(story.members()[0], done(story.epoch, bad, loss=math.nan))
    assert given_up(story) == lost


def test_the_last_version_of_a_run_that_ends_with_nan_is_not_saved_over_a_good_one():
    story = say(Story().start(0, persistent_url="memory://runs"), 1, loss=math.nan)
    for rank in range(4):
        story.finish(rank)
    assert story.root.state.phase == "done"
    assert saved(story) == []


def test_another_root_agent_saves_no_such_version_either_though_it_has_heard_of_no_loss():
    """A script may log its loss rarely, and each version that is saved removes an older one."""
    story = say(Story().start(0, **TIER), 1, loss=math.nan)
    story.next_root()
    say(story, 2)
    assert saved(story) == []
    say(story, 3, loss=2.5)
    assert saved(story) == [4]


def test_a_version_that_a_user_wanted_is_not_saved_again_by_another_root_agent():
    story = Story().start(1, persistent_url="memory://runs")
    ask, version = SaveVersion(), 2
    story.request(ask, number=5)
    story.tick(story.now_s + 0.1)
    assert saved(story) == [version]
    story.iterate(version)
    for node in story.members():
        said = Persisted(epoch=story.epoch, version=version, records=[], lineage=story.lineage)
        story.say(node, said)
    story.say("node-0", Committed(epoch=story.epoch, version=version, size_bytes=4))
    for number, times in ((5, 1), (6, 2)):
        story.next_root()
        story.request(ask, number=number)  # the store still has it
        story.go_on()
        story.tick(story.now_s + 0.1)
        assert len(saved(story)) == times


def test_a_run_that_is_told_to_stop_there_ends_with_the_reason():
    story = say(Story().start(0, on_not_finite="stop"), 1, loss=math.nan)
    (ending,) = story.of(events.RunFailed)
    assert ending.cause == "not_finite"
    assert "rank 0, iteration 1: the loss is nan" in ending.reason
    assert '"on_not_finite": "stop"' in ending.reason


def test_a_run_that_is_only_told_to_warn_saves_as_before():
    story = say(Story().start(0, on_not_finite="warn", **TIER), 1, loss=math.nan)
    (said,) = story.of(events.LossNotFinite)
    assert not said.is_held
    assert saved(story) == [2]


def test_a_person_who_asks_for_a_version_gets_it():
    story = say(Story().start(0, persistent_url="memory://runs"), 1, loss=math.nan)
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s + 0.1)
    assert saved(story) == [2]


def test_an_infinite_gradient_norm_is_no_news_for_fp16_looks_for_its_scale_so():
    story = say(Story().start(0, **TIER), 1, loss=2.5, grad_norm=math.inf)
    assert story.of(events.LossNotFinite) == []
    assert saved(story) == [2]


def test_it_is_over_when_it_is_over_on_every_rank():
    watch = LossWatch()
    assert watch.take(done(1, 7, rank=0, loss=math.nan))
    assert not watch.take(done(1, 7, rank=1, loss=math.nan))
    assert not watch.take(done(1, 8, rank=1, loss=1.0))
    assert not watch.take(done(1, 8, rank=2))
    assert watch.since == 7
    assert watch.take(done(1, 9, rank=0, loss=1.0))
    assert watch.since is None


def test_a_setting_that_is_none_of_the_three_is_refused():
    with pytest.raises(ConfigError, match="on_not_finite must be one of"):
        Settings(on_not_finite="skip")
