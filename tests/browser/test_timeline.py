"""The traffic timeline in a real browser: from a saved file, and live on a Panel page."""

import base64
import itertools
import socket
import time
from contextlib import suppress

import pytest
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.save import standalone_html
from gemini_lab_widgets.timeline import ENTRY, Pump

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.reducer import RunReducer

pytestmark = pytest.mark.browser

MIB = 2**20
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
TOP, GUTTER_END = 20, 6


def story(nodes, *, iterations=10, first=1):
    """One second an iteration: a collective from 0.5 to 0.9 s, chunks before; one meets it."""
    plan = events.RecoveryPlanned(
        recovery=0,
        epoch=1,
        version=None,
        tier="start",
        members=tuple(nodes),
        sources=(),
        transfers=(),
        reason="",
    )
    yield Entry(at_s=0.0, node="lab", event=plan)
    for number, (rank, node) in itertools.product(
        range(first, first + iterations), enumerate(nodes)
    ):
        began_s, late_s = float(number), 0.3 if number == 5 else 0.0
        common = {"rank": rank, "epoch": 1}
        sent = events.Transfer(
            version=number,
            span=0,
            peer=rank ^ 1,
            sent_bytes=3 * MIB,
            start_s=began_s + 0.1 + late_s,
            end_s=began_s + 0.4 + late_s,
            **common,
        )
        call = events.Call("all_reduce", MIB, 0.5, 0.9)
        made = events.Collectives.of([call], iteration=number, began_s=began_s, **common)
        ended = events.Iteration(iteration=number, duration_s=1.0, waited_s=0.0, **common)
        yield Entry(at_s=began_s + 0.9, node=node, event=sent)
        yield Entry(at_s=began_s + 1.0, node=node, event=ended)
        yield Entry(at_s=began_s + 1.0, node=node, event=made)


def reducer_of(nodes, **settings):
    run = RunReducer()
    run.extend(story(nodes, **settings))
    return run


def traffic_of(nodes, **settings):
    return reducer_of(nodes, **settings).traffic


FOUR = ["node-0", "node-1", "node-2", "node-3"]


@pytest.fixture
def saved(page, tmp_path):
    """`saved(traffic)` opens a file with its timeline and gives the page."""

    def show(traffic):
        path = tmp_path / "run.html"
        style = "<style>body{margin:8px;background:white}</style>"
        text = f"<!doctype html><meta charset=utf-8>{style}{standalone_html(traffic)}"
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        wait_for(page, "Number(data.draws) > 0 && Number(data.events) > 0")
        return page

    return show


def wait_for(page, condition):
    """Wait until `condition`, over the timeline's data attributes, holds."""
    page.wait_for_function(
        f"root => {{ const data = root.dataset; return {condition}; }}",
        arg=page.locator(".gl-timeline").element_handle(),
    )


