"""The ring that a reader plays with shows what the package's own planner places."""

import pytest

pytest.importorskip("anywidget")

from gemini_lab.placement import plan_placement
from gemini_lab_course.play import MOST, planned, play_placement


def test_the_ring_asks_the_planner_again_when_a_slider_moves():
    play = play_placement(nodes=4, replicas=2)
    assert play.ring.holders == [[0, 1], [1, 0], [2, 3], [3, 2]]
    play.ring.strategy = "ring"
    assert play.ring.holders == [[0, 1], [1, 2], [2, 3], [3, 0]]
    play.ring.nodes, play.ring.strategy = 5, "group"
    assert play.placement == plan_placement(nodes=5, replicas=2)


def test_groups_across_racks_outlive_a_rack():
    placement, rack_of = planned(nodes=16, replicas=2, racks=4, layout="racks")
    for rack in range(4):
        assert placement.survives([n for n, one in enumerate(rack_of) if one == rack])


@pytest.mark.parametrize("asked", [(0, 9, 9), (10**9, 10**9, 0), (-5, -5, -5), (3, 4, 4)])
def test_whatever_a_page_sends_can_be_planned(asked):
    for layout in ("group", "ring", "racks", "<b>"):
        nodes, replicas, racks = asked
        placement, rack_of = planned(nodes=nodes, replicas=replicas, racks=racks, layout=layout)
        assert 1 <= placement.nodes == len(rack_of) <= MOST
