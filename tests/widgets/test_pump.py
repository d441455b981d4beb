"""What a viewer of the timeline is sent, and when."""

from gemini_lab_widgets.save import standalone_html
from gemini_lab_widgets.timeline import MAX_ROWS, MAX_UNDRAWN, Pump

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Injected
from gemini_lab.report.bars import ROW_BYTES, Kind
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.traffic_bars import TrafficBars


class Viewer:
    """Keeps what a pump sends; time is what the test says."""

    def __init__(self):
        self.got = []
        self.now_s = 0.0
        self.pump = Pump(lambda meta, columns: self.got.append((meta, columns)), lambda: self.now_s)

    @property
    def rows(self):
        return sum(meta["count"] for meta, _ in self.got)

    def draw_all(self):
        drawn = 0
        while drawn < len(self.got):
            self.pump.hear({"drawn": self.got[drawn][0]["seq"]})
            drawn += 1


def traffic_of(count):
    traffic = TrafficBars(Nodes())
    traffic.lanes.append("node-0")
    add(traffic, count)
    return traffic


def add(traffic, count):
    for number in range(count):
        traffic.bars.add(Kind.TRANSFER, number, number + 1, lane=0)


def test_nothing_is_sent_before_the_viewer_is_ready():
    viewer = Viewer()
    viewer.pump.update(traffic_of(3))
    assert viewer.got == []
    viewer.pump.hear({"ready": True})
    [(meta, columns)] = viewer.got
    assert (meta["count"], meta["lanes"], len(columns)) == (3, ["node-0"], 3 * ROW_BYTES)


def test_each_row_is_sent_once():
    viewer, traffic = Viewer(), traffic_of(3)
    viewer.pump.hear({"ready": True})
    for _ in range(4):
        viewer.pump.update(traffic)
        viewer.draw_all()
        add(traffic, 2)
    assert [meta["count"] for meta, _ in viewer.got] == [3, 2, 2, 2]
    assert [meta["reset"] for meta, _ in viewer.got] == [True, False, False, False]


def test_a_viewer_that_does_not_draw_is_left_in_peace():
    viewer, traffic = Viewer(), traffic_of(1)
    viewer.pump.hear({"ready": True})
    for _ in range(10):
        add(traffic, 1)
        viewer.pump.update(traffic)
    assert len(viewer.got) == MAX_UNDRAWN
    viewer.draw_all()
    assert viewer.rows == len(traffic.bars)


def test_a_long_run_comes_in_pieces():
    viewer, traffic = Viewer(), traffic_of(2 * MAX_ROWS + 5)
    viewer.pump.hear({"ready": True})
    viewer.pump.update(traffic)
    viewer.draw_all()
    assert [meta["count"] for meta, _ in viewer.got] == [MAX_ROWS, MAX_ROWS, 5]
    assert [meta["more"] for meta, _ in viewer.got] == [True, True, False]


def test_a_viewer_that_starts_anew_gets_all_again():
    viewer, traffic = Viewer(), traffic_of(3)
    viewer.pump.hear({"ready": True})
    viewer.pump.update(traffic)
    viewer.pump.hear({"ready": True})
    assert [(meta["reset"], meta["count"]) for meta, _ in viewer.got] == [(True, 3), (True, 3)]


def test_marks_are_sent_when_they_change():
    viewer, traffic = Viewer(), traffic_of(1)
    viewer.pump.hear({"ready": True})
    viewer.pump.update(traffic)
    traffic.take(Entry(at_s=1.0, node="node-1", event=Injected(failure="node_loss")))
    viewer.pump.update(traffic)
    viewer.draw_all()
    add(traffic, 1)
    viewer.pump.update(traffic)
    told = [[mark["text"] for mark in meta.get("marks", "-")] for meta, _ in viewer.got[:2]]
    assert told == [[], ["node loss on node-1"]]
    assert "marks" not in viewer.got[2][0]


def test_how_far_a_viewer_is_behind_counts_from_when_news_was_known():
    viewer, traffic = Viewer(), traffic_of(1)
    viewer.pump.hear({"ready": True})
    for now_s in (0.0, 1.0, 2.0):
        viewer.now_s = now_s
        add(traffic, 1)
        viewer.pump.update(traffic)
    viewer.now_s = 5.0
    viewer.draw_all()
    assert viewer.pump.behind_s == 3.0  # the third was known at 2 and drawn at 5


def test_noise_from_a_viewer_is_ignored():
    viewer = Viewer()
    for noise in (None, "drawn", {"drawn": "x"}, {"drawn": 99}, {"drawn": []}, {}):
        viewer.pump.hear(noise)
    assert viewer.got == []


def test_a_saved_timeline_cannot_be_broken_out_of():
    traffic = traffic_of(1)
    traffic.lanes.append("</script><img src=x onerror=alert(1)>")
    assert standalone_html(traffic).count("</script>") == 1
