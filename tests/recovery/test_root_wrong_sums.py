"""Stories of machines that compute wrong: training goes on without them, from what was verified."""

from dataclasses import replace

import msgspec
import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.recovery.messages import Committed, Disown, KeptCopy, Persist, Persisted
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.planning import make_plan
from gemini_lab.recovery.protocol import AgentJoined, JobSubmitted
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root.ending import DISOWN_LIMIT_S
from gemini_lab.recovery.root_state import RootState
from gemini_lab.shard.lineage import Lineage

from .story import RUN, Story, job


def verifying(iterations: int = 5, *, nodes: int = 5, verified: int = 3, **settings) -> Story:
    """Iterations are done, and the verified version is kept in memory beside the newest ones."""
    story = Story(nodes=nodes).start(iterations, verify_every=3, **settings)
    for kept in story.copies.values():
        shards = {copy.shard for copy in kept}
        kept += [KeptCopy(shard, verified, Lineage(RUN, 1)) for shard in shards]
    return story


def accuse(story: Story, *nodes: str, suspects=(), goes_back=True, version: int = 3) -> None:
    """All ranks say who computes wrong; the epoch may end meanwhile."""
    epoch = story.epoch
    for rank, member in enumerate(story.members()):
        said = accusation(
            *nodes, epoch=epoch, suspects=suspects, goes_back=goes_back, version=version
        )
        story.event(member, msgspec.structs.replace(said, rank=rank))


def accusation(
    *nodes: str, epoch: int, suspects=(), goes_back=True, version: int = 3
) -> events.WrongSums:
    return made(
        events.WrongSums,
        epoch=epoch,
        iteration=6,
        ranks=(2,),
        nodes=nodes,
        suspects=suspects,
        replays=2,
        version=version,
        goes_back=goes_back,
    )


def another_root(story: Story, said: events.WrongSums, *, gone: str | None = None) -> None:
    """The root agent is lost as the ranks speak: only agents know what was said.

    Args:
        story: What there was.
        said: By the ranks.
        gone: The node that the root agent was on; by default a standby that does not come back.
    """
    away = gone or "node-4"
    story.root = RootAgent(state=RootState.from_text(story.states[-1].to_text()), at_s=story.now_s)
    for node in [one for one in story.copies if one != away]:
        ranks = [rank for rank, member in enumerate(story.members()) if member == node]
        story.root.living[node] = AgentJoined(
            at_s=story.now_s,
            node=node,
            epoch=said.epoch,
            workers=ranks,
            wrong_sums=said if ranks else None,
        )
    story.copies.pop(away)
    story.do(story.root.take_over(story.now_s))


def test_a_standby_takes_the_place_of_a_machine_that_computes_wrong():
    story = verifying()
    accuse(story, "node-2")
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    (begun,) = story.of(events.RecoveryStarted)
    assert (begun.cause, begun.lost) == ("wrong_sums", ("node-2",))
    (left,) = story.of(events.NodeExcluded)
    assert left.name == "node-2"
    assert "node-2 computed wrong" in left.reason


def test_training_goes_back_to_the_newest_verified_version_and_not_to_later_ones():
    story = verifying()
    assert max(copy.version for kept in story.copies.values() for copy in kept) == 5
    accuse(story, "node-2")
    assert (story.plan().version, story.plan().tier) == (3, "memory")
    story.go_on(4)
    (end,) = story.of(events.RecoveryFinished)
    assert end.version == 3
    story.exit(1, -9)  # what was left is not come back to later either
    assert story.plan().version == 4


def test_what_a_node_knows_of_another_run_does_not_hide_what_is_left_of_this_one():
    """A standby had ranks in a run before this one, which went back to a version of that number."""
    story = verifying()
    story.left["node-3"] = [VersionId(version=3, lineage=Lineage(RUN + 1, 1))]
    accuse(story, "node-2")
    assert story.plan().version == 3


def test_a_later_version_in_the_persistent_tier_is_not_gone_on_from():
    story = verifying(persistent_url="memory://runs", persist_every_s=None)
    story.persistent = [2, 5]
    for kept in story.copies.values():
        kept[:] = [copy for copy in kept if copy.version != 3]
    accuse(story, "node-2")
    assert story.plan().version == 2


