"""What a viewer is shown of a window that its newest bars do not reach."""

import numpy as np
import pytest
from gemini_lab_widgets.save import standalone_html
from gemini_lab_widgets.timeline import MOST_BARS, Pump, TimelineQuery, seen

from gemini_lab.errors import ConfigError
from gemini_lab.report.bars import BATCH, LAYERS, ROW_BYTES, Kind
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.pyramid import Pyramid
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.traffic_bars import TrafficBars

ASKED = {"number": 3, "from_s": 10.0, "to_s": 20.0, "bins": 10, "rows": [0, 1], "bars": True}


@pytest.fixture(scope="module")
def traffic():
    """Two nodes, a collective of half a second each second; the newest batch alone in memory."""
    made = TrafficBars(Nodes(), limit=2 * BATCH, pyramid=Pyramid(FileBlocks()))
    made.lanes += ["node-0", "node-1"]
    made.origin_s = 0.0
    for number in range(3 * BATCH + 10):
        at_s = number / 2
        made.bars.add(Kind.COLLECTIVE, at_s, at_s + 0.25, lane=number % 2, number=number)
    made.newest_s = at_s
    return made


def look(**said):
    return TimelineQuery.read({**ASKED, **said}, lanes=2)


def test_few_bars_come_one_by_one_with_their_numbers(traffic):
    meta, data = seen(traffic, look())
    assert meta["bars"] == 21
    numbers = np.frombuffer(data[: 8 * 21])
    assert numbers.tolist() == list(range(20, 41))
    assert len(data) == 21 * (8 + ROW_BYTES)


def test_many_bars_come_as_shares_of_bins(traffic):
    end_s = 1.25 * BATCH
    meta, data = seen(traffic, look(from_s=0.0, to_s=end_s, bins=16))
    assert traffic.pyramid.count(0, end_s) > MOST_BARS
    shades = np.frombuffer(data, np.uint8).reshape(meta["rows"], LAYERS, meta["bins"])
    inside = shades[:, 1, 1 : int(meta["bins"] * 0.7)]
    assert set(inside.ravel().tolist()) <= {63, 64}  # a quarter of 255
    assert not shades[:, 3].any()


def test_a_row_of_two_lanes_shows_their_mean_and_a_hidden_lane_none(traffic):
    for rows in ([0, 0], [-1, 0]):
        meta, data = seen(traffic, look(rows=rows, bars=False))
        shades = np.frombuffer(data, np.uint8).reshape(meta["rows"], LAYERS, meta["bins"])
        assert meta["rows"] == 1
        assert round(float(shades[0, 1].mean())) in {63, 64}


def test_bars_that_are_not_settled_are_seen_too(traffic):
    end_s = traffic.newest_s
    meta, data = seen(traffic, look(from_s=end_s - 1, to_s=end_s + 1))
    assert np.frombuffer(data[: 8 * meta["bars"]])[-1] == traffic.bars.end - 1


@pytest.mark.parametrize(
    "noise",
    [
        None,
        {},
        {**ASKED, "from_s": float("nan")},
        {**ASKED, "from_s": 20.0},
        {**ASKED, "to_s": float("inf")},
        {**ASKED, "bins": 10**9},
        {**ASKED, "rows": "all"},
        {**ASKED, "rows": [0.5]},
        {**ASKED, "more": 1},
    ],
)
def test_a_look_that_makes_no_sense_is_not_answered(traffic, noise):
    got = []
    pump = Pump(lambda meta, _: got.append(meta))
    pump.hear({"ready": True})
    pump.update(traffic)
    sent = len(got)
    pump.hear({"look": noise})
    assert len(got) == sent
    pump.hear({"look": ASKED})
    assert got[-1]["look"]["number"] == 3


def test_rows_that_a_viewer_makes_up_are_kept_in_bounds(traffic):
    meta, _ = seen(traffic, look(rows=[60_000, 7, 9], bars=False))
    assert meta["rows"] <= 2


def test_a_saved_window_has_each_bar_and_the_rest_in_bins(traffic):
    html = standalone_html(traffic, window=(100.0, 200.0))
    assert '"count": 201' in html
    assert '"whole_s": [100.0, 200.0]' in html
    assert '"is_deep": true' in html
    assert len(html) < 400_000


def test_a_saved_window_after_the_runs_end_is_refused(traffic):
    with pytest.raises(ConfigError, match=r"begins 1e\+06 s after .* ends after \d+\.\d s; name"):
        standalone_html(traffic, window=(1e6, 2e6))


def test_a_saved_window_may_not_be_too_long(traffic):
    with pytest.raises(ConfigError, match="201 bars, and a page takes 100"):
        standalone_html(traffic, window=(100.0, 200.0), most_bars=100)
