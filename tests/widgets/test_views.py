"""The views without a browser: what they draw, within their bounds, and that text stays text."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bokeh")

from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    Div,
    FactorRange,
    Glyph,
    GlyphRenderer,
    Plot,
    Range1d,
)
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    DARK,
    LIGHT,
    ON_DARK,
    esc,
    shown,
)
from gemini_lab_widgets.store import EventStore
from gemini_lab_widgets.views import (
    VIEWS,
    CurvesView,
    IterationsView,
    MemoryView,
    ReplicasView,
    SpentView,
    StatusView,
    View,
    iteration_times,
)
from gemini_lab_widgets.views.answers import chances
from gemini_lab_widgets.views.replica_map import MARKS, RING
from gemini_lab_widgets.views.view import switch, ticks_to
from told_runs import ToldRun, with_a_drain, with_one_loss

from gemini_lab.log import events
from gemini_lab.report.tables import Tables, tables_of
from gemini_lab.report.tables.iterations import Overhead
from gemini_lab.report.tables.status import LEAVES
from gemini_lab.settings import SCHEMES
from gemini_lab.simulator import paper_workload, simulate
from gemini_lab.simulator.policy import gemini

MOST_GLYPHS = 2_000
MOST_OF_A_MAP = 4_000
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
FORMULA = r"$$\text{formula}$$"


def tables(run: ToldRun) -> Tables:
    store = EventStore()
    store.extend(run.entries)
    return store.tables()


def drawn(kind: type[View], run: ToldRun, **options: Any) -> Any:
    view = kind(**options)
    view.update(tables(run))
    return view


def models(view: View, kind: type[Any]) -> Iterator[Any]:
    return iter(view.root.select({"type": kind}))


def recolour(view: View, *, dark: bool) -> None:
    """What the browser does at a change of the theme."""
    for model, name, light, night in view._follows:
        setattr(model, name, night if dark else light)


def glyphs(view: View) -> int:
    """Glyphs that are on the page: rows of all renderers of visible figures, marks in texts."""
    count = sum(len(re.findall(r"<(?:g|i) ", div.text)) for div in models(view, Div))
    for plot in view._figures:
        if plot.visible:
            for renderer in plot.select({"type": GlyphRenderer}):
                count += max(map(len, renderer.data_source.data.values()), default=0)
    return count


def hostile_run(name: str = HOSTILE, *, nodes: int = 4) -> ToldRun:
    """A run in which everything that is text has the same bad name."""
    names = [f"{name}{i}" for i in range(nodes + 2)]
    run = ToldRun(nodes=nodes, names=names, name=name, settings={"scheme": name})
    run.protect().train(1, 9).persist(4).persist(8)
    run.say(events.Note(text=name), node=name)
    run.crash(1, known=9, output=[name, f"ValueError: {name}"])
    run.fail(names[2], known=9, cause=name)
    run.plan(9, members=[*names[:2], names[nodes], *names[3:nodes]])
    run.step(name, 0.5)
    run.resume(9).protect().train(10, 12).crash(1, known=12, output=[name])
    return run.give_up(name, [name])


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 4, 32, 33, 300, 1500])
def test_no_view_draws_more_than_two_thousand_glyphs(nodes: int) -> None:
    run = ToldRun(nodes=nodes, replicas=min(2, nodes)).protect().train(1, 3)
    run.fail("node-0", known=3)
    for kind in VIEWS:
        most = MOST_OF_A_MAP if kind is ReplicasView and nodes > 1000 else MOST_GLYPHS
        assert glyphs(drawn(kind, run)) <= most


def test_of_too_many_shards_the_harmed_ones_are_drawn() -> None:
    run = ToldRun(nodes=2200).protect().train(1, 3).fail("node-2101", known=3)
    view = drawn(ReplicasView, run)
    lost = re.findall(r'title="shard (\d+): [^"]*, lost', view.grid.text)
    assert sorted({*map(int, lost)}) == [2100, 2101]
    assert "shards whose copies are all whole are not drawn" in view._head.text


def test_a_long_run_with_many_failures_stays_within_bounds() -> None:
    run = ToldRun().protect()
    for number in range(1, 121):
        run.train(number, number).fail(run.members[2], known=number)
        members = [*run.members[:2], f"new-{number}", run.members[3]]
        run.plan(number, members=members).resume(number)
    for kind in VIEWS:
        assert glyphs(drawn(kind, run)) <= MOST_GLYPHS


@pytest.mark.parametrize("kind", VIEWS)
def test_ranges_stand_still(kind: type[View]) -> None:
    """A range that follows its data paints every update twice."""
    view = drawn(kind, with_one_loss())
    assert not list(models(view, DataRange1d))
    for plot in models(view, Plot):
        assert isinstance(plot.x_range, Range1d | FactorRange)
        assert isinstance(plot.y_range, Range1d | FactorRange)


@pytest.mark.parametrize("kind", VIEWS)
def test_drawing_the_same_again_sends_nothing(kind: type[View]) -> None:
    found = tables(with_one_loss())
    view = kind()
    view.update(found)
    sent: list[str] = []
    for model in view.root.references():
        for name in ("data", "text", "start", "end", "factors", "options", "html_attributes"):
            if name in model.properties():
                model.on_change(name, lambda attribute, _, __: sent.append(attribute))
    view.update(found)
    assert sent == []


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("told", [None, ToldRun(), ToldRun().protect().iterate(1)])
def test_every_view_draws_a_run_that_has_hardly_begun(kind: type[View], told: Any) -> None:
    view = kind()
    view.update(EventStore().tables() if told is None else tables(told))
    assert view.words


# -- text stays text -------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [4, 40])
@pytest.mark.parametrize("kind", VIEWS)
def test_a_hostile_name_becomes_no_tag_in_any_view(kind: type[View], nodes: int) -> None:
    """What Bokeh sets as HTML is the text of a Div, and what the page puts into one later."""
    view = drawn(kind, hostile_run(nodes=nodes))
    html = [div.text for div in models(view, Div)]
    html += [text for data in models(view, ColumnDataSource) for text in data.data.get("html", ())]
    assert html
    for text in html:
        assert "<img" not in text


def test_the_hostile_name_is_shown_as_it_is_written() -> None:
    strip = drawn(StatusView, hostile_run()).strip.text
    assert strip.count(esc(shown(HOSTILE + "0"))) >= 1
    assert esc(HOSTILE) in strip


@pytest.mark.parametrize("kind", VIEWS)
def test_a_name_that_reads_as_a_formula_is_none(kind: type[View]) -> None:
    view = drawn(kind, hostile_run(FORMULA))
    for model in view.root.references():
        for value in map(str, model.properties_with_values(include_defaults=False).values()):
            assert "$$" not in value


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("node-1", "node-1"),
        ("a\nb\x00c", "a\ufffdb\ufffdc"),
        ("\u202efdp.exe", "\ufffdfdp.exe"),
        ("x" * 50, "x" * 39 + "…"),
        (r"\(x\)", r"\ (x\)"),
        ("$$$x$$$", "$ $ $x$ $ $"),
    ],
)
def test_names_are_of_one_line_and_not_too_long(text: str, safe: str) -> None:
    assert shown(text) == safe


# -- what is drawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [4, 36])
def test_the_map_says_in_which_rack_a_node_is_and_what_a_rack_takes_with_it(nodes: int) -> None:
    apart = tuple(f"rack-{position % 2}" for position in range(nodes))
    view = drawn(ReplicasView, ToldRun(nodes=nodes, racks=apart).protect().train(1, 2))
    assert view.words.endswith("2 racks, and no shard has all its copies in the same rack.")
    assert "<b>node-1 in rack-1</b>" in view.nodes.data["html"][1]
    assert "node-1 in rack-1" in (view.ring if nodes == 4 else view.grid).text

    together = ("rack-0", "rack-0", *apart[2:])
    view = drawn(ReplicasView, ToldRun(nodes=nodes, racks=together).protect().train(1, 2))
    assert view.words.endswith("all copies of shards 0, 1 are in one rack (rack-0).")
    assert "rack" not in drawn(ReplicasView, ToldRun(nodes=nodes).protect().train(1, 2)).words


@pytest.mark.parametrize("nodes", [4, 36])
def test_the_map_says_what_the_ranks_of_a_node_are_if_they_differ(nodes: int) -> None:
    places = [f"pp {rank}, <b>" for rank in range(2 * nodes)]
    run = ToldRun(nodes=nodes, per_node=2).protect(places).train(1, 2)
    view = drawn(ReplicasView, run)
    assert "node-1 (pp 2, &lt;b&gt;; pp 3, &lt;b&gt;)" in (view.ring.text or view.grid.text)
    assert "<b>node-1 (pp 2, &lt;b&gt;; pp 3, &lt;b&gt;)</b>" in view.nodes.data["html"][1]
    strip = drawn(StatusView, run).strip.text
    assert ("<small>pp 2, &lt;b&gt;; pp 3, &lt;b&gt;</small>" in strip) == (nodes == 4)


def test_up_to_32_nodes_stand_in_a_ring_and_more_in_a_grid() -> None:
    ring = drawn(ReplicasView, ToldRun(nodes=32).protect().train(1, 2))
    grid = drawn(ReplicasView, ToldRun(nodes=33).protect().train(1, 2))
    assert (ring.ring.visible, ring.grid.visible) == (True, False)
    assert (grid.ring.visible, grid.grid.visible) == (False, True)
    assert ring.ring.text.count('class="copy') == 32
    assert ring.ring.text.count('class="node"') == 32
    numbers = re.findall(r">(\d+)</i>", grid.grid.text)
    assert len(numbers) == 66
    assert numbers[:4] == ["0", "1", "1", "0"]  # whose, and the node that keeps it
    assert "keeps those of: <b>node-1 (1)</b>" in grid.nodes.data["html"][0]


def test_health_differs_by_shape_and_completeness_by_dashes() -> None:
    run = ToldRun().protect().train(1, 5).fail("node-2", known=5)
    view = drawn(ReplicasView, run)
    nodes = re.findall(r'data-node="(\d)".*?</title><path d="([^"]*)"', view.ring.text)
    assert dict(nodes) == {str(n): MARKS["lost" if n == 2 else "recovering"] for n in range(4)}
    assert states(view) == {0: "whole", 1: "whole", 2: "whole", 3: "lost"}
    run.plan(5, members=["node-0", "node-1", "node-4", "node-3"])
    view.update(tables(run))
    assert states(view)[3] == "missing"
    for name in ("missing", "lost"):
        assert f".{name} .line {{ stroke-dasharray" in RING


def states(view: Any) -> dict[int, str]:
    """The state of each replica in the ring, by its shard."""
    found = re.findall(r'class="copy (\w+)"[^>]*><title>shard (\d+):', view.ring.text)
    return {int(shard): state for state, shard in found}


@pytest.mark.parametrize("order", ["worst", "rack"])
def test_in_every_order_shards_that_belong_together_stand_together(order: str) -> None:
    """A browser sorts by these numbers, so a saved page can, too."""
    racks = tuple(f"rack-{position % 12}" for position in range(100))
    run = ToldRun(nodes=100, racks=racks).protect().train(1, 2).fail("node-41", known=2)
    text = drawn(ReplicasView, run).grid.text
    groups = re.findall(r'<div class="group" style="--worst:(\d+)">(.*?)</div></div>', text)
    cells = re.findall(r'data-rack="([^"]*)" style="--rack:(\d+)".*?title="shard (\d+):', text)
    assert (len(groups), len(cells)) == (50, 100)
    if order == "worst":
        first = dict(groups)["0"]
        assert {*re.findall(r'title="shard (\d+):', first)} == {"40", "41"}
    else:
        by_place = sorted(cells, key=lambda one: int(one[1]))
        runs = [rack for rack, _ in itertools.groupby(rack for rack, _, _ in by_place)]
        assert runs == [f"rack-{number}" for number in range(12)]
        assert text.count("shard first") == 12


def test_what_if_is_told_for_every_node() -> None:
    run = ToldRun().protect().train(1, 5).persist(4).fail("node-2", known=5)
    view = drawn(ReplicasView, run)
    html = view.nodes.data["html"]
    assert "memory of node-1, version 5" in html[0]
    assert "shard 2, 3: no other copy is whole" in html[3]
    assert "the persistent tier, version 4" in html[3]
    assert "lost already" in html[2]


def test_chances_are_never_rounded_up_to_certainty() -> None:
    text = chances(tables(ToldRun(nodes=1000).protect()).replicas)
    assert "<b>100%</b>" in text
    assert text.count("<b>100%</b>") == 1
    assert "99.90%" in text


def test_nodes_that_are_alike_share_a_bar_where_there_are_many() -> None:
    run = ToldRun(nodes=60).protect().train(1, 2).fail("node-7", known=2)
    assert re.search(r" and \d+ alike: ", drawn(MemoryView, run).bars.text)
    bars = drawn(MemoryView, ToldRun(nodes=20).protect().train(1, 2)).bars.text
    assert bars.count("<div class=row>") == 20


def test_two_nodes_of_one_name_have_a_bar_each() -> None:
    run = ToldRun(names=["same"] * 6).protect().train(1, 2)
    assert drawn(MemoryView, run).bars.text.count("<div class=row>") == 4


@pytest.mark.parametrize("reach", [1e-6, 0.3, 1.0, 5.2, 10.0, 70.4, 99_999.0])
def test_an_axis_has_a_few_round_ticks_within_it(reach: float) -> None:
    ticks = ticks_to(reach)
    assert 3 <= len(ticks) <= 7
    assert 0 == ticks[0] < ticks[-1] <= reach
    assert all(len(f"{tick:g}".strip("0.")) <= 6 for tick in ticks)


def test_an_iteration_that_took_very_long_does_not_press_the_others_flat() -> None:
    run = ToldRun().protect().train(1, 20).iterate(21, duration_s=500.0)
    view = drawn(IterationsView, run)
    assert view.plot.y_range.end < 10
    assert "above the upper edge" in view._head.text


def logging(count: int, *, off: float = 0.0) -> ToldRun:
    run = ToldRun().protect()
    for number in range(1, count + 1):
        run.now_s += 1.0
        values = {"loss": 5.0 / number + (off if number == 7 else 0.0), "lr": 1e-3}
        for rank in run.ranks:
            run.say_worker(events.Iteration, rank, iteration=number, duration_s=1.0, values=values)
    return run


def beside(run: ToldRun, other: ToldRun) -> Any:
    """The curves of a run beside another one's."""
    earlier = EventStore(name=HOSTILE)
    earlier.extend(other.entries)
    store = EventStore(earlier=[earlier])
    store.extend(run.entries)
    view = CurvesView()
    view.update(store.tables())
    return view


