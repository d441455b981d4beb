"""A recovery as a film: what its log says, in order, and nothing of a name's own."""

import re
from dataclasses import replace
from xml.etree.ElementTree import fromstring

import pytest
from gemini_lab_widgets.pictures.film import AFTER_S, LEAST_S, MOST_NODES, film, scenes
from told_runs import recorded

from gemini_lab.log.events import RESIZE
from gemini_lab.report.recovery import Injection, Recovery
from gemini_lab.report.reducer import FOR_REPORT, RunReducer


@pytest.fixture(scope="module")
def recoveries() -> tuple[Recovery, ...]:
    """Of a real run: two lost nodes and two lost workers."""
    reducer = RunReducer(keep=FOR_REPORT)
    for entry in recorded("four_failures"):
        reducer.take(entry)
    return reducer.recoveries.recoveries()


def test_a_recovery_knows_who_sat_where_before_and_afterwards(recoveries):
    seats = [(each.before, each.members) for each in recoveries]
    first, second, third = ("node-0", "node-1"), ("node-0", "node-2"), ("node-3", "node-2")
    assert seats == [(first, second), (second, second), (second, third), (third, third)]


def test_the_film_shows_each_step_in_order_with_its_true_time(recoveries):
    told = recoveries[0]
    names = [scene.name for scene in scenes(told)]
    assert names == ["", "detect", "fence", "inventory", "plan", "start", "retrieve", "warm_up", ""]
    for before, after in zip(scenes(told), scenes(told)[1:], strict=False):
        assert after.start_s == before.end_s
    assert all(one.end_s - one.start_s >= LEAST_S for one in scenes(told)[1:-1])
    drawn = film(told).svg()
    for words in (
        "Recovery 1: node loss on node-1",
        "fencing: 110 ms",
        "node-2 replaces node-1; workers start again",
        "the root agent picks version",
        "shard 1",
    ):
        assert words in drawn
    assert drawn == film(told).svg()
    fromstring(drawn)


def test_the_film_says_of_a_worker_that_hangs_that_it_hangs_and_not_that_it_is_gone(recoveries):
    told = recoveries[1]
    struck = (*told.injections, *told.exits)[0].node
    hangs = Injection(at_s=told.failed_at_s, kind="worker_hang", node=struck, rank=0)
    drawn = film(replace(told, exits=(), injections=(hangs,))).svg()
    assert ">worker hang<" in drawn
    assert "its worker is gone" not in drawn
    assert "died" not in drawn


def test_a_resize_shows_who_comes_and_who_goes_and_calls_nobody_dead(recoveries):
    nodes = ("node-0", "node-1", "node-2")
    for before, after in ((nodes, nodes[:2]), (nodes[:2], nodes)):
        told = replace(recoveries[1], cause=RESIZE, injections=(), exits=(), lost_nodes=())
        drawn = film(replace(told, before=before, members=after)).svg()
        assert 'class="dead"' not in drawn
        assert "✕" not in drawn
        assert f"resize from {len(before)} to {len(after)} nodes" in drawn
        assert f"{len(after)} nodes in place of {len(before)}; workers start again" in drawn
        assert drawn.count('class="live"') == 3
    assert 'class="dead"' in film(recoveries[0]).svg()


def test_what_is_marked_is_seen_in_its_time_and_the_last_picture_where_nothing_moves(recoveries):
    drawn = film(recoveries[0]).svg()
    played = {*re.findall(r"animation:(film-\S+) ", drawn)}
    assert played == {*re.findall(r"@keyframes (\S+?)\{", drawn)}
    assert "data-on" not in drawn
    still = re.findall(r'opacity="1"[^>]*>([^<]+)<', drawn)
    assert [each for each in still if each.startswith("training again")]
    assert not [each for each in still if each.startswith("the root agent notices")]
    assert "prefers-reduced-motion:reduce" in drawn


def test_a_hostile_name_stays_text_and_a_thousand_nodes_stay_a_picture(recoveries):
    names = ("<script>alert(1)</script>", *(f"node-{n}" for n in range(1000)))
    told = replace(recoveries[0], before=names, members=(*names[:-1], "<b>new</b>"))
    drawn = film(told).svg()
    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert drawn.count('class="live"') == MOST_NODES
    assert "&lt;b&gt;" in drawn


def test_a_recovery_without_steps_or_seats_has_a_film_all_the_same(recoveries):
    told = replace(recoveries[0], before=(), members=(), steps=(), receipts=())
    assert [scene.title for scene in scenes(told)] == ["training", "training"]
    assert scenes(told)[-1].end_s - scenes(told)[-1].start_s == AFTER_S
    fromstring(film(told).svg())
