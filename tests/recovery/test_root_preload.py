"""What the launcher has named all nodes preload once training runs: standbys too."""

from gemini_lab.recovery.messages import Preload

from .story import Story

NAMED = {"preload": "transformers, gemini_lab.adapters.transformers"}


def preloaded(story: Story) -> dict[str, list[str]]:
    """What each node was last told to import."""
    return {sent.to: sent.order.modules for sent in story.orders if isinstance(sent.order, Preload)}


def test_every_node_is_told_once_training_runs_and_those_that_come_later():
    story = Story(nodes=6).start(**NAMED)
    both = ["transformers", "gemini_lab.adapters.transformers"]
    assert preloaded(story) == {f"node-{n}": both for n in range(6)}
    story.join("node-9")
    assert preloaded(story)["node-9"] == both


def test_where_nothing_is_named_nobody_is_told():
    story = Story().start()
    story.join("node-9")
    assert preloaded(story) == {}


def test_a_recovery_tells_them_again_as_a_parent_may_be_another_one_now():
    story = Story().start(**NAMED)
    story.orders.clear()
    story.exit(1, -9)
    story.go_on()
    assert set(preloaded(story)) == set(story.root.living)