def test_losses_that_are_the_same_to_the_bit_are_said_to_be() -> None:
    text = beside(logging(24), logging(24)).verdict.text
    assert f"96 losses, all bit-identical to {esc(HOSTILE)}." in text
    assert "96 values of lr, all bit-identical" in text
    assert "differs" not in text
    assert "<img" not in text


def test_the_first_loss_that_differs_is_said_with_both_values() -> None:
    text = beside(logging(24, off=1e-15), logging(24)).verdict.text
    assert "of 96 losses the first that differs is in iteration 7" in text
    assert f"{5.0 / 7 + 1e-15!r} here and {5.0 / 7!r} there" in text
    assert text.count("<p class=differs>") == 1


def test_a_line_is_drawn_for_each_run_and_value_and_one_value_is_chosen_at_first() -> None:
    view = beside(logging(9), logging(5))
    assert view.lines.data["name"] == ["loss", "lr", "loss", "lr"]
    assert [len(xs) for xs in view.lines.data["xs"]] == [5, 5, 9, 9]
    assert view.select.options == ["loss", "lr"]
    assert view.select.visible
    assert view.select.value == "loss"
    low, high = view.plot.y_range.start, view.plot.y_range.end
    assert low < 5.0 / 9 < 5.0 < high


def test_without_anything_logged_the_view_says_how_to_log() -> None:
    view = drawn(CurvesView, with_one_loss())
    assert not view.plot.visible
    assert "protected.log(loss=" in view.words


