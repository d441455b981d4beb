"""The ring that a reader plays with shows what the package's own planner places."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

pytest.importorskip("anywidget")

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Injected, Iteration, RecoveryFinished, VersionComplete
from gemini_lab.placement import plan_placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.wasted_time import wasted_time_s
from gemini_lab.simulator import paper_workload
from gemini_lab_course.play import (
    MOST,
    Strike,
    eq_1_minutes,
    filled_s,
    losses,
    planned,
    play_chances,
    play_placement,
    play_spans,
    play_wasted_time,
    show_strikes,
    strike_of,
)


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


def test_sliders_show_what_the_formulas_say():
    workload = paper_workload()
    terms = eq_1_minutes(workload, interval=180, store=20)
    assert sum(terms.values()) == pytest.approx(
        wasted_time_s(
            checkpoint_s=workload.store_s, interval_s=180 * 60, retrieval_s=workload.store_s
        )
        / 60
    )
    fastest = eq_1_minutes(workload, interval=1, store=10**6)
    assert fastest["1/(2f)"] == pytest.approx(workload.iteration_s / 120), "Eq. (2) bounds it"


def test_a_checkpoint_fills_spans_in_order_and_the_rest_is_late():
    profile = Profile.synthetic(iteration_s=60.0, idle_spans_s=[5.0, 2.0, 4.0], update_s=55.0)
    usable = [span.duration_s for span in profile.idle_spans if span.before_update]
    *used, late = filled_s(profile, size_bytes=8e9, link_bytes_per_s=1e9)
    assert (used[:3], late) == ([5.0, 2.0, 1.0], 0.0)
    assert filled_s(profile, size_bytes=20e9, link_bytes_per_s=1e9)[-1] == 20 - sum(usable)


def test_racks_matter_only_if_racks_die():
    asked = {"nodes": 64, "replicas": 2, "machine": 1e-3}
    listed, across = losses(**asked, rack=1e-2).values()
    assert across < listed / 10
    listed, across = losses(**asked, rack=1e-300).values()
    assert across == pytest.approx(listed)


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_each_slider_draws_below_itself():
    profile = Profile.synthetic(iteration_s=60.0, idle_spans_s=[5.0], update_s=55.0)
    for play in (
        play_wasted_time(paper_workload()),
        play_spans(profile, shard_bytes=10**9, link_bytes_per_s=1e9),
        play_chances(),
    ):
        plt.close("all")
        play.f(**{slider._kwarg: slider.value for slider in play.kwargs_widgets})
        (figure,) = map(plt.figure, plt.get_fignums())
        assert figure.axes[0].get_xlabel().endswith("(model)")
        plt.close("all")


def log_of_a_kill(*, struck_s: float) -> list[Entry]:
    """Two ranks with iterations of 1 s, whose versions are whole after 0.2 s and after 0.4 s."""
    said: list[tuple[float, object]] = []
    for number in (1, 2, 3):
        of = {"epoch": 1}
        done = {"iteration": number, "duration_s": 1.0, "waited_s": 0.0}
        said += [(float(number), Iteration(rank=rank, **of, **done)) for rank in (0, 1)]
        sent = {"version": number, "sent_bytes": 1, "local_s": 0.1, "next_version": number + 1}
        said += [
            (
                number + 0.9,
                VersionComplete(rank=rank, **of, **sent, duration_s=0.9, whole_s=whole_s),
            )
            for rank, whole_s in ((0, 0.2), (1, 0.4))
        ]
    said.append((struck_s, Injected(failure="worker_crash", rank=1)))
    resumed = {"recovery": 1, "epoch": 2, "version": 2, "iteration": 3}
    said.append((struck_s + 1.5, RecoveryFinished(**resumed, duration_s=1.0, lost_iterations=1)))
    said.sort(key=lambda one: one[0])
    return [Entry(at_s=at_s, node="node-0", event=event) for at_s, event in said]


def test_a_kill_is_placed_within_the_iteration_that_it_interrupts():
    early, late = (strike_of(log_of_a_kill(struck_s=at_s)) for at_s in (3.25, 3.75))
    assert early == Strike(iteration=4, resumed=2, at=0.25, whole_at=0.4)
    assert (late.at, late.whole_at) == (0.75, 0.4)
    assert strike_of(one for one in log_of_a_kill(struck_s=3.25) if one.kind != "injected") is None
    assert strike_of(log_of_a_kill(struck_s=0.5)) is None, "no iteration had ended"
    runs = {"early": SimpleNamespace(events=lambda: log_of_a_kill(struck_s=3.25))}
    show_strikes(runs | {"quiet": SimpleNamespace(events=list)})
    (axes,) = plt.gcf().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "early: in 4, resumed after 2"
    ]
    plt.close("all")
