"""Copies that follow the risk, told as stories: what fails often is protected better."""

from gemini_lab.log import events
from gemini_lab.recovery.messages import StartWorkers
from gemini_lab.recovery.protocol import AgentJoined

from .story import Story

RACKS = {"node-0": "a", "node-1": "b", "node-2": "a", "node-3": "b", "node-4": "a", "node-5": "b"}


def kill(story: Story, node: str, times: int) -> None:
    """A node's worker is killed so often; each time training goes on."""
    for _ in range(times):
        story.exit(story.members().index(node), -9)
        story.go_on()


def placed(story: Story) -> list[events.ReplicasPlaced]:
    return [event for event in story.events if isinstance(event, events.ReplicasPlaced)]


def holders(story: Story) -> tuple[tuple[int, ...], ...]:
    return story.root.state.seats.holders.holders


def test_a_machine_that_fails_again_and_again_has_its_shard_kept_once_more():
    """Its restart takes the copies along: nobody stops for that."""
    story = Story().start(replicas="auto")
    before = holders(story)
    assert {len(kept) for kept in before} == {2}
    kill(story, "node-2", 8)
    after = holders(story)
    assert len(after[2]) == 3
    assert all(set(kept) >= set(old) for kept, old in zip(after, before, strict=True))
    change = placed(story)[0]
    assert "node-2 failed" in change.reason
    assert change.loss_chance < 0.001 < change.loss_chance_then
    assert (2, "node-2") not in change.added
    assert not story.told_to_hold()


def test_only_copies_that_differ_are_moved():
    story = Story().start(replicas="auto")
    kill(story, "node-2", 8)
    moves = {
        (one.shard, one.receiver)
        for told in story.of(events.RecoveryPlanned)
        for one in told.transfers
    }
    assert moves == {move for change in placed(story) for move in change.added}


def test_failures_of_the_script_itself_say_nothing_of_a_machine():
    story = Story().start(replicas="auto", survival_target=0.9999)
    before = holders(story)
    for _ in range(3):
        story.exit(2, 1)
        story.go_on()
    assert holders(story) == before
    assert not placed(story)


def test_a_fixed_number_of_replicas_stays_what_it_is():
    story = Story().start(replicas=2)
    kill(story, "node-2", 8)
    assert {len(kept) for kept in holders(story)} == {2}
    assert not placed(story)


def test_what_was_seen_outlives_a_root_agent():
    story = Story().start(replicas="auto")
    kill(story, "node-2", 3)
    seen = story.root.state.copies.risk.nodes["node-2"].failures
    story.next_root()
    assert seen == story.root.state.copies.risk.nodes["node-2"].failures == 3
    kill(story, "node-2", 5)
    assert len(holders(story)[2]) == 3


def test_shards_that_come_to_be_in_one_rack_get_a_copy_elsewhere_with_the_same_restart():
    """The only standby is in the rack of the node whose shards it is to keep."""
    story = Story(nodes=5).start(rack_of=RACKS, replicas="auto", adapt_pause_s=100.0)
    story.lose("node-1")
    assert story.members() == ["node-0", "node-4", "node-2", "node-3"]
    story.go_on()
    racks = [{RACKS[story.members()[p]] for p in kept} for kept in holders(story)]
    assert all(len(each) == 2 for each in racks)
    (change,) = placed(story)
    assert not change.dropped  # until a version is whole in the new places
    assert "in one rack" in change.reason


def test_copies_that_are_too_many_go_only_when_those_in_the_new_places_are_whole():
    story = Story(nodes=5).start(rack_of=RACKS, replicas="auto", adapt_pause_s=100.0)
    story.lose("node-1")
    story.go_on()
    between = holders(story)
    last = story.root.state.reached.iteration
    story.tick(story.now_s + 50)
    assert not story.told_to_hold()
    story.tick(story.now_s + 101)
    assert story.told_to_hold() == story.members()
    story.hold()
    story.go_on()
    done = story.of(events.RecoveryFinished)[-1]
    assert (done.lost_iterations, done.version) == (0, last)
    assert story.of(events.RecoveryStarted)[-1].cause == events.REPLICAS
    assert not story.plan().transfers
    after = holders(story)
    assert all(set(kept) <= set(old) for kept, old in zip(after, between, strict=True))
    assert sum(map(len, after)) < sum(map(len, between))
    story.tick(story.now_s + 1000)
    story.tick(story.now_s + 1000)
    assert len(story.told_to_hold()) == 4  # it does not flap


def test_a_node_lost_while_ranks_stop_is_recovered_from_what_memory_has():
    story = Story(nodes=6).start(rack_of=RACKS, replicas="auto", adapt_pause_s=100.0)
    story.root.living.pop("node-5")
    story.lose("node-1")
    story.go_on()
    story.tick(story.now_s + 101)
    assert story.told_to_hold()
    last = story.root.state.reached.iteration
    story.join("node-5")
    story.lose("node-2")
    story.go_on()
    assert story.of(events.RecoveryFinished)[-1].version == last
    assert story.plan().tier == "memory"
    assert not story.root.state.copies.is_replacing


def test_a_target_that_memory_cannot_reach_is_named_once_and_training_goes_on():
    """Each node has room for two shards, its own and one more."""
    story = Story().start(replicas="auto", replica_memory="4 B")
    kill(story, "node-2", 8)
    story.tick(story.now_s + 40)
    story.tick(story.now_s + 80)
    assert {len(kept) for kept in holders(story)} == {2}
    (short,) = story.of(events.ReplicasShort)
    assert "no memory for more copies" in short.reason
    assert not story.told_to_hold()


def test_a_replacement_with_less_memory_keeps_fewer_copies():
    story = Story(nodes=4).start(replicas="auto", replica_memory="8 B, node-4: 2 B")
    at = [p for p, kept in enumerate(holders(story)) if 1 in kept]
    assert len(at) == 2
    story.lose("node-1")
    story.join("node-4")
    assert story.members()[1] == "node-4"
    kept = holders(story)
    assert [p for p, each in enumerate(kept) if 1 in each] == [1]
    assert all(len(each) >= 2 for each in kept)


def test_workers_choose_by_what_was_learned_of_the_machines():
    story = Story()
    story.start(replicas="auto")
    starts = [sent.order for sent in story.orders if isinstance(sent.order, StartWorkers)]
    assert starts[0].seats.risk.nodes.keys() >= {"node-0", "node-3"}
    story.exit(0, -9)
    last = [sent.order for sent in story.orders if isinstance(sent.order, StartWorkers)][-1]
    assert not last.seats.risk.nodes  # they know who keeps what by then


def test_nodes_of_one_machine_share_its_memory():
    story = Story(nodes=0)
    for number in range(5):
        machine = "here" if number < 4 else "there"
        joined = AgentJoined(at_s=0.0, node=f"node-{number}", memory_bytes=80, machine=machine)
        story.copies.setdefault(joined.node, [])
        story.do(story.root.handle(joined))
    story.start(replicas="auto")
    starts = [sent.order for sent in story.orders if isinstance(sent.order, StartWorkers)]
    assert starts[0].seats.risk.memory_bytes == {
        **{f"node-{number}": 10 for number in range(4)},
        "node-4": 40,
    }
