"""Claims about the picture of real recoveries beside the paper's."""

from collections import Counter

import pytest

from gemini_lab.display import picture
from gemini_lab.report import Recovery, Step
from gemini_lab_bench.figures.recoveries import STEPS, figure


def recovery(**durations_s: float) -> Recovery:
    steps, at_s = [], 50.0
    for name, duration_s in durations_s.items():
        steps.append(Step(name=name, start_s=at_s, end_s=at_s + duration_s))
        at_s += duration_s
    return Recovery(
        number=1,
        cause="node_lost",
        injections=(),
        exits=(),
        lost_nodes=("node-2",),
        failed_at_s=50.0,
        resumed_at_s=at_s,
        version=24,
        tier="memory",
        reason="",
        steps=tuple(steps),
        receipts=(),
        rejected=(),
        reached=25,
        lost_iterations=1,
        lost_by_any=1,
        lost_progress_s=0.1,
    )


ALL_STEPS = recovery(
    detect=0.1,
    fence=0.2,
    inventory=0.1,
    reserve=2.0,
    plan=0.1,
    start=1.0,
    retrieve=0.3,
    warm_up=0.2,
)


def test_every_bar_adds_up_to_the_whole_recovery():
    totals: Counter[str] = Counter()
    for point in figure({"node loss": ALL_STEPS}).points:
        totals[str(point.x)] += point.y
    assert totals == {
        "paper, 7 min 13 s": pytest.approx(100),
        "node loss, 4.0 s": pytest.approx(100),
    }


def test_steps_that_the_paper_does_not_tell_apart_are_one_piece():
    measured = {p.series: p.y for p in figure({"node loss": ALL_STEPS}).of("measured")}
    assert measured["agreement"] == pytest.approx(10)
    assert measured["reservation"] == pytest.approx(50)
    assert "serialisation" not in measured


def test_a_step_with_a_name_of_its_own_is_not_left_out():
    with pytest.raises(KeyError, match="dream"):
        figure({"node loss": recovery(detect=0.1, dream=1.0)})


def test_a_repeated_step_counts_each_time():
    again = recovery(detect=1.0, start=1.0)
    again = Recovery(**{f: getattr(again, f) for f in again.__slots__} | {"steps": again.steps * 2})
    measured = {p.series: p.y for p in figure({"twice": again}).of("measured")}
    assert measured == {"detection": pytest.approx(50), "restart": pytest.approx(50)}


def test_it_is_drawn():
    pytest.importorskip("matplotlib")
    svg = picture(figure({"x": ALL_STEPS})).svg()
    assert svg.index(">paper, 7 min 13 s<") < svg.index(">x, 4.0 s<")
    assert set(STEPS.values()) >= {p.series for p in figure({}).points}