def test_nobody_is_told_to_log_the_losses_of_a_simulation() -> None:
    workload = paper_workload(nodes=2, standbys=0)
    store = EventStore()
    store.extend(simulate(workload, gemini(workload), [], days=1 / 24, record=True).events)
    view = CurvesView()
    view.update(store.tables())
    assert "protected.log" not in view.words
    assert "no model was trained" in view.words


def test_the_status_shows_the_stacks_that_were_taken_and_leaves_open_what_was_opened() -> None:
    run = ToldRun(nodes=2, standbys=0).protect().train(1, 2)
    lines = ("thread MainThread, its innermost call first:", f"  File {HOSTILE!r}, line 24 in load")
    run.say_worker(events.StacksTaken, 1, pid=7, how="by its own thread", lines=lines)
    view = drawn(StatusView, run)
    shown = view.stacks.text
    assert "Stacks of rank 1 at" in shown
    assert "line 24 in load" in shown
    assert "<img" not in shown
    view.update(tables(run.train(3, 4)))
    assert view.stacks.text == shown
    run.say_worker(events.StacksTaken, 1, pid=7, how="by a signal", lines=("elsewhere",))
    view.update(tables(run))
    assert "elsewhere" in view.stacks.text
    assert "line 24" not in view.stacks.text


def test_the_status_shows_who_is_to_leave_and_who_may() -> None:
    run = ToldRun(nodes=40).protect().train(1, 2)
    run.say_root(events.NodeLeaving, name="node-20")
    run.say_root(events.DrainWaiting, name="node-20", reason=HOSTILE)
    text = drawn(StatusView, run).strip.text
    assert "node-20 <small>position 20</small> <small>to leave</small>" in text
    assert f"<p>node-20 is to leave: {esc(HOSTILE)}</p>" in text
    text = drawn(StatusView, with_a_drain()).strip.text
    assert "node-2 <small>drained</small>" in text
    assert "<dd class=value>4</dd><dd>1 standby, 0 lost</dd>" in text


