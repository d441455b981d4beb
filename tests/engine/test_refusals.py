"""What `protect` refuses, it refuses on all ranks: none is left waiting for one that has ended."""

import pytest

RANKS, WHO = 2, 1
CAUSES = {
    "a graph that is static": ("UnsupportedError", "leave static_graph out"),
    "models in DDP over other ranks": ("UnsupportedError", "wrap all of them alike"),
    "a weight without memory": ("UnsupportedError", "materialised before `protect`"),
    "an optimizer of other weights": ("ConfigError", "make the optimizer of model.parameters()"),
    "settings that are none": ("ConfigError", 'give a dict such as {"replicas": 2}'),
    "a schedule without a state": ("ConfigError", "give one with `state_dict`"),
    "data without a position": ("ConfigError", "not an iterator"),
    "an object without a state": ("ConfigError", "thing"),
    "an optimizer with state beside its state": (
        "UnsupportedError",
        "keep them in optimizer.state",
    ),
    "an optimizer that needs a closure": ("UnsupportedError", "that needs no closure"),
    "a stage whose optimizer needs a closure": ("UnsupportedError", "that needs no closure"),
    "a cut weight whose optimizer needs a closure": ("UnsupportedError", "that needs no closure"),
    "a sharded weight whose optimizer needs a closure": (
        "UnsupportedError",
        "that needs no closure",
    ),
    "a setting that is unknown": ("ConfigError", "replica"),
    "partitions with state beside their state": (
        "UnsupportedError",
        "keep them in optimizer.state",
    ),
    "an optimizer that compresses": ("UnsupportedError", "use Adam, AdamW or Lamb"),
}
"""What one rank alone has; the others end with its reason, and the way out."""
OF_ALL = {
    "other tensors than are shared": ("UnsupportedError", "state for every weight"),
    "a setting that other ranks have otherwise": ("ConfigError", "give the same ones on each rank"),
    "a pipeline that is to verify": ("ConfigError", "leave it out"),
    "a pipeline that is to send gradients": ("ConfigError", "leave it out"),
    "an engine beside a plain model": ("UnsupportedError", "give the same configuration"),
    "another stage of ZeRO": ("UnsupportedError", "give the same configuration"),
}
"""What shows to all ranks where they compare."""
ASKED = ["LookupError", "asked for memory"]
"""How a call ends that is not refused."""


@pytest.fixture(scope="module")
def found(server, tmp_path_factory):
    """How `protect` ended in each case, on each rank of one start."""
    folder = tmp_path_factory.mktemp("refusals")
    return server.run(folder, refusals=True, who=WHO, ranks=RANKS)


@pytest.mark.parametrize(("name", "kind", "words"), [(n, *told) for n, told in CAUSES.items()])
def test_what_one_rank_alone_has_is_refused_by_all(found, name, kind, words):
    ends = [rank[name][0] for rank in found]
    assert all(end[0] == kind and words in end[1] for end in ends)
    first = f"rank {WHO} refuses, so all ranks end: "
    own = ends[WHO][1]
    assert [end[1] for end in ends] == [first + own if n != WHO else own for n in range(RANKS)]


@pytest.mark.parametrize(("name", "kind", "words"), [(n, *told) for n, told in OF_ALL.items()])
def test_what_ranks_have_otherwise_than_others_is_refused_by_all(found, name, kind, words):
    ends = [rank[name][0] for rank in found]
    assert ends == [ends[0]] * RANKS
    assert ends[0][0] == kind
    assert words in ends[0][1]


def test_ranks_without_a_reason_go_on_to_their_memory(found):
    """So no case is refused for what all of them have."""
    assert [rank["nothing to refuse"] for rank in found] == [[ASKED]] * RANKS
    assert {*found[0]} == {*CAUSES, *OF_ALL, "nothing to refuse"}


@pytest.mark.parametrize("name", [*CAUSES, *OF_ALL])
def test_a_script_that_catches_a_refusal_can_call_it_again(found, name):
    assert [rank[name][1] for rank in found] == [ASKED] * RANKS
