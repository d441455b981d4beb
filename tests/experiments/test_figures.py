"""Claims about the paper's figures: our numbers beside the paper's."""

import csv
from xml.etree import ElementTree as ET

import pytest

from gemini_lab.display import picture
from gemini_lab.errors import ConfigError
from gemini_lab.experiments.figures import (
    command,
    eq1,
    fig07,
    fig08,
    fig09,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15a,
    fig15b,
    fig16,
    pages,
    ratio,
)
from gemini_lab.experiments.figures.figure import Figure, Point

SMALL = {
    "eq1": eq1.figure,
    "fig07": fig07.figure,
    "fig08": fig08.figure,
    "fig09": fig09.figure,
    "fig10": fig10.figure,
    "fig11": fig11.figure,
    "fig12": fig12.figure,
    "fig13": fig13.figure,
    "fig14": fig14.figure,
    "fig15a": lambda: fig15a.figure(days=5, seeds=3),
    "fig15b": lambda: fig15b.figure(days=5, seeds=3, nodes=(16, 100)),
    "fig16": fig16.figure,
}


@pytest.fixture(scope="module")
def drawn():
    return {name: make() for name, make in SMALL.items()}


def values(figure, origin):
    return {(p.series, p.x): p.y for p in figure.of(origin)}


def beside(figure, origin="model"):
    """Pairs of the paper's value and ours, where both are there."""
    ours = values(figure, origin)
    return [
        (paper, ours[key])
        for key, paper in values(figure, "paper").items()
        if paper is not None and ours.get(key) is not None
    ]


def test_every_figure_of_the_list_is_there(drawn):
    assert tuple(drawn) == command.FIGURES
    assert [figure.name for figure in drawn.values()] == list(command.FIGURES)


def test_every_point_says_what_it_is_and_where_it_comes_from(drawn):
    for figure in drawn.values():
        assert figure.of("paper")
        assert figure.of("model") or figure.of("simulation")
        for point in figure.points:
            assert point.how
            assert point.y is not None or point.text


@pytest.mark.parametrize(
    ("name", "relative"),
    [("eq1", 0.03), ("fig07", 0.01), ("fig08", 0.05), ("fig09", 1e-3), ("fig11", 0.05)],
)
def test_models_come_as_close_to_the_paper_as_stated(drawn, name, relative):
    pairs = beside(drawn[name])
    assert pairs
    for paper, ours in pairs:
        assert ours == pytest.approx(paper, rel=relative)


def test_fig_1_rolls_back_to_200():
    assert eq1.rollback() == 200


def test_fig_10_shows_13_times_less_wasted_time_than_highfreq(drawn):
    """Abstract: more than 13x; Gemini 1.5 iterations of 62 s, 1.55 min."""
    model = values(drawn["fig10"], "model")
    assert model["Gemini", "0 replaced"] == pytest.approx(1.55)
    for replaced in range(3):
        x = f"{replaced} replaced"
        assert model["HighFreq", x] / model["Gemini", x] > 13
        assert model["Gemini", x] == pytest.approx(fig10.PAPER["Gemini"][replaced], abs=0.12)


def test_fig_10s_simulation_agrees_with_eq_1(drawn):
    model = values(drawn["fig10"], "model")
    for point in drawn["fig10"].of("simulation"):
        half = 1.5 * (point.high - point.low) / 2
        assert point.y == pytest.approx(model[point.series, point.x], abs=half)


def test_two_lost_nodes_cost_8_6_minutes_over_all_pairs(drawn):
    expected = fig10.expected_with_two_lost(list(drawn["fig10"].points))
    assert expected == pytest.approx(0.9333 * 1.6 + 0.0667 * 106, abs=0.2)


def test_fig_11_is_a_factor_of_272_at_400_gbit_per_s_and_68_at_100():
    assert fig11.reduction(nodes=16, network_gbit_per_s=400) == pytest.approx(272)
    assert fig11.reduction(nodes=16, network_gbit_per_s=100) == pytest.approx(68)


def test_fig_12_counts_58_checkpoints_an_hour_8_times_highfreqs_and_170_times_strawmans(drawn):
    for origin in ("model", "simulation"):
        rate = {x: y for (_, x), y in values(drawn["fig12"], origin).items()}
        assert rate["Gemini, CPU memory"] == pytest.approx(3600 / 62, rel=1e-3)
        assert rate["Gemini, CPU memory"] / rate["HighFreq, store"] >= 7.9
        assert rate["Gemini, CPU memory"] / rate["Strawman, store"] > 170
        assert rate["Gemini, store"] == pytest.approx(1 / 3, rel=0.02)