def test_where_no_machine_is_left_the_run_waits_rather_than_use_one_that_computes_wrong():
    story = verifying(nodes=4)
    accuse(story, "node-2")
    assert story.root.state.phase == "waiting"
    assert story.requests[-1].wanted > len(story.root.living)
    story.join("node-7")
    assert story.members() == ["node-0", "node-1", "node-7", "node-3"]


def test_what_only_such_a_machine_has_does_not_keep_a_run_waiting_that_is_short():
    """Its copies count for nothing, also where the number of nodes is chosen by who has what."""
    story = verifying(
        nodes=4, when_short="shrink", shrink_after_s=0.0, persistent_url="memory://runs"
    )
    story.persistent = [2]
    story.lose("node-1")
    accuse(story, "node-0")  # which alone has two of the shards by now
    story.join("node-7")
    assert story.root.state.phase == "starting"
    assert "node-0" not in story.members()
    assert (story.plan().version, story.plan().tier) == (2, "persistent")


def test_it_has_no_ranks_in_the_next_job_either():
    story = verifying()
    accuse(story, "node-2")
    story.do(story.root.handle(JobSubmitted(at_s=story.now_s, order=job())))
    assert "node-2" not in story.members()


def test_another_root_agent_knows_of_it():
    story = verifying()
    accuse(story, "node-2")
    state = RootState.from_text(story.states[-1].to_text())
    assert state.nodes.wrong == ("node-2",)
    plan = make_plan(state, ["node-0", "node-1", "node-2", "node-3"], {})
    assert plan.missing


def test_another_machine_of_its_name_is_not_distrusted():
    story = verifying()
    accuse(story, "node-2")
    story.lose("node-2")
    assert story.root.state.nodes.wrong == ()


@pytest.mark.parametrize(
    ("settings", "nodes", "words"),
    [
        ({"on_wrong_sums": "stop"}, ("node-2",), '"on_wrong_sums": "stop" says'),
        ({}, (), "which of node-1, node-2 computed wrong cannot be told"),
    ],
    ids=["as set", "nobody is named"],
)
def test_the_run_ends_where_it_is_to_or_cannot_tell_who_it_is(settings, nodes, words):
    story = verifying(**settings)
    accuse(story, *nodes, suspects=() if nodes else ("node-1", "node-2"), goes_back=False)
    (end,) = story.of(events.RunFailed)
    assert end.cause == "wrong_sums"
    assert words in end.reason


def test_where_it_is_only_to_be_said_training_goes_on():
    story = verifying(on_wrong_sums="warn")
    accuse(story, "node-2", goes_back=False)
    assert story.root.state.phase == "running"
    assert story.of(events.RecoveryStarted) == []


def test_a_root_that_was_elected_meanwhile_goes_on_without_the_machine():
    """Ranks stand still, and would do so until their patience ends."""
    story = verifying(nodes=6)
    another_root(story, accusation("node-2", epoch=story.epoch))
    assert story.members() == ["node-0", "node-1", "node-5", "node-3"]
    assert story.plan().version == 3
    (begun,) = story.of(events.RecoveryStarted)
    assert (begun.cause, begun.lost) == ("wrong_sums", ("node-2",))


def test_a_root_that_was_elected_meanwhile_ends_the_run_where_it_is_to_stop():
    story = verifying(on_wrong_sums="stop")
    another_root(story, accusation("node-2", epoch=story.epoch, goes_back=False))
    (end,) = story.of(events.RunFailed)
    assert end.cause == "wrong_sums"
    assert story.root.state.phase == "failed"


def test_a_machine_that_computes_wrong_is_not_used_again_where_the_roots_node_is_lost_with_it():
    """Else it would have its ranks back, and training would go on from what it computed."""
    story = verifying(nodes=6)
    said = accusation("node-2", epoch=story.epoch)
    another_root(story, said, gone="node-0")
    assert story.members() == ["node-4", "node-1", "node-5", "node-3"]
    assert story.plan().version == 3
    assert story.of(events.RecoveryStarted)[0].lost == ("node-2", "node-0")


def test_an_agent_whose_word_was_lost_with_its_connection_says_it_again():
    story = verifying()
    said = accusation("node-2", epoch=story.epoch)
    again = AgentJoined(
        at_s=story.now_s,
        node="node-0",
        epoch=story.epoch,
        workers=[0],
        wrong_sums=said,
    )
    story.do(story.root.handle(again))
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    epoch = story.epoch
    story.go_on(4)
    story.do(story.root.handle(replace(again, epoch=epoch, wrong_sums=said)))
    assert story.epoch == epoch  # what was said before that start counts no more


