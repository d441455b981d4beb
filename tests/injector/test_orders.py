"""Claims about who is told what when something is to break."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.injector import (
    BitFlip,
    Cast,
    LinkCut,
    NodeLoss,
    NodesLoss,
    RackLoss,
    RootLoss,
    StoreFull,
    WorkerCrash,
    WrongSums,
    orders,
)
from gemini_lab.injector.orders import Action

CAST = Cast(
    members=["node-0", "node-4", "node-2"],
    root="node-2",
    workers_per_node=2,
    standbys=["node-5"],
    racks={"a": ["node-0", "node-1"], "b": ["node-4", "node-2"]},
)


def _told(failure):
    return [(order.node, order.action) for order in orders(failure, CAST, seed=9)]


def test_a_rank_is_struck_on_the_node_that_runs_it_now():
    assert _told(WorkerCrash("rank-3")) == [("node-4", Action(kind="worker_crash", rank=3, seed=9))]


def test_a_node_leaves_open_which_of_its_workers_is_struck():
    assert _told(WorkerCrash("node-4")) == [("node-4", Action(kind="worker_crash", seed=9))]


def test_the_root_is_wherever_it_is_now():
    assert _told(RootLoss()) == [("node-2", Action(kind="node_loss"))]


def test_nodes_meant_twice_are_lost_once():
    both = NodesLoss(("root", "rank-5", "node-0"))

    assert [node for node, _ in _told(both)] == ["node-2", "node-0"]


def test_of_a_rack_only_the_nodes_that_are_left_are_lost():
    assert [node for node, _ in _told(RackLoss("a"))] == ["node-0"]


def test_both_ends_of_two_nodes_link_cut_it_and_a_lone_node_cuts_its_own_to_the_root():
    assert _told(LinkCut("rank-1", to="node-2")) == [
        ("node-0", Action(kind="link_cut", others=(4, 5))),
        ("node-2", Action(kind="link_cut", others=(0, 1))),
    ]
    assert _told(LinkCut("node-4")) == [("node-4", Action(kind="link_cut", seed=9))]


def test_wrong_sums_have_a_seed_of_their_own_or_the_scenarios():
    struck = Action(kind="wrong_sums", rank=3, where="activation", lasts=True, seed=9)
    assert _told(WrongSums("rank-3", "activation")) == [("node-4", struck)]
    ((_, once),) = _told(WrongSums("node-0", lasts=False, seed=4))
    assert (once.lasts, once.seed) == (False, 4)


def test_a_flipped_bit_follows_the_scenarios_seed():
    assert _told(BitFlip("node-0", 1)) == [("node-0", Action(kind="bit_flip", shard=1, seed=9))]


def test_a_shard_that_no_rank_has_is_refused_and_not_reported_later():
    with pytest.raises(ConfigError, match="no shard 1000000000 is there; shards go from 0 to 5"):
        _told(BitFlip("rank-0", 10**9))


def test_a_full_store_is_full_for_every_node():
    assert [node for node, _ in _told(StoreFull())] == ["node-0", "node-4", "node-2", "node-5"]


@pytest.mark.parametrize("failure", [NodeLoss("node-9"), WorkerCrash("rank-6"), RackLoss("c")])
def test_what_is_not_there_cannot_break(failure):
    with pytest.raises(ConfigError, match=r"is there|runs"):
        orders(failure, CAST)
