"""What one rank's script imports, all nodes import ahead: standbys too."""

from gemini_lab.recovery.messages import Learned, Prepare

from .story import Story


def prepared(story: Story) -> dict[str, list[str]]:
    """What each node was last told to import."""
    return {sent.to: sent.order.modules for sent in story.orders if isinstance(sent.order, Prepare)}


def learned(story: Story) -> Learned:
    return Learned(rank=0, epoch=story.epoch, modules=["transformers"], environment={"A": "1"})


def test_every_node_is_told_and_those_that_come_later():
    story = Story(nodes=5).start()
    story.say("node-0", learned(story))
    assert prepared(story) == {f"node-{n}": ["transformers"] for n in range(5)}
    story.join("node-9")
    assert prepared(story)["node-9"] == ["transformers"]


def test_what_an_earlier_epoch_learned_is_not_passed_on():
    story = Story().start()
    old = learned(story)
    story.exit(1, -9)
    story.say("node-0", old)
    assert prepared(story) == {}
