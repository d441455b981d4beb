"""Pictures of values: complete, harmless, and shown without asking."""

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
from gemini_lab_widgets.pictures import DRAWN, palette, view
from gemini_lab_widgets.pictures.display import register
from IPython.core.formatters import DisplayFormatter

from gemini_lab import attack
from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import KINDS
from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.placement import plan_placement
from gemini_lab.profiler.profile import Profile
from gemini_lab.recovery.plan import Copy, plan_recovery
from gemini_lab.report.build import build_report
from gemini_lab.simulator.outages import FailureRate, poisson_failures
from gemini_lab.simulator.policy import gemini
from gemini_lab.simulator.simulate import simulate
from gemini_lab.simulator.workload import paper_workload
from gemini_lab.units import GIB
from gemini_lab_bench.figures.figure import Figure, Point
from gemini_lab_course.attacks.chunks import CHUNKS, ChunkCase
from gemini_lab_course.attacks.outcome import BesideOurs, Counterexample, StageFault
from gemini_lab_course.attacks.placements import PLACEMENT, PlacementCase
from gemini_lab_course.attacks.recoveries import RECOVERY, RecoveryCase

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<img src=x onerror=alert(1)>\"'&]]>\x00\u202e$x$"
NAMES = (
    "placement",
    "profile",
    "schedule",
    "plan",
    "report",
    "recovery",
    "outcome",
    "figure",
    "broken placement",
    "broken schedule",
    "broken plan",
    "withstood",
)


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
        said = {"duration_s": 1.0, "waited_s": 0.0, "values": {"loss": 5.0 / number}}
        return event("iteration", at_s, rank=0, iteration=number, epoch=epoch, **said)

    def step(name, begin_s, end_s):
        moments = {"start_s": 1003.0 + begin_s, "end_s": 1003.0 + end_s}
        return event("recovery_step", 3.0 + end_s, step=name, **moments, **recovery)

    recovery = {"recovery": 1, "epoch": 2}
    started = {"cause": "worker_exited", "lost": (node,), "failed_at_s": 1003.0, "iteration": 2}
    planned = {"version": 2, "tier": "memory", "members": (node,), "sources": (), "transfers": ()}
    restored = {
        "rank": 0,
        "shard": 0,
        "version": 2,
        "tier": "local",
        "holder": node,
        "epoch": 2,
        "verified": True,
        "retrieve_s": 0.0,
        "verify_s": 0.1,
        "load_s": 0.1,
    }
    finished = {"version": 2, "iteration": 3, "duration_s": 1.0, "lost_iterations": 0}
    settings = {"replicas": 1}
    log = [
        event("run_started", 0.0, name=name, script=name, nodes=1, settings=settings),
        iteration(1, 1.0, 1),
        iteration(2, 2.0, 1),
        event("injected", 3.0, failure="worker_crash", rank=0, pid=1),
        event("recovery_started", 3.1, **started, **recovery),
        step("detect", 0.0, 0.1),
        step("start", 0.1, 0.9),
        step(node, 0.9, 1.0),
        event("recovery_planned", 3.5, reason=name, **planned, **recovery),
        event("shard_restored", 3.8, size_bytes=5000, **restored),
        iteration(3, 4.0, 2),
        event("recovery_finished", 4.0, **finished, **recovery),
        event("note", 4.5, text=name),
        event("run_finished", 5.0, iteration=3),
    ]
    return build_report(log, name=name)


def a_figure(name="Gemini", kind="bars"):
    points = [
        Point(series, x, y, origin, name)
        for series, y in ((name, 2.0), ("other", 3.0))
        for x in ("a", "b")
        for origin in ("paper", "model", "simulation", "measured")
    ]
    return Figure(
        name="f",
        title=name,
        x_label=name,
        y_label=name,
        points=tuple(points),
        notes=(name,),
        kind=kind,
    )


def test_remarks_show_code_as_code_and_nothing_else_as_markup():
    shown = view(a_figure("`<b>` and `two`; a stray ` tick")).html()
    assert "<li><code>&lt;b&gt;</code> and <code>two</code>; a stray ` tick</li>" in shown


