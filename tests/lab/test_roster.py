"""Who of a lab's nodes is there, by what root agents say."""

import pytest

from gemini_lab.lab.roster import Roster, why_not_ready
from gemini_lab.log.events import Network, NodeJoined, NodeLost, NodeReady


def test_a_deposed_roots_word_comes_too_late():
    roster = Roster()
    assert [roster.is_heard(term) for term in (1, 2, None, 1, 2)] == [True, True, True, False, True]


def test_a_node_that_is_lost_is_silent_until_it_joins_again():
    roster = Roster()
    roster.follow(NodeLost(name="node-1", cause="lease"))
    assert roster.silent == {"node-1"}
    roster.follow(NodeJoined(name="node-1"))
    assert roster.silent == set()


def test_what_is_wrong_with_networks_is_remarked_once_a_run():
    roster = Roster()
    slow = Network(address="10.0.1.2", interface="eth0", bytes_per_s=125e6, faster=("ib0",))
    roster.follow(NodeReady(name="node-1", import_s=1.0, network=slow))
    assert len([*roster.remarks()]) == 1
    assert not [*roster.remarks()]
    roster.begin_run()
    assert len([*roster.remarks()]) == 1


@pytest.mark.parametrize(
    ("living", "said"),
    [
        (("a", "b", "c"), "1 of 3 nodes are ready after 9 s: b, c still import; wait again"),
        (("a", "b"), "after 9 s: b still imports, 1 is gone, and nobody has come; wait again"),
        (("a",), "after 9 s: 2 are gone, and nobody has come; wait again"),
    ],
)
def test_who_waits_for_nodes_in_vain_hears_what_they_lack_and_what_can_be_done(living, said):
    told = why_not_ready(living, {"a"}, 3, waited_s=9.0)
    assert said in told
    assert "timeout_s" in told
