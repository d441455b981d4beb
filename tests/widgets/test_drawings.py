"""Pictures of values: complete, harmless, and shown without asking."""

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from gemini_lab_widgets.drawings import view
from gemini_lab_widgets.drawings.canvas import ticks
from gemini_lab_widgets.drawings.placement import chances
from IPython.core.formatters import DisplayFormatter

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import KINDS
from gemini_lab.pipeliner.schedule import plan_chunks
from gemini_lab.placement import enumerated_probability, plan_placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.plan import Copy, plan_recovery
from gemini_lab.report.build import build_report
from gemini_lab.simulator.failures import FailureRate, poisson_failures
from gemini_lab.simulator.policy import gemini
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.workload import paper_workload
from gemini_lab.units import GIB

HOSTILE = "<img src=x onerror=alert(1)>\"'&]]>\x00\u202e$x$"
NAMES = ("placement", "profile", "schedule", "plan", "report", "recovery", "outcome")


def a_profile(name="all_gather"):
    profile = Profile.synthetic(iteration_s=10.0, idle_spans_s=[1.0, 2.0], update_s=9.0)
    named = tuple(replace(each, name=name) for each in profile.collectives)
    return replace(profile, collectives=named, conditions=(f"made on {name}",))


def a_plan(lost="node-2", holder="node-3"):
    placement = plan_placement(nodes=4, replicas=2)
    members = ["node-0", "node-1", lost, holder]
    copies = [
        Copy(shard=shard, version=7, node=members[position])
        for shard in range(4)
        for position in placement.holders[shard]
        if members[position] != lost
    ]
    living = [*(m for m in members if m != lost), "node-4"]
    return plan_recovery(
        placement=placement, members=members, copies=copies, living=living, standbys=["node-4"]
    )


def a_report(name="run", node="node-1"):
    def event(kind, at_s, **data):
        return Entry(at_s=1000.0 + at_s, node=node, event=KINDS[kind](**data))

    def iteration(number, at_s, epoch):
        return event("iteration", at_s, rank=0, iteration=number, duration_s=1.0, waited_s=0.0,
                     values={"loss": 5.0 / number}, epoch=epoch)  # fmt: skip

    steps = [
        event("recovery_step", 3.0 + end, recovery=1, epoch=2, step=step,
              start_s=1003.0 + begin, end_s=1003.0 + end)
        for step, begin, end in (("detect", 0.0, 0.1), ("start", 0.1, 0.9), (node, 0.9, 1.0))
    ]  # fmt: skip
    log = [
        event("run_started", 0.0, name=name, script=name, nodes=1, workers_per_node=1,
              settings={"replicas": 1}),
        iteration(1, 1.0, 1), iteration(2, 2.0, 1),
        event("injected", 3.0, failure="worker_crash", rank=0, pid=1),
        event("recovery_started", 3.1, recovery=1, epoch=2, cause="worker_exited", lost=(node,),
              failed_at_s=1003.0, iteration=2),
        *steps,
        event("recovery_planned", 3.5, recovery=1, epoch=2, version=2, tier="memory",
              members=(node,), sources=(), transfers=(), reason=name),
        event("shard_restored", 3.8, rank=0, shard=0, version=2, tier="local", holder=node,
              size_bytes=5000, verified=True, retrieve_s=0.0, verify_s=0.1, load_s=0.1, epoch=2),
        iteration(3, 4.0, 2),
        event("recovery_finished", 4.0, recovery=1, epoch=2, version=2, iteration=3,
              duration_s=1.0, lost_iterations=0),
        event("note", 4.5, text=name), event("run_finished", 5.0, iteration=3),
    ]  # fmt: skip
    return build_report(log, name=name)


@pytest.fixture(scope="module")
def simulated():
    workload = paper_workload()
    rate = FailureRate(per_node_per_day=0.05)
    outages = poisson_failures(nodes=workload.nodes, days=20, rate=rate, seed=1)
    return simulate(workload, gemini(workload), outages, days=20)


def values(simulated, name="run"):
    report = a_report(name, name)
    profile = a_profile(name)
    schedule = plan_chunks(profile, checkpoint_bytes=GIB, bandwidth_bytes_per_s=GIB / 4)
    placement = plan_placement(nodes=5, replicas=2)
    return dict(zip(NAMES, (
        replace(placement, notes=(name,)), profile, replace(schedule, notes=(name,)),
        replace(a_plan(holder=name), reason=name), report, report.recoveries[0],
        replace(simulated, policy=replace(simulated.policy, name=name)),
    ), strict=True))  # fmt: skip