def broken(stage, name):
    """What an attack finds, told in `name`."""
    cases = {
        PLACEMENT: (PlacementCase(nodes=4, replicas=2), ((0, 1), (1, 2), (2, 3), (3, 0))),
        CHUNKS: (
            ChunkCase(spans_s=(1.0,), has_late_span=True, checkpoint_bytes=2),
            tuple(Chunk(span=span, replica=1, offset_bytes=0, size_bytes=1) for span in (0, None)),
        ),
        RECOVERY: (
            RecoveryCase(
                placement=plan_placement(nodes=2, replicas=2),
                lost=frozenset({0}),
                arrived=frozenset({(0, 0)}),
                standbys=1,
            ),
            None,
        ),
    }
    case, answer = cases[stage]
    fault = StageFault(why=name, lost=("node-0",), shards=(0,), spans=(0,))
    return Counterexample(
        stage=stage.name, case=case, answer=answer, fault=fault, tried=3, judge=lambda _: None
    )


def a_comparison(name):
    return BesideOurs(what=name, yours=0.5, reference=0.6, optimum=0.7, unit="share")


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
    return dict(
        zip(
            NAMES,
            (
                replace(placement, notes=(name,)),
                profile,
                replace(schedule, notes=(name,)),
                replace(a_plan(holder=name), reason=name),
                report,
                report.recoveries[0],
                replace(simulated, policy=replace(simulated.policy, name=name)),
                a_figure(name),
                *(broken(stage, name) for stage in (PLACEMENT, CHUNKS, RECOVERY)),
                replace(attack(placement), figures=(a_comparison(name),)),
            ),
            strict=True,
        )
    )


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
    shell = SimpleNamespace(display_formatter=DisplayFormatter(active_types=[]))
    register(shell)
    forms, _ = shell.display_formatter.format(values(simulated)[name])
    root = ET.fromstring(forms["image/svg+xml"])
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert {"svg", "table"} <= Reader(forms["text/html"]).tags
    assert forms["text/plain"]


def test_every_type_that_has_a_picture_is_where_its_name_says(simulated):
    shown = {type(value) for value in values(simulated).values()}
    for name in DRAWN:
        module, _, kind = name.rpartition(".")
        assert getattr(importlib.import_module(module), kind) in shown


def test_a_value_within_a_list_stays_a_line_of_text():
    shell = SimpleNamespace(display_formatter=DisplayFormatter(active_types=[]))
    register(shell)
    placement = plan_placement(nodes=4, replicas=2)
    forms, _ = shell.display_formatter.format([placement])
    assert forms == {"text/plain": f"[{placement!r}]"}