def test_when_versions_leave_is_said_in_words() -> None:
    assert set(LEAVES) == set(SCHEMES)
    text = drawn(StatusView, ToldRun().protect().train(1, 2)).strip.text
    assert f"<p>{LEAVES['background']}</p>" in text
    assert "scheme background" not in text


def test_while_nothing_is_known_of_a_run_no_number_is_made_up_for_it() -> None:
    view = StatusView()
    view.update(EventStore().tables())
    assert "No run yet" in view.strip.text
    assert "gemini-lab quickstart" in view.words
    assert "0 ms" not in view.strip.text
    view.update(EventStore(name=HOSTILE).tables())
    assert "no events yet" in view.strip.text
    unread = EventStore(name=HOSTILE)
    unread.run.unread = 3
    view.update(unread.tables())
    assert "no events yet" not in view.strip.text
    assert "could be read" in view.strip.text
    assert "<img" not in view.strip.text
    assert view.root.css_classes == ["nothing"]
    assert drawn(StatusView, with_one_loss()).root.css_classes == []


def test_a_runs_own_line_is_told_from_the_band_of_another_one_in_dark_too() -> None:
    view = beside(logging(9), logging(9))
    assert view.drawn_lines.data["is_own"] == [0.0, 1.0]
    assert view.drawn_lines.data["is_other"] == [1.0, 0.0]
    band, edge, own = (
        one.glyph for one in view.plot.renderers if one.glyph.line_width in {8, 4.5, 2}
    )
    recolour(view, dark=True)
    assert edge.line_color == DARK.paper
    assert own.line_color == ON_DARK[BLUE]
    assert band.line_width > edge.line_width > own.line_width