class Reader(HTMLParser):
    """What a browser makes of it: tags, attributes, and text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", NAMES)
def test_a_value_shows_a_picture_a_table_and_plain_text_by_itself(simulated, name):
    forms, _ = DisplayFormatter(active_types=[]).format(values(simulated)[name])
    ET.fromstring(forms["image/svg+xml"])
    assert {"svg", "table", "title", "desc"} <= Reader(forms["text/html"]).tags
    assert forms["text/plain"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_stays_text_in_every_picture(simulated, name):
    value = values(simulated, HOSTILE)[name]
    page = Reader(value._repr_html_())
    assert "img" not in page.tags
    assert not any(attribute.startswith("on") for attribute in page.attributes)
    assert "<img src=x" in page.text
    assert "\u202e" not in page.text
    ET.fromstring(value._repr_mimebundle_()["image/svg+xml"])


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_nothing_from_anywhere(simulated, name):
    html = values(simulated)[name]._repr_html_().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|@import|<script|<link", html)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_outside_the_picture(simulated, name):
    root = ET.fromstring(view(values(simulated)[name]).svg())
    _, _, width, height = map(float, root.get("viewBox").split())
    for shape in root.iter():
        x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
        assert -1 <= x <= width
        assert -1 <= y <= height
        assert x + float(shape.get("width", 0) if shape is not root else 0) <= width + 1
        assert y + float(shape.get("height", 0) if shape is not root else 0) <= height + 1


def test_what_has_no_picture_says_what_has_one():
    with pytest.raises(TypeError, match=r"no picture of a int; there is one of .*Placement"):
        view(3)


@pytest.mark.parametrize(
    "placement",
    [
        plan_placement(nodes=8, replicas=2),
        plan_placement(nodes=7, replicas=3),
        plan_placement(nodes=9, replicas=2, strategy="random"),
    ],
    ids=lambda placement: placement.strategy,
)
def test_the_chances_beside_a_placement_are_those_of_trying_every_loss(placement):
    found = list(chances(placement))
    assert next(chance.lost for chance in found) == placement.replicas
    for chance in found:
        assert chance.how == "exact"
        assert chance.value == pytest.approx(float(enumerated_probability(placement, chance.lost)))


def test_a_chance_that_is_not_certain_never_reads_as_certain():
    text = Reader(view(plan_placement(nodes=1000, replicas=4))._repr_mimebundle_()["text/html"])
    assert "100%" not in text.text


@pytest.mark.parametrize("nodes", [1, 2, 32, 33, 257, 1500])
def test_a_placement_of_any_size_has_a_picture_of_bounded_size(nodes):
    svg = view(plan_placement(nodes=nodes, replicas=min(2, nodes))).svg()
    assert len(svg) < 400_000
    ET.fromstring(svg)


def test_every_replica_of_a_small_placement_has_its_arrow():
    placement = plan_placement(nodes=8, replicas=3)
    root = ET.fromstring(view(placement).svg())
    heads = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("d").endswith("Z")]
    assert len(heads) == 8 * 2


def test_what_fits_no_span_is_named_with_its_delay():
    schedule = plan_chunks(a_profile(), checkpoint_bytes=GIB, bandwidth_bytes_per_s=GIB / 4)
    text = Reader(view(schedule).html()).text
    assert "left over" in text
    assert f"{schedule.delay_s / schedule.iteration_s:+.1%}" in text


def test_a_schedule_is_drawn_on_its_own_profiles_line_only():
    profile = a_profile()
    schedule = plan_chunks(profile, checkpoint_bytes=GIB, bandwidth_bytes_per_s=GIB)
    assert "all_gather" in view(schedule, profile=profile).svg()
    with pytest.raises(ConfigError, match="draw it with its own"):
        view(schedule, profile=a_profile("broadcast"))


def test_an_unsteady_profile_says_so():
    text = Reader(view(replace(a_profile(), iteration_std_s=5.0)).html()).text
    assert "! unsteady" in text


def test_a_recovery_plan_names_the_source_of_a_lost_shard_and_who_loads_it():
    text = Reader(view(a_plan()).html()).text
    assert "peer" in text
    assert "node-4" in text


def test_a_run_without_losses_shows_its_iterations():
    report = a_report()
    bare = tuple(replace(iteration, loss=None) for iteration in report.iterations)
    assert "iterations done" in view(replace(report, iterations=bare)).svg()


def test_a_run_that_just_began_has_a_picture():
    start = KINDS["run_started"](name="x", script="x", nodes=1)
    begun = build_report([Entry(at_s=5.0, node="lab", event=start)], name="x")
    assert "0 iterations" in view(begun).svg()


def test_a_simulated_outcome_says_that_it_is_simulated(simulated):
    text = Reader(view(simulated).html()).text
    assert "simulated" in text
    assert f"{simulated.effective_ratio:.1%}" in text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.0004), (3.1, 97), (5, 5), (-2, 2)])
def test_ticks_are_even_and_within(low, high):
    places = ticks(low, high)
    assert all(low - 1e-9 <= place <= high + 1e-9 for place in places)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert gaps == pytest.approx(gaps[:1] * len(gaps))