def test_fig_13s_checkpoints_fit_the_idle_time(drawn):
    model = values(drawn["fig13"], "model")
    for name in fig13.RATE_GBIT_PER_S:
        assert model["checkpoint time", name] < 0.8 * model["idle time", name]
    assert model["checkpoint time", "GPT-2 40B"] / fig13.IDLE_40B_S == pytest.approx(0.77, abs=0.01)


def test_fig_14_takes_430_seconds_with_a_standby_and_11_to_14_minutes_without(drawn):
    totals = {}
    for point in drawn["fig14"].of("simulation"):
        totals[point.x] = totals.get(point.x, 0) + point.y
    assert totals["standby, simulated"] == pytest.approx(430, abs=3)
    assert 670 < totals["no standby, simulated"] < 856


def test_fig_14_resumes_one_iteration_before_the_one_in_flight():
    """Failing in iteration 4, from version 2: version 3 was on its way."""
    assert fig14.resumes_from() == 2


@pytest.mark.parametrize("name", ["fig15a", "fig15b"])
def test_fig_15s_lines_are_the_papers(drawn, name):
    for paper, ours in beside(drawn[name]):
        assert ours == pytest.approx(paper, abs=5e-3)


def test_the_linear_model_has_the_papers_ends():
    """Section 7.3: 91 % at 1,000 instances, of which 1.5 % fail a day."""
    assert ratio.linear("Gemini", 15) == pytest.approx(0.906, abs=1e-3)
    assert ratio.linear("HighFreq", 0) == pytest.approx(0.857, abs=1e-3)
    assert ratio.linear("Strawman", 15) == 0


def test_fig_15s_simulation_keeps_the_order_of_the_policies(drawn):
    ours = values(drawn["fig15a"], "simulation")
    for failures in range(3, 9):
        assert ours["Gemini", failures] > ours["HighFreq", failures] > ours["Strawman", failures]


def test_fig_16_has_the_papers_five_schemes_within_one_percent(drawn):
    model = values(drawn["fig16"], "model")
    assert model["iteration time", "naive interleave"] is None
    for paper, ours in beside(drawn["fig16"]):
        assert ours == pytest.approx(paper, rel=0.01)


def test_a_figure_is_written_as_html_svg_png_and_csv(tmp_path, drawn, capsys):
    pytest.importorskip("matplotlib")
    assert command.command(["fig16", "fig11", "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "index.html",
        "fig16.html",
        "fig16.svg",
        "fig16.png",
        "fig16.csv",
        "fig11.html",
        "fig11.svg",
        "fig11.png",
        "fig11.csv",
    }
    with (tmp_path / "fig16.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(drawn["fig16"].points)
    assert {row["origin"] for row in rows} == {"paper", "model"}
    assert "OOM" in (tmp_path / "fig16.html").read_text()
    assert (tmp_path / "fig16.png").read_bytes().startswith(b"\x89PNG")
    assert "Fig. 16" in capsys.readouterr().out


@pytest.mark.parametrize("name", command.FIGURES)
def test_every_figure_is_drawn_with_its_title_its_series_and_where_they_come_from(drawn, name):
    pytest.importorskip("matplotlib")
    figure = drawn[name]
    root = ET.fromstring(picture(figure).svg())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert figure.title in texts
    series = {point.series for point in figure.points}
    assert len(series) == 1 or series <= set(texts)
    assert figure.kind == "timeline" or set(figure.origins) <= set(texts)


def test_every_bar_of_a_figure_has_its_value_over_it(drawn):
    pytest.importorskip("matplotlib")
    root = ET.fromstring(picture(drawn["fig16"]).svg())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for point in drawn["fig16"].points:
        value = "OOM" if point.y is None else f"{point.y:.3g}"
        assert texts.count(value) >= 1
    assert texts.count("OOM") == 2


def test_text_in_a_page_is_escaped():
    pytest.importorskip("matplotlib")
    point = Point(series="<b>", x="a & b", y=1.0, origin="model", how="x < y")
    figure = Figure(
        name="f", title="<script>", x_label="x", y_label="y", points=(point,), kind="bars"
    )
    page = pages.page(figure, picture(figure))
    assert "<script>" not in page
    assert "&lt;b&gt;" in page
    assert "x &lt; y" in page


def test_a_cell_shows_the_drawing_and_folds_the_values_away(drawn):
    pytest.importorskip("matplotlib")
    shown = picture(drawn["fig12"]).html()
    assert shown.index("<svg") < shown.index("<details>") < shown.index("<table>")
    assert "Fig. 12" in shown.partition("<details>")[0]


def test_an_unknown_figure_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="'fig99'; choose from eq1"):
        command.make("fig99")
