"""A persistent tier that takes nothing for long: it is tried ever more rarely, and told of once."""

from dataclasses import replace

from gemini_lab.lab.progress_bars import describe
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.messages import Commit, Committed, Persist, Persisted, SaveFailed
from gemini_lab.recovery.protocol import AgentJoined, Requested
from gemini_lab.recovery.requests import SaveVersion
from gemini_lab.recovery.saver import LONGEST_PAUSE_S

from .story import Story

TIER = "memory://runs"


def train(story: Story, iterations: int) -> None:
    """Train on, an iteration a second, while the tier takes nothing."""
    for _ in range(iterations):
        story.iterate(story.root.state.reached.iteration + 1)
        story.tick(story.now_s)
        if (version := on_its_way(story)) is not None:
            failed = SaveFailed(epoch=story.epoch, version=version, reason="no space left")
            story.say("node-2", failed)


def on_its_way(story: Story) -> int | None:
    over = {one.version for one in story.of(events.PersistFailed)}
    over |= {one.version for one in story.of(events.PersistFinished)}
    return next((v for v in begun(story) if v not in over), None)


def begun(story: Story) -> list[int]:
    return [one.version for one in story.of(events.PersistStarted)]


def arrive(story: Story, version: int) -> None:
    made = story.lineage
    for node in story.members():
        story.say(node, Persisted(epoch=story.epoch, version=version, records=[], lineage=made))
    story.say("node-0", Committed(epoch=story.epoch, version=version, size_bytes=4))


def told(story: Story) -> list[str]:
    """The lines that whoever watches the run sees of its tier."""
    entries = [Entry(at_s=0.0, node="node-0", event=event) for event in story.events]
    lines = [describe(one) for one in entries]
    return [line for line in lines if line is not None and ("tier" in line or TIER in line)]


def test_a_broken_tier_is_tried_ever_more_rarely_and_told_of_once():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    train(story, 1000)
    assert begun(story)[:6] == [2, 3, 4, 6, 10, 18]
    assert begun(story)[-1] - begun(story)[-2] == LONGEST_PAUSE_S
    assert told(story) == ["    persistent tier: no space left"]
    assert [one.in_a_row for one in story.of(events.PersistFailed)] == [*range(1, 13)]


def test_once_it_works_again_that_is_told_and_every_version_is_saved():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    train(story, 8)
    while on_its_way(story) is None:
        story.iterate(story.root.state.reached.iteration + 1)
        story.tick(story.now_s)
    arrive(story, begun(story)[-1])
    assert told(story)[1:] == [
        "    memory://runs takes versions again: 10 is there, after 4 that did not arrive"
    ]
    for _ in range(3):
        story.iterate(story.root.state.reached.iteration + 1)
        story.tick(story.now_s)
        arrive(story, begun(story)[-1])
    assert begun(story)[-4:] == [10, 11, 12, 13]


def test_a_tier_that_failed_for_a_moment_need_not_wait_for_the_next_time():
    story = Story().start(1, persistent_url=TIER, persist_every_s=3 * 3600.0)
    story.now_s = 3 * 3600.0
    train(story, 4)
    assert begun(story) == [3, 4, 5]


def test_a_person_who_wants_a_version_saved_waits_for_no_pause():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    train(story, 40)
    tries = len(begun(story))
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    train(story, 3)
    assert len(begun(story)) == tries + 3


def test_the_last_version_is_tried_and_it_is_said_that_it_is_not_there():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    train(story, 40)
    tries = len(begun(story))
    for rank in range(4):
        story.finish(rank)
    while story.root.state.phase == "finishing":
        failed = SaveFailed(epoch=story.epoch, version=40, reason="no space left")
        story.say("node-2", failed)
        story.tick(story.now_s + 0.25)
    assert begun(story)[tries:] == [40] * 5
    assert told(story)[1:] == [
        "    version 40, the run's last one, is not in memory://runs: no space left"
    ]


def test_the_last_version_arrives_where_the_tier_is_back():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    train(story, 40)
    for rank in range(4):
        story.finish(rank)
    arrive(story, 40)
    assert story.root.state.phase == "done"
    assert "after 7 that did not arrive" in told(story)[-1]


def orders(story: Story, kind: type) -> list[tuple[str, int]]:
    """To whom this was sent, and for which version."""
    return [(one.to, one.order.version) for one in story.orders if isinstance(one.order, kind)]


def test_a_save_whose_words_were_lost_is_asked_for_again_when_the_connection_is_back():
    """The answer of one node, and then that to the commit, were sent into links that broke."""
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    story.iterate(1)
    story.tick(story.now_s)
    (version,) = begun(story)
    for node in story.members()[:3]:
        said = Persisted(epoch=story.epoch, version=version, records=[], lineage=story.lineage)
        story.say(node, said)
    before = orders(story, Persist)
    relink(story, "node-0")  # it has answered
    assert orders(story, Persist) == before
    relink(story, "node-3")
    assert orders(story, Persist) == [*before, ("node-3", version)]
    said = Persisted(epoch=story.epoch, version=version, records=[], lineage=story.lineage)
    story.say("node-3", said)
    assert orders(story, Commit) == [("node-3", version)]
    relink(story, "node-3")
    assert orders(story, Commit) == [("node-3", version)] * 2
    story.say("node-3", Committed(epoch=story.epoch, version=version, size_bytes=4))
    assert story.root.state.tier.saved == version
    relink(story, "node-3")
    assert len(orders(story, Commit)) == 2


def test_the_last_version_is_saved_though_the_words_on_it_were_lost():
    story = Story().start(0, persistent_url=TIER, persist_every_s=3600.0)
    story.iterate(1, 2)
    for rank in range(4):
        story.finish(rank)
    assert story.root.state.phase == "finishing"
    relink(story, "node-2")
    assert orders(story, Persist)[-1] == ("node-2", 2)
    arrive(story, 2)
    assert story.root.state.phase == "done"


def test_the_last_version_is_saved_though_all_scripts_ended_while_no_root_agent_was_there():
    """The next one hears of the ends with the agents' greetings, and of the versions after them."""
    story = Story().start(3, persistent_url=TIER)
    for node, joined in [*story.root.living.items()]:
        ranks = story.root.state.seats.ranks_on(node)
        story.root.living[node] = replace(joined, epoch=story.epoch, workers=ranks)
    story.next_root()
    story.say_complete(3)
    for rank in range(4):
        story.finish(rank)
    assert begun(story) == [3]
    arrive(story, 3)
    (ended,) = story.of(events.RunFinished)
    assert ended == events.RunFinished(iteration=3)


def test_the_last_version_is_saved_though_all_connections_broke_as_the_scripts_ended():
    story = Story().start(0, persistent_url=TIER, persist_every_iterations=1)
    story.iterate(1)
    story.tick(story.now_s)
    story.iterate(2)
    arrive(story, 2)
    for node in story.members():  # what was said of version 3, and of the ends, is lost
        relink(story, node)
    story.say_complete(3)
    for rank in range(4):
        story.finish(rank)
    arrive(story, 3)
    assert story.of(events.RunFinished) == [events.RunFinished(iteration=3)]
    assert story.root.state.tier.saved == 3


def relink(story: Story, node: str) -> None:
    """A connection broke, and is back at once; the node's workers went on meanwhile."""
    workers = story.root.state.seats.ranks_on(node)
    joined = AgentJoined(at_s=story.now_s, node=node, epoch=story.epoch, workers=workers)
    story.do(story.root.handle(joined))