def test_who_looks_back_is_not_told_of_now() -> None:
    store = EventStore()
    store.extend(ToldRun().protect().train(1, 3).entries)
    view = StatusView()
    view.update(tables_of(store.run, is_past=True))
    assert "then: version 3 stays in memory" in view.strip.text


# -- light and dark, and in words ------------------------------------------------------------------


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_can_change_between_light_and_dark(kind: type[View]) -> None:
    view = drawn(kind, with_one_loss())

    def colours() -> list[Any]:
        return [getattr(model, name) for model, name, _, _ in view._follows]

    light = colours()
    recolour(view, dark=True)
    assert view.root.stylesheets == DARK.sheets
    assert all(
        one != other for one, other in zip(light, colours(), strict=True) if one != "#ffffff"
    )
    recolour(view, dark=False)
    assert colours() == light
    assert view.root.stylesheets == LIGHT.sheets


@pytest.mark.parametrize("nodes", [4, 40])
@pytest.mark.parametrize("kind", VIEWS)
def test_in_the_dark_no_view_keeps_a_colour_of_the_light_palette(
    kind: type[View], nodes: int
) -> None:
    run = ToldRun(nodes=nodes).protect().train(1, 9).persist(4).crash(1, known=9)
    run.plan(9, members=run.members).resume(9).protect().train(10, 12)
    view = drawn(kind, run.fail("node-2", known=12))
    recolour(view, dark=True)
    for model in view.root.references():
        for name, colour in model.properties_with_values(include_defaults=False).items():
            if name.endswith("_color") and isinstance(model, Glyph):
                column = getattr(colour, "field", None)
                assert column is None or "CategoricalColorMapper" in str(colour), (model, name)
            if name.endswith("_color") or isinstance(model, Div):
                assert not [light for light in ON_DARK if light in str(colour)], (model, name)