def test_values_bring_no_library_that_draws_before_one_is_shown():
    code = """if True:
        import sys
        from types import SimpleNamespace
        from IPython.core.formatters import DisplayFormatter
        from gemini_lab.placement import plan_placement
        from gemini_lab_widgets.pictures.display import register
        shell = SimpleNamespace(display_formatter=DisplayFormatter())
        register(shell)
        placement = plan_placement(nodes=4, replicas=2)
        assert not {"matplotlib", "bokeh", "panel"} & set(sys.modules), "before"
        shell.display_formatter.format(placement)
        assert "matplotlib.figure" in sys.modules, "after"
        assert not {"matplotlib.pyplot", "bokeh", "panel"} & set(sys.modules), "after"
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_notebooks_own_plot_style_changes_no_picture_and_stays_as_it_was():
    placement = plan_placement(nodes=4, replicas=2)
    before = view(placement).svg()
    with mpl.rc_context({"font.size": 40, "axes.facecolor": "red", "text.color": "green"}):
        theirs = dict(mpl.rcParams)
        assert view(placement).svg() == before
        assert dict(mpl.rcParams) == theirs


def test_a_picture_is_the_same_bytes_each_time(simulated):
    for value in values(simulated).values():
        assert view(value).svg() == view(value).svg()


def test_two_pictures_on_a_page_share_no_id():
    pictures = [view(value).svg() for value in (a_report(), a_figure(kind="lines"), a_figure())]
    ids = [re.findall(r' id="([^"]+)"', svg) for svg in pictures]
    assert all(ids)
    assert len({one for each in ids for one in each}) == sum(map(len, ids))


@pytest.mark.parametrize("name", NAMES)
def test_every_colour_follows_the_page_from_light_to_dark(simulated, name):
    root = ET.fromstring(view(values(simulated)[name]).svg())
    for shape in root.iter():
        fixed = re.sub(r"var\(--gl-\w+,#[0-9a-f]{6}\)", "", shape.get("style", ""))
        assert "#" not in fixed.replace("url(#", "")
        assert shape.get("fill") is None


def test_a_pictures_style_sheet_reaches_nothing_else_on_the_page():
    html = view(a_figure()).html()
    for sheet in re.findall(r"<style>(.*?)</style>", html):
        selectors = re.findall(r"(?:^|[{}])([^{}@]+)\{", sheet)
        assert selectors
        assert all(".gl-drawing" in selector for selector in selectors)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_stays_text_in_every_picture(simulated, name):
    value = values(simulated, HOSTILE)[name]
    page = Reader(view(value).html())
    assert "img" not in page.tags
    assert not any(attribute.startswith("on") for attribute in page.attributes)
    assert "<img src=x" in page.text
    assert "\u202e" not in page.text
    ET.fromstring(view(value).svg())


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_nothing_from_anywhere(simulated, name):
    html = view(values(simulated)[name]).html().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\((?!#)|@import|<script|<link", html)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_outside_the_picture(simulated, name):
    root = ET.fromstring(view(values(simulated)[name]).svg())
    _, _, width, height = map(float, root.get("viewBox").split())
    defined = {child for defs in root.iter(f"{SVG}defs") for child in defs.iter()}
    seen = 0
    for shape in root.iter():
        places = [(float(shape.get("x", 0)), float(shape.get("y", 0)))]
        if shape.tag == f"{SVG}path" and shape not in defined:
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", shape.get("d"))]
            places += zip(numbers[::2], numbers[1::2], strict=True)
        for x, y in places:
            assert -1 <= x <= width + 1
            assert -1 <= y <= height + 1
        seen += len(places) > 1
    assert seen > 3


def test_what_has_no_picture_says_what_has_one():
    with pytest.raises(TypeError, match=r"no picture of a int; there is one of .*Placement"):
        view(3)


def test_a_chance_that_is_not_certain_never_reads_as_certain():
    text = Reader(view(plan_placement(nodes=1000, replicas=4)).html())
    assert "100%" not in text.text


@pytest.mark.parametrize("nodes", [1, 2, 32, 33, 257, 1500])
def test_a_placement_of_any_size_has_a_picture_of_bounded_size(nodes):
    svg = view(plan_placement(nodes=nodes, replicas=min(2, nodes))).svg()
    assert len(svg) < 400_000
    ET.fromstring(svg)


def test_every_replica_of_a_small_placement_has_its_arrow():
    placement = plan_placement(nodes=8, replicas=3)
    root = ET.fromstring(view(placement).svg())
    bows = [p for p in root.iter(f"{SVG}path") if re.fullmatch(r"M[^LCz]*Q[^z]*", p.get("d"))]
    assert len(bows) == 8 * 2


def test_the_replicas_of_a_schedule_have_a_colour_each_and_what_is_left_over_another():
    schedule = plan_chunks(
        a_profile(), checkpoint_bytes=GIB // 2, replicas=3, bandwidth_bytes_per_s=GIB / 4
    )
    assert schedule.leftover
    root = ET.fromstring(view(schedule).svg())
    tips = {
        g.findtext(f"{SVG}title"): g
        for g in root.iter(f"{SVG}g")
        if g.find(f"{SVG}title") is not None
    }
    assert len(tips) == len(schedule.chunks)
    for tip, mark in tips.items():
        replica = int(re.match(r"replica (\d)", tip)[1])
        colour = palette.FELT if "fits no span" in tip else palette.REPLICAS[replica - 1]
        assert f"fill:var(--gl-c{[*palette.ON_DARK].index(colour)},{colour})" in mark[1].get(
            "style"
        )


@pytest.mark.parametrize("kind", ["bars", "timeline"])
@pytest.mark.parametrize("policy", palette.POLICIES)
def test_a_policy_has_its_own_colour_in_every_figure(policy, kind):
    figure = a_figure(policy, kind)
    only = tuple(point for point in figure.points if point.series == policy)
    assert palette.POLICIES[policy] in view(replace(figure, points=only)).svg().split("</style>")[1]


def test_without_the_drawing_library_values_stay_text():
    shell = SimpleNamespace(display_formatter=DisplayFormatter(active_types=[]))
    register(shell, library="no_such_library")
    placement = plan_placement(nodes=4, replicas=2)
    forms, _ = shell.display_formatter.format(placement)
    assert forms == {"text/plain": repr(placement)}


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


def test_a_broken_recovery_is_drawn_with_the_version_in_storage_and_nothing_that_is_not_there():
    case = RecoveryCase(
        placement=plan_placement(nodes=1, replicas=1),
        lost=frozenset(),
        arrived=frozenset(),
        stored=(9,),
    )
    fault = StageFault(why="an older version is to be loaded")
    found = Counterexample(
        stage="recovery", case=case, answer=None, fault=fault, tried=4, judge=lambda _: None
    )
    drawn = view(found).svg()
    assert "storage" in drawn
    assert "version 9, in the persistent tier" in drawn
    assert "on its way" not in drawn
    assert "lost with its node" not in drawn


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