def test_where_it_is_only_to_be_said_another_root_leaves_training_alone():
    story = verifying(on_wrong_sums="warn")
    another_root(story, accusation("node-2", epoch=story.epoch, goes_back=False))
    assert story.root.state.phase == "running"
    assert story.of(events.RecoveryStarted) == []


def test_what_wrong_sums_made_is_not_what_the_same_iterations_are_compared_with():
    """Iterations 4 and 5 come out otherwise on a machine that computes right."""
    story = Story().start(3, verify_every=3)
    for number in (4, 5):
        say(story, number, loss=float(number))
    accuse(story, "node-2")
    story.protect()
    for number in (4, 5):
        say(story, number, loss=number + 0.5)
    assert story.of(events.Diverged) == []


def say(story: Story, iteration: int, *, loss: float) -> None:
    for rank, node in enumerate(story.members()):
        done = events.Iteration(
            rank=rank,
            epoch=story.epoch,
            iteration=iteration,
            duration_s=1.0,
            waited_s=0.0,
            values={"loss": loss},
        )
        story.event(node, done)


def test_a_version_that_is_being_saved_and_is_left_behind_is_given_up():
    story = verifying(persistent_url="memory://runs", persist_every_iterations=1)
    saving = [sent.order for sent in story.orders if isinstance(sent.order, Persist)]
    assert saving
    accuse(story, "node-2")
    assert story.root.run.saver.version is None


TIER = "memory://runs"


def stopped(persistent: list[int], **told) -> Story:
    """A run that ends for wrong sums, of which the tier has these versions."""
    story = verifying(on_wrong_sums="stop", persistent_url=TIER, persist_every_s=None)
    story.persistent = persistent
    for name, value in told.items():
        setattr(story, name, value)
    accuse(story, "node-2", goes_back=False)
    return story


def the_end(story: Story) -> str:
    (end,) = story.of(events.RunFailed)
    return end.reason


def test_who_resumes_from_a_run_that_ended_for_wrong_sums_begins_at_what_was_verified():
    story = stopped([3, 5])
    (order,) = [sent.order for sent in story.orders if isinstance(sent.order, Disown)]
    assert order.left == [VersionId(version=3, lineage=Lineage(RUN, 1))]
    assert "--resume goes on from version 3" in the_end(story)


def test_a_verified_version_that_memory_alone_has_is_saved_before_the_run_ends():
    story = stopped([2, 5])
    assert story.of(events.RunFailed) == []
    orders = {s.to: s.order for s in story.orders if isinstance(s.order, Persist)}
    assert {order.version for order in orders.values()} == {3}
    for node in orders:
        said = Persisted(epoch=story.epoch, version=3, lineage=Lineage(RUN, 1), records=[])
        story.say(node, said)
    story.say("node-3", Committed(epoch=story.epoch, version=3, size_bytes=1))
    assert "--resume goes on from version 3" in the_end(story)


def test_a_tier_that_cannot_be_told_is_spoken_of_and_one_that_does_not_answer():
    assert "could not be told that its versions after 3 are void" in the_end(
        stopped([3, 5], unread="read-only")
    )
    story = stopped([3, 5], deaf={f"node-{number}" for number in range(5)})
    assert story.of(events.RunFailed) == []
    story.tick(story.now_s + DISOWN_LIMIT_S + 1)
    assert "could not be told that its versions after 3 are void" in the_end(story)


def test_a_root_that_is_elected_before_the_tier_knows_tells_it():
    deaf = {f"node-{number}" for number in range(5)}
    story = stopped([3, 5], deaf=deaf)
    story.deaf = set()
    another_root(story, accusation("node-2", epoch=story.epoch - 1, goes_back=False))
    assert "--resume goes on from version 3" in the_end(story)


def test_a_tier_learns_at_once_that_training_went_back():
    """The run may be lost before it has saved a version of the new history."""
    story = Story().start(5, persistent_url=TIER, persist_every_s=None)
    story.go_back(3, from_iteration=5)
    orders = [sent.order for sent in story.orders if isinstance(sent.order, Disown)]
    assert [order.left for order in orders] == [[VersionId(version=3, lineage=Lineage(RUN, 1))]]