def wait_until_open(port):
    """`pn.serve` in a thread returns before its port listens."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.05)
    pytest.fail(f"nothing listens on port {port} after 60 s")


def data(page):
    return page.locator(".gl-timeline").evaluate("root => ({ ...root.dataset })")


def window(page):
    return [float(end_s) for end_s in data(page)["window"].split()]


def point(page, at_s, lane, *, lower=True, lanes=4):
    """Where on the page a moment of a lane is drawn."""
    box = page.locator(".gl-timeline canvas").bounding_box()
    gutter = page.locator(".gl-timeline").evaluate(
        "root => { const c = document.createElement('canvas').getContext('2d');"
        "c.font = '12px system-ui, sans-serif';"
        "return Math.min(150, Math.max(78, c.measureText('node-0').width + 22)); }"
    )
    from_s, to_s = window(page)
    plot = box["width"] - gutter - GUTTER_END
    height = min(52, 420 // lanes)
    x = box["x"] + gutter + plot * (at_s - from_s) / (to_s - from_s)
    return x, box["y"] + TOP + height * (lane + (0.7 if lower else 0.2))


def test_a_saved_file_shows_every_bar_and_what_was_hidden(saved):
    traffic = traffic_of(FOUR)
    page = saved(traffic)
    assert int(data(page)["events"]) == len(traffic.bars)
    said = page.locator(".gl-timeline").get_attribute("aria-label")
    assert "4 nodes" in said
    assert (
        "7 % of checkpoint bytes shared the link with training" in said
    )  # one version of 9 met a collective, for 2/3 of it
    assert page.inner_text(".gl-lag") == "saved while it ran"


def test_hovering_tells_bytes_peer_and_rate(saved):
    page = saved(traffic_of(FOUR))
    page.mouse.move(*point(page, 3.25, 2))
    page.locator(".gl-tip").wait_for()
    told = page.inner_text(".gl-tip")
    assert "version 3 to node-3" in told
    assert "rank 2 on node-2" in told
    assert "3.0 MiB in 300 ms: 10.0 MiB/s" in told
    assert "idle span 0" in told


def test_hovering_over_the_upper_half_tells_the_collective(saved):
    page = saved(traffic_of(FOUR))
    page.mouse.move(*point(page, 4.7, 1, lower=False))
    page.locator(".gl-tip").wait_for()
    assert page.inner_text(".gl-tip").startswith("all reduce")


def test_hovering_over_exposed_bytes_says_how_many(saved):
    page = saved(traffic_of(FOUR))
    page.mouse.move(*point(page, 5.6, 0))
    page.locator(".gl-tip").wait_for()
    assert "2.0 MiB of it shared the link here" in page.inner_text(".gl-tip")


def test_a_click_leads_to_the_receiver(saved):
    page = saved(traffic_of(FOUR))
    page.mouse.click(*point(page, 3.25, 2))
    wait_for(page, "data.arrow === 'node-2 -> node-3'")
    assert "version 3 to node-3" in page.inner_text(".gl-said")
    page.keyboard.press("Escape")
    wait_for(page, "data.arrow === undefined")


def test_keys_step_through_the_chunks(saved):
    page = saved(traffic_of(FOUR))
    page.focus(".gl-timeline")
    page.keyboard.press(".")
    wait_for(page, "data.arrow !== undefined")
    assert "version 1 " in page.inner_text(".gl-said")
    page.keyboard.press(".")
    page.wait_for_function("document.querySelector('.gl-said').textContent.includes('version 2 ')")
    page.keyboard.press(",")
    page.wait_for_function("document.querySelector('.gl-said').textContent.includes('version 1 ')")


def test_keys_zoom_move_and_come_home(saved):
    page = saved(traffic_of(FOUR))
    whole = window(page)
    page.focus(".gl-timeline")
    page.keyboard.press("+")
    wait_for(page, "data.mode === 'free'")
    near = window(page)
    assert near[1] - near[0] < whole[1] - whole[0]
    draws = data(page)["draws"]
    page.keyboard.press("ArrowRight")
    wait_for(page, f"Number(data.draws) > {draws}")
    assert window(page)[0] > near[0]
    page.keyboard.press("Home")
    wait_for(page, "data.mode === 'all'")
    assert window(page) == whole


def test_brushing_the_overview_zooms(saved):
    page = saved(traffic_of(FOUR))
    box = page.locator(".gl-timeline canvas").bounding_box()
    y = box["y"] + box["height"] - 15
    from_x, over_x, to_x = (point(page, at_s, 0)[0] for at_s in (4.0, 5.0, 6.0))
    page.mouse.move(from_x, y)
    page.mouse.down()
    page.mouse.move(over_x, y)
    page.mouse.move(to_x, y)
    page.mouse.up()
    wait_for(page, "Math.abs(data.window.split(' ')[1] - 6) < 0.1")
    assert window(page) == pytest.approx([4.0, 6.0], abs=0.1)


def test_dragging_moves_and_the_wheel_zooms(saved):
    page = saved(traffic_of(FOUR))
    page.locator(".gl-timeline").focus()
    page.keyboard.press("+")
    wait_for(page, "data.mode === 'free'")
    from_s, to_s = window(page)
    x, y = point(page, (from_s + to_s) / 2, 1)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y)
    page.mouse.up()
    wait_for(page, f"Number(data.window.split(' ')[0]) > {from_s}")
    width_s = to_s - from_s
    page.mouse.wheel(0, -120)
    wait_for(page, f"data.window.split(' ')[1] - data.window.split(' ')[0] < {0.9 * width_s}")


def test_a_hostile_name_is_only_text(saved):
    nodes = [HOSTILE, f"</script>{HOSTILE}", "node-2", "node-3"]
    page = saved(traffic_of(nodes))
    page.focus(".gl-timeline")
    page.keyboard.press(".")
    wait_for(page, "data.arrow !== undefined")
    x, y = point(page, 3.25, 1)
    for lane in range(4):
        page.mouse.move(x, y + 52 * (lane - 1))
    assert "<img src=x" in page.inner_text(".gl-said")
    assert page.locator("img").count() == 0
    assert page.title() != "broken"


def test_dark_is_what_the_viewer_prefers_or_the_host_shows(saved):
    page = saved(traffic_of(FOUR))
    assert data(page)["theme"] == "light"
    page.evaluate("document.body.style.background = '#101418'")
    wait_for(page, "data.theme === 'dark'")
    page.evaluate("document.body.style.background = 'none'")
    wait_for(page, "data.theme === 'light'")
    page.emulate_media(color_scheme="dark")
    wait_for(page, "data.theme === 'dark'")


def test_many_nodes_share_lanes_that_open_on_a_click(saved):
    page = saved(traffic_of([f"node-{number}" for number in range(200)], iterations=2))
    height = page.locator(".gl-timeline canvas").bounding_box()["height"]
    page.locator(".gl-timeline canvas").click(position={"x": 20, "y": TOP + 5})
    page.wait_for_function(
        "height => document.querySelector('.gl-timeline canvas').clientHeight > height", arg=height
    )


def test_a_narrow_window_redraws(saved):
    page = saved(traffic_of(FOUR))
    page.set_viewport_size({"width": 500, "height": 700})
    page.wait_for_function("document.querySelector('.gl-timeline canvas').clientWidth < 500")
    wait_for(
        page, "root.querySelector('canvas').width === root.querySelector('canvas').clientWidth"
    )


def test_a_live_page_follows_what_arrives(page):
    pn = pytest.importorskip("panel", reason="panel is not installed")
    from gemini_lab_widgets.page import Timeline

    run = reducer_of(FOUR, iterations=3)
    traffic = run.traffic

    def app():
        timeline = Timeline(sizing_mode="stretch_width")
        pn.state.add_periodic_callback(lambda: timeline.pump.update(traffic), period=50)
        return pn.Column(timeline, sizing_mode="stretch_width")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pn.serve(app, port=port, address="127.0.0.1", threaded=True, show=False, verbose=False)
    try:
        wait_until_open(port)
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator(".gl-timeline").wait_for()
        wait_for(page, f"Number(data.events) === {len(traffic.bars)}")
        assert page.inner_text(".gl-lag").endswith("ms behind")
        run.extend(story(FOUR, iterations=2, first=4))
        wait_for(page, f"Number(data.events) === {len(traffic.bars)}")
        assert float(data(page)["last"]) == pytest.approx(6.0)
        run.take(Entry(at_s=6.1, node="lab", event=events.RunFinished(iteration=5)))
        page.wait_for_function(
            "root => root.querySelector('.gl-lag').textContent === 'run is over'",
            arg=page.locator(".gl-timeline").element_handle(),
        )
    finally:
        page.close()
        pn.state.kill_all_servers()
        pn.state.reset()


def test_a_timeline_is_fed_in_binary_and_says_what_it_drew(page):
    """The module's `render` with a model such as Panel hands it."""
    traffic, sent = traffic_of(FOUR), []
    pump = Pump(lambda meta, columns: sent.append((meta, columns)))
    pump.hear({"ready": True})
    pump.update(traffic)
    [(meta, columns)] = sent
    page.set_content("<body></body>")
    page.evaluate(
        """async ([source, meta, columns]) => {
            const module = await import(URL.createObjectURL(
                new Blob([source], { type: "text/javascript" })));
            window.heard = [];
            const on = {};
            const model = { on: (event, act) => { on[event] = act; }, off: () => {},
                send_msg: (message) => window.heard.push(message) };
            document.body.append(module.default.render({ model }));
            window.leave = on.remove;
            const bytes = Uint8Array.from(atob(columns), (letter) => letter.charCodeAt(0));
            const padded = new Uint8Array(bytes.length + 3); // frames need not be aligned
            padded.set(bytes, 3);
            on["msg:custom"]({ meta, columns: new DataView(padded.buffer, 3) });
        }""",
        [joined(ENTRY), meta, base64.b64encode(columns).decode()],
    )
    page.wait_for_function("window.heard.length === 2")
    assert page.evaluate("window.heard") == [{"ready": True}, {"drawn": meta["seq"]}]
    wait_for(page, f"Number(data.events) === {len(traffic.bars)}")
    page.evaluate("window.leave()")