def test_the_switch_for_browsers_knows_all_that_changes() -> None:
    for view in [kind() for kind in VIEWS]:
        assert len(switch(view).args["follows"]) == len(view._follows) > 0


TEXT = (StatusView, SpentView)


@pytest.mark.parametrize("kind", [kind for kind in VIEWS if kind not in TEXT])
def test_every_figure_has_a_description(kind: type[View]) -> None:
    view = drawn(kind, with_one_loss())
    assert view._figures
    for plot in view._figures:
        assert plot.html_attributes["role"] == "img"
        assert view.words in plot.html_attributes["aria-label"]


def test_importing_the_package_imports_neither_bokeh_nor_panel() -> None:
    import subprocess
    import sys

    code = (
        "import sys, gemini_lab_widgets, gemini_lab_widgets.store; "
        "print([m for m in ('bokeh', 'panel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_bar_of_time_shows_each_part_by_its_share_and_ends_with_the_whole() -> None:
    run = ToldRun().protect().iterate(1, duration_s=100_000.0).iterate(2, duration_s=90_000.0)
    text = drawn(SpentView, run.finish(2)).table.text
    shares = [float(share) for share in re.findall(r"flex-grow:([\d.]+)", text)]
    assert sum(shares) == pytest.approx(1.0, abs=1e-5)
    assert max(shares) > 0.99
    assert re.search(r"<b style='[^']*'>training 100.0\xa0%</b>", text)
    assert "<span>0</span><span>2 d 4 h</span>" in text


def test_a_map_without_nodes_takes_no_room() -> None:
    view = ReplicasView()
    view.update(EventStore().tables())
    assert not view.both.visible
    assert drawn(ReplicasView, with_one_loss()).both.visible


@pytest.mark.parametrize(("kind", "figure"), [(CurvesView, "plot"), (IterationsView, "plot")])
def test_where_training_ends_with_a_failure_its_mark_is_within_the_figure(
    kind: type[View], figure: str
) -> None:
    run = ToldRun().protect()
    for number in range(1, 7):
        run.iterate(number, losses=True)
    run.crash(1, known=6)
    view = drawn(kind, run)
    (at,) = view.marks.data["x"]
    assert at == 7
    assert at < getattr(view, figure).x_range.end


def test_what_a_recovery_costs_is_told_as_unfinished_until_it_has_ended() -> None:
    run = ToldRun().protect().train(1, 9).fail("node-2", known=9)
    assert "the newest recovery has not ended" in drawn(StatusView, run).strip.text
    run.plan(9, members=["node-0", "node-1", "node-4", "node-3"]).resume(9)
    run.protect().train(10, 12)
    assert "has not ended" not in drawn(StatusView, run).strip.text
    run.crash(1, known=12).give_up("it fails each time")
    assert "the newest recovery has not ended" in drawn(StatusView, run).strip.text


def test_nothing_is_said_to_be_added_where_there_was_nothing_to_compare_with() -> None:
    table = tables(ToldRun().protect().train(1, 12)).iterations
    waited = Overhead(share=8.953, low=None, high=None, how="what was waited")
    words = iteration_times.describe(replace(table, overhead=waited))
    assert "checkpoints add" not in words
    assert "updates waited for checkpoints, 895.3\xa0% of the iterations' other time" in words
    compared = replace(waited, share=0.01, low=0.0, high=0.02, how="medians")
    words = iteration_times.describe(replace(table, overhead=compared))
    assert "checkpoints add +1.0% (95 %: +0.0% to +2.0%), medians" in words
